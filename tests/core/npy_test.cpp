#include <cstring>

#include <thimble/core/files/bytes.h>
#include <thimble/core/files/npy.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/skip.h"

using namespace thimble;
using namespace files_test;

namespace {

// A file of format version `major` with this header text and `data` zero bytes.
std::string npy_file(const std::string& header, std::size_t data, int major = 1) {
  return "\x93NUMPY" + little(static_cast<std::uint64_t>(major), 2) + little(header.size(), major == 1 ? 2 : 4) +
         header + std::string(data, '\0');
}

std::string dict(const std::string& descr, const std::string& order, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

NpyArray parse(const std::string& file) { return parse_npy(bytes_of(file), "t"); }

}  // namespace

TEST_CASE("npy: corrupt files are refused with a reason", "[files][npy]") {
  struct Row {
    const char* what;
    std::string file;
    std::string reason;
  };
  const std::string good = dict("'<f4'", "False", "(2, 3)");
  const auto shape = [](const std::string& text) { return npy_file(dict("'<f4'", "False", text), 24); };
  const auto descr = [](const std::string& text) { return npy_file(dict(text, "False", "(6,)"), 24); };
  const std::vector<Row> rows{
      {"empty file", "", "at byte 0: not a .npy file"},
      {"magic cut short", "\x93NUM", "at byte 4: not a .npy file"},
      {"other magic", "\x93NUMPZ" + std::string(30, ' '), "at byte 5: not a .npy file"},
      {"length cut short", npy_file(good, 24).substr(0, 9), "at byte 9: the file ends inside the header's length"},
      {"length cut short, v2", npy_file(good, 24, 2).substr(0, 11), "at byte 11: the file ends inside"},
      {"version 0.0", npy_file(good, 24, 0), "version 0.0 is not supported; expected 1.0, 2.0, 3.0"},
      {"version 4.0", npy_file(good, 24, 4), "version 4.0 is not supported"},
      {"version 1.1", npy_file(good, 24, 257), "version 1.1 is not supported"},
      {"header cut short", npy_file(good, 0).substr(0, 40), "the file ends at byte 40"},
      {"header of 4 GiB", "\x93NUMPY" + little(2, 2) + little(UINT32_MAX, 4),
       "4294967295 bytes; expected at most 65536"},
      {"no newline", npy_file("{}", 0), "does not end in a newline"},
      {"empty dict", npy_file("{}\n", 0), "the header has no 'descr'"},
      {"no order", npy_file("{'descr': '<f4', 'shape': ()}\n", 4), "the header has no 'fortran_order'"},
      {"no shape", npy_file("{'descr': '<f4', 'fortran_order': False}\n", 4), "the header has no 'shape'"},
      {"no dict", npy_file("[]\n", 0), "expected '{'"},
      {"dict cut short", npy_file("{'descr': '<f4'\n", 0), "expected '}'"},
      {"bytes after the dict", npy_file(good.substr(0, good.size() - 1) + "x\n", 24), "bytes after the header's dict"},
      {"key twice", npy_file("{'descr': '<f4', 'descr': '<f4'}\n", 0), "key 'descr' is there twice"},
      {"unknown key", npy_file("{'order': 1}\n", 0), "unknown key 'order'; expected 'descr'"},
      {"key is no string", npy_file("{1: 2}\n", 0), "expected a quoted string"},
      {"string does not end", npy_file("{'descr: 1}\n", 0), "a quoted string does not end"},
      {"big-endian", descr("'>f4'"), "big-endian element type '>f4' is not supported; expected '<f8', '<f4'"},
      {"big-endian, what to do", descr("'>f4'"), "save it with astype('<f4')"},
      {"order of two bytes", descr("'|u2'"), "element type '|u2' is not supported"},
      {"L without digits", shape("(L,)"), "expected a size"},
      {"LL", shape("(6LL,)"), "expected ',' between two sizes"},
      {"u2 cut short", npy_file(dict("'<u2'", "False", "(3,)"), 5), "needs 6 bytes of elements, the file has 5"},
      {"complex", descr("'<c8'"), "element type '<c8' is not supported"},
      {"objects", descr("'|O'"), "element type '|O' is not supported"},
      {"text", descr("'<U8'"), "element type '<U8' is not supported"},
      {"structured", descr("[('a', '<f4')]"), "structured element types are not supported"},
      {"fortran order", npy_file(dict("'<f4'", "True", "(2, 3)"), 24), "fortran_order is True (column-major)"},
      {"order is a number", npy_file(dict("'<f4'", "0", "(2, 3)"), 24), "neither True nor False"},
      {"shape is a number", shape("6"), "expected '('"},
      {"shape (6)", shape("(6)"), "the shape is not a tuple"},
      {"negative size", shape("(-6,)"), "the shape has a negative size"},
      {"size is text", shape("('6',)"), "expected a size"},
      {"size 6.0", shape("(6.0,)"), "expected ',' between two sizes"},
      {"no comma", shape("(2 3)"), "expected ',' between two sizes"},
      {"only a comma", shape("(,)"), "expected a size"},
      {"rank 9", shape("(1, 1, 1, 1, 1, 1, 1, 1, 6)"), "the shape has more than 8 sizes"},
      {"size 2^63 - 1", shape("(9223372036854775807,)"), "the shape has more than 2^63 - 1 bytes"},
      {"size 2^63", shape("(9223372036854775808,)"), "a size exceeds 2^63 - 1"},
      {"size of many digits", shape("(" + std::string(60, '9') + ",)"), "a size exceeds 2^63 - 1"},
      {"product overflows", shape("(4294967296, 4294967296)"), "the shape has more than 2^63 - 1 bytes"},
      {"overflow hidden by a zero", shape("(0, 4294967296, 4294967296)"), "the shape has more than 2^63 - 1 bytes"},
      {"data cut short", npy_file(good, 23),
       "at byte 93: the file is cut short: the shape needs 24 bytes of elements, the file has 23"},
      {"huge but not there", shape("(1099511627776,)"), "needs 4398046511104 bytes of elements, the file has 24"},
      {"trailing bytes", npy_file(good, 25), "at byte 94: bytes after the elements: the shape needs 24 bytes"},
      {"bool 2", npy_file(dict("'|b1'", "False", "(2,)"), 1) + "\2", "a bool is neither 0 nor 1"},
  };
  for (const Row& row : rows) {
    const std::string message = file_error([&] { parse(row.file); });
    INFO(row.what << ": " << message);
    CHECK(contains(message, row.reason));
  }
}

TEST_CASE("npy: headers of other writers are read", "[files][npy]") {
  struct Row {
    std::string file;
    DType dtype;
    std::vector<std::int64_t> shape;
  };
  const std::vector<Row> rows{
      {npy_file(dict("'<f4'", "False", "(2, 3)"), 24), DType::f32, {2, 3}},
      {npy_file(dict("'<f4'", "False", "(2, 3)"), 24, 2), DType::f32, {2, 3}},
      {npy_file(dict("'<f4'", "False", "(2, 3,)"), 24, 3), DType::f32, {2, 3}},
      {npy_file(dict("\"|i1\"", "False", "(6,)"), 6), DType::i8, {6}},
      {npy_file("{\"shape\":(),\"fortran_order\":False,\"descr\":\"<i8\"}   \n", 8), DType::i64, {}},
      {npy_file(dict("'<f8'", "False", "(0, 7)"), 0), DType::f64, {0, 7}},
      {npy_file(dict("'<u1'", "False", "(2, 3)"), 6), DType::u8, {2, 3}},  // cnpy
      {npy_file(dict("'<i1'", "False", "(6,)"), 6), DType::i8, {6}},
      {npy_file(dict("'>b1'", "False", "(6,)"), 6), DType::boolean, {6}},
      {npy_file(dict("'=u1'", "False", "(6,)"), 6), DType::u8, {6}},
      {npy_file(dict("'<f4'", "False", "(2L, 3L)"), 24), DType::f32, {2, 3}},  // Python 2
      {npy_file(dict("'<f4'", "False", "(6L,)"), 24), DType::f32, {6}},
      {npy_file(dict("'<f4'", "True", "(6,)"), 24), DType::f32, {6}},  // one axis has one order
      {npy_file(dict("'<u2'", "False", "(3,)"), 6), DType::i32, {3}},
      {npy_file(dict("'<u4'", "False", "(3,)"), 12), DType::i64, {3}},
      {npy_file(dict("'|b1'", "False", "( 1 , 1 , 1 , 1 , 1 , 1 , 1 , 1 )"), 1), DType::boolean,
       std::vector<std::int64_t>(8, 1)},
  };
  for (const Row& row : rows) {
    const NpyArray array = parse(row.file);
    CHECK(array.dtype == row.dtype);
    CHECK(array.shape == row.shape);
    CHECK(array.data.size() == *checked_bytes(row.shape, size_of(row.dtype)));
  }
}

TEST_CASE("npy: unsigned elements keep their values", "[files][npy]") {
  const TemporaryFolder folder;
  std::string narrow, wide;
  const std::vector<std::uint64_t> values{0, 1, 32768, 65535, 300, 7, 40000};
  for (const std::uint64_t v : values) narrow += little(v, 2), wide += little(v * 65537, 4);
  write_text_file(folder / "2.npy", npy_file(dict("'<u2'", "False", "(7,)"), 0) + narrow);
  write_text_file(folder / "4.npy", npy_file(dict("'<u4'", "False", "(7,)"), 0) + wide);
  const NpyArray two = read_npy(folder / "2.npy"), four = read_npy(folder / "4.npy");
  CHECK(parse(read_text_file(folder / "2.npy")).data == two.data);
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK(load_le<std::uint32_t>(two.data.data() + 4 * i) == values[i]);
    CHECK(load_le<std::uint64_t>(four.data.data() + 8 * i) == values[i] * 65537);
  }
}

TEST_CASE("npy: headers are written as NumPy does, aligned to 64", "[files][npy]") {
  const std::vector<std::int64_t> shape{3, 4};
  const std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }";
  CHECK(npy_header(DType::f32, shape) ==
        "\x93NUMPY" + little(1, 2) + little(118, 2) + text + std::string(128 - 10 - text.size() - 1, ' ') + "\n");
  for (const std::vector<std::int64_t>& sizes : std::vector<std::vector<std::int64_t>>{
           {}, {1}, {1000}, {1, 2}, std::vector<std::int64_t>(8, 100), {0, INT64_MAX / 8}})
    CHECK(npy_header(DType::i8, sizes).size() % 64 == 0);
  CHECK(parse(npy_file(text + std::string(65535 - text.size(), ' ') + "\n", 48, 2)).shape == shape);
}

TEST_CASE("npy: every dtype goes out and comes back", "[files][npy]") {
  const TemporaryFolder folder;
  for (int i = 0; i < dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::vector<std::int64_t> shape{2, 3};
    std::vector<std::byte> data(6 * size_of(dtype));
    for (std::size_t b = 0; b < data.size(); ++b)
      data[b] = static_cast<std::byte>(dtype == DType::boolean ? b % 2 : 17 * b + 1);
    const std::string path = folder / "a.npy";
    if (dtype == DType::bf16 || dtype == DType::f8e4m3 || dtype == DType::f8e5m2) {
      CHECK_THROWS_AS(write_npy(path, dtype, shape, data), DTypeError);
      continue;
    }
    write_npy(path, dtype, shape, data);
    const NpyArray array = read_npy(path);
    CHECK(array.dtype == dtype);
    CHECK(array.shape == shape);
    CHECK(array.data == data);
    const NpyHeader header = read_npy_header(path);
    CHECK(header.data_offset == 128);
    CHECK(header.data_bytes == data.size());
    CHECK_THROWS_AS(read_npy_data(path, header, std::span(data).first(5)), ShapeError);
  }
  CHECK(folder.entries() == 1);
}

TEST_CASE("npy: what cannot be written is refused", "[files][npy]") {
  const TemporaryFolder folder;
  const std::vector<std::byte> four(4);
  CHECK_THROWS_AS(write_npy(folder / "a", DType::f32, std::vector<std::int64_t>{2}, four), ShapeError);
  CHECK_THROWS_AS(write_npy(folder / "a", DType::f32, std::vector<std::int64_t>{-1}, four), ShapeError);
  CHECK_THROWS_AS(write_npy(folder / "a", DType::u8, std::vector<std::int64_t>(9, 1), four), ShapeError);
  CHECK_THROWS_AS(write_npy(folder / "a", DType::u8, std::vector<std::int64_t>{INT64_MAX, 2}, four), ShapeError);
  CHECK(folder.entries() == 0);
}

TEST_CASE("npy: agrees with NumPy", "[files][npy][oracle]") {
  const TemporaryFolder folder;
  // The script's arrays: 0, 1, 2, ... in each dtype, in three shapes.
  struct Case {
    const char* name;
    DType dtype;
  };
  const std::vector<Case> cases{{"f8", DType::f64}, {"f4", DType::f32}, {"i8", DType::i64},    {"i4", DType::i32},
                                {"i1", DType::i8},  {"u1", DType::u8},  {"b1", DType::boolean}};
  const std::vector<std::vector<std::int64_t>> shapes{{}, {5}, {2, 0, 3}, {2, 3, 4}};
  std::vector<std::string> names;
  for (const Case& one : cases)
    for (std::size_t s = 0; s < shapes.size(); ++s) {
      const auto elements = static_cast<std::size_t>(*checked_bytes(shapes[s], 1));
      std::vector<std::byte> data(elements * size_of(one.dtype));
      visit(one.dtype, [&]<class T>() {
        for (std::size_t i = 0; i < elements; ++i) {
          const T value = static_cast<T>(static_cast<float>(one.dtype == DType::boolean ? i % 2 : i));
          std::memcpy(data.data() + i * sizeof(T), &value, sizeof(T));
        }
      });
      names.push_back(std::string(one.name) + "_" + std::to_string(s) + ".npy");
      write_npy(folder / names.back(), one.dtype, shapes[s], data);
    }
  const int status = run_oracle("npy_check.py", "'" + folder.path() + "'");
  if (status == 77) {
    thimble_test::skip("THIMBLE_PYTHON does not name a Python with numpy");
    return;
  }
  // The script has checked our arrays and saved other ones under numpy_*.
  REQUIRE(status == 0);
  for (const std::string& name : names) {
    INFO(name);
    CHECK(read_text_file(folder / name) == read_text_file(folder / ("numpy_" + name)));
  }
  CHECK(contains(file_error([&] { read_npy(folder / "numpy_fortran.npy"); }), "fortran_order is True"));
  CHECK(contains(file_error([&] { read_npy(folder / "numpy_big.npy"); }), "big-endian"));
  CHECK(read_npy(folder / "numpy_v3.npy").shape == std::vector<std::int64_t>{3});
  CHECK(read_npy(folder / "numpy_f2.npy").dtype == DType::f16);
}
