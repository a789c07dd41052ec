#include <cmath>
#include <span>

#include <thimble/core/files/bytes.h>
#include <thimble/nn/files/safetensors.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/skip.h"

using namespace thimble;
using namespace files_test;

namespace {

// A file: its header's JSON and `data` bytes of zeros.
std::string safetensors_file(const std::string& json, std::size_t data) {
  return little(json.size(), 8) + json + std::string(data, '\0');
}

SafetensorsHeader parse(const std::string& file) { return parse_safetensors(bytes_of(file), file.size(), "t"); }

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

struct Corrupt {
  const char* what;
  std::string file;
  std::string reason;  // part of the message
};

const std::string f32_2x3 = entry("a", "F32", "[2,3]", "[0,24]");

std::vector<Corrupt> corrupt_lengths() {
  return {
      {"empty file", "", "at byte 0: the file ends inside the header's length"},
      {"seven bytes", std::string(7, '\0'), "at byte 7: the file ends inside the header's length"},
      {"no header", little(0, 8), "at byte 8: the header does not begin with '{'"},
      {"N = 2^63", little(std::uint64_t{1} << 63, 8) + "{}", "9223372036854775808 bytes; expected at most 100000000"},
      {"N = 2^64 - 1", little(UINT64_MAX, 8) + "{}", "18446744073709551615 bytes; expected at most 100000000"},
      {"N = limit + 1", little(100'000'001, 8) + "{}", "100000001 bytes; expected at most 100000000"},
      {"N beyond the file", little(3, 8) + "{}", "the header has 3 bytes, the file ends at byte 10"},
      {"header cut short", safetensors_file("{" + f32_2x3 + "}", 24).substr(0, 40), "the file ends at byte 40"},
      {"data cut short", safetensors_file("{" + f32_2x3 + "}", 23), "end after the file's 23 bytes of data"},
      {"trailing bytes", safetensors_file("{" + f32_2x3 + "}", 25), "1 bytes after the last tensor"},
      {"trailing bytes, no tensor", safetensors_file("{}", 1), "1 bytes after the last tensor"},
  };
}

std::vector<Corrupt> corrupt_json() {
  const auto file = [](const std::string& json) { return safetensors_file(json, 24); };
  return {
      {"array", file("[1]"), "at byte 8: the header does not begin with '{'"},
      {"leading space", file(" {" + f32_2x3 + "}"), "does not begin with '{'"},
      {"unfinished", file("{" + f32_2x3), "not valid JSON"},
      {"text after", file("{" + f32_2x3 + "}x"), "not valid JSON"},
      {"second object", file("{" + f32_2x3 + "}{}"), "not valid JSON"},
      {"NUL and text after", file("{" + f32_2x3 + "}" + std::string(1, '\0') + "x"), "the header has a NUL byte"},
      {"not UTF-8", file("{" + entry("\xff\xfe", "F32", "[6]", "[0,24]") + "}"), "not valid JSON"},
      {"comment", file("{/* */" + f32_2x3 + "}"), "not valid JSON"},
      {"tensor twice", file("{" + f32_2x3 + "," + f32_2x3 + "}"), "tensor 'a' is there twice"},
      {"key twice", file(R"({"a":{"dtype":"F32","dtype":"F32","shape":[6],"data_offsets":[0,24]}})"),
       "key 'dtype' is there twice in tensor 'a'"},
      {"key twice, escaped", file(R"({"a":{"shape":[6],"sh\u0061pe":[6],"dtype":"F32","data_offsets":[0,24]}})"),
       "key 'shape' is there twice in tensor 'a'"},
      {"metadata twice", file(R"({"__metadata__":{},"__metadata__":{}})"), "key '__metadata__' is there twice"},
      {"metadata key twice", file(R"({"__metadata__":{"k":"1","k":"2"}})"), "key 'k' is there twice in __metadata__"},
      {"metadata not a string", file(R"({"__metadata__":{"k":1}})"), "expected a string, found a number"},
      {"metadata nested", file(R"({"__metadata__":{"k":{}}})"), "expected a string, found an object"},
      {"metadata null", file(R"({"__metadata__":null})"), "key '__metadata__': expected an object, found null"},
      {"tensor is a number", file(R"({"a":1})"), "key 'a': expected an object, found a number"},
      {"tensor is an array", file(R"({"a":[]})"), "key 'a': expected an object, found an array"},
      {"no dtype", file(R"({"a":{"shape":[6],"data_offsets":[0,24]}})"), "tensor 'a' has no dtype"},
      {"no shape", file(R"({"a":{"dtype":"F32","data_offsets":[0,24]}})"), "tensor 'a' has no shape"},
      {"no offsets", file(R"({"a":{"dtype":"F32","shape":[6]}})"), "tensor 'a' has no data_offsets"},
      {"unknown key", file(R"({"a":{"dtype":"F32","x":[6]}})"), "unknown key 'x'; expected dtype, shape"},
      {"unknown dtype", file("{" + entry("a", "F31", "[6]", "[0,24]") + "}"), "unknown dtype 'F31'; known: BOOL, U8"},
      {"dtype in small letters", file("{" + entry("a", "f32", "[6]", "[0,24]") + "}"), "unknown dtype 'f32'"},
      {"dtype is a number", file(R"({"a":{"dtype":32}})"), "tensor 'a': found a number in dtype"},
      {"dtype is an array", file(R"({"a":{"dtype":["F32"]}})"), "tensor 'a': found an array in dtype"},
      {"shape is a number", file(R"({"a":{"shape":6}})"), "tensor 'a': found a number in shape"},
      {"negative size", file("{" + entry("a", "F32", "[-6]", "[0,24]") + "}"), "found a negative number in shape"},
      {"size -0", file("{" + entry("a", "F32", "[-0]", "[0,24]") + "}"), "found a negative number in shape"},
      {"size 6.0", file("{" + entry("a", "F32", "[6.0]", "[0,24]") + "}"), "the number '6.0', which is no integer"},
      {"size 2^63", file("{" + entry("a", "F32", "[9223372036854775808]", "[0,24]") + "}"), "a size above 2^63 - 1"},
      {"size 2^64", file("{" + entry("a", "F32", "[18446744073709551616]", "[0,24]") + "}"), "no integer below 2^64"},
      {"size is text", file("{" + entry("a", "F32", "[\"6\"]", "[0,24]") + "}"), "found a string in shape"},
      {"size is null", file("{" + entry("a", "F32", "[null]", "[0,24]") + "}"), "found null in shape"},
      {"size is true", file("{" + entry("a", "F32", "[true]", "[0,24]") + "}"), "found a boolean in shape"},
      {"shape nested", file("{" + entry("a", "F32", "[[6]]", "[0,24]") + "}"), "found an array in shape"},
      {"one offset", file("{" + entry("a", "F32", "[6]", "[0]") + "}"), "are not two numbers"},
      {"three offsets", file("{" + entry("a", "F32", "[6]", "[0,24,24]") + "}"), "are not two numbers"},
      {"negative offset", file("{" + entry("a", "F32", "[6]", "[-1,24]") + "}"), "a negative number in data_offsets"},
  };
}

std::vector<Corrupt> corrupt_ranges() {
  const auto two = [](const std::string& a, const std::string& b) {
    return safetensors_file("{" + entry("a", "F32", "[3]", a) + "," + entry("b", "F32", "[3]", b) + "}", 24);
  };
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return safetensors_file("{" + entry("a", dtype, shape, offsets) + "}", 24);
  };
  return {
      {"overlap", two("[0,12]", "[8,20]"), "tensor 'b': data_offsets [8, 20) overlap the tensor that ends at byte 12"},
      {"same range", two("[0,12]", "[0,12]"), "overlap the tensor that ends at byte 12"},
      {"hole", two("[0,12]", "[13,25]").append(1, '\0'), "leave a hole after byte 12"},
      {"hole at the start", one("F32", "[5]", "[4,24]"), "leave a hole after byte 0"},
      {"backwards", one("F32", "[6]", "[24,0]"), "[24, 0) run backwards"},
      {"beyond 2^63", one("F32", "[6]", "[18446744073709551591,18446744073709551615]"),
       "end after the file's 24 bytes"},
      {"size and range differ", one("F32", "[5]", "[0,24]"), "are 24 bytes, shape and dtype need 20"},
      {"dtype and range differ", one("F16", "[6]", "[0,24]"), "are 24 bytes, shape and dtype need 12"},
      {"product overflows", one("F32", "[4294967296,4294967296]", "[0,24]"), "more than 2^63 - 1 bytes"},
      {"product overflows to 24", one("U8", "[8,2305843009213693955]", "[0,24]"), "more than 2^63 - 1 bytes"},
      {"product times size overflows", one("F64", "[4611686018427387904]", "[0,24]"), "more than 2^63 - 1 bytes"},
      {"overflow hidden by a zero", one("F32", "[0,4294967296,4294967296]", "[0,0]"), "more than 2^63 - 1 bytes"},
  };
}

}  // namespace

TEST_CASE("safetensors: corrupt files are refused with a reason", "[files][safetensors]") {
  for (const auto& table : {corrupt_lengths(), corrupt_json(), corrupt_ranges()})
    for (const Corrupt& row : table) {
      const std::string message = file_error([&] { parse(row.file); });
      INFO(row.what << ": " << message);
      CHECK(contains(message, row.reason));
    }
}

TEST_CASE("safetensors: depth and rank are bounded", "[files][safetensors]") {
  std::string deep = "{\"a\":{\"shape\":";
  deep += std::string(1'000'000, '[');
  CHECK(contains(file_error([&] { parse(safetensors_file(deep, 0)); }), "found an array in shape"));
  std::string sizes = "1";
  for (int i = 1; i < 64; ++i) sizes += ",1";
  CHECK(parse(safetensors_file("{" + entry("a", "U8", "[" + sizes + "]", "[0,1]") + "}", 1)).tensors.size() == 1);
  CHECK(contains(
      file_error([&] { parse(safetensors_file("{" + entry("a", "U8", "[" + sizes + ",1]", "[0,1]") + "}", 1)); }),
      "more than 64 sizes"));
}

TEST_CASE("safetensors: errors name the byte", "[files][safetensors]") {
  const std::string json = "{" + entry("a", "F31", "[6]", "[0,24]") + "}";
  const std::string message = file_error([&] { parse(safetensors_file(json, 24)); });
  CHECK(contains(message, "t: at byte " + std::to_string(8 + json.find("F31\"") + 4)));
}

TEST_CASE("safetensors: valid headers", "[files][safetensors]") {
  CHECK(parse(safetensors_file("{}", 0)).tensors.empty());
  CHECK(parse(safetensors_file("{}      ", 0)).tensors.empty());
  // Names in any order, spaces, escapes, scalars, empty tensors (also two at one offset), unsupported dtypes.
  const std::string json =
      "{ \"z\": {\"shape\": [ ], \"data_offsets\": [2, 10], \"dtype\": \"F64\"},\n" +
      entry("e2", "F32", "[0,5]", "[2,2]") + "," + entry("e1", "U8", "[0]", "[2,2]") + "," +
      entry("\\u00e9", "U16", "[1]", "[0,2]") +
      R"(,"__metadata__":{"format":"pt","a\"b":""}, "t":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[10,11]} }  )";
  const SafetensorsHeader header = parse(safetensors_file(json, 11));
  REQUIRE(header.tensors.size() == 5);
  CHECK(header.data_offset == 8 + json.size());
  CHECK(header.metadata == std::map<std::string, std::string>{{"format", "pt"}, {"a\"b", ""}});
  CHECK(header.tensors[0].name == "\xc3\xa9");
  CHECK(header.tensors[4].name == "t");
  REQUIRE(header.find("z") != nullptr);
  CHECK(*header.find("z") == SafetensorsEntry{"z", SafetensorsDType::f64, {}, 2, 10});
  CHECK(header.find("e2")->shape == std::vector<std::int64_t>{0, 5});
  CHECK(header.find("e2")->bytes() == 0);
  CHECK(header.find("none") == nullptr);
  CHECK(loadable_dtype(*header.find("t")) == DType::f8e4m3);
  CHECK_THROWS_AS(loadable_dtype(header.tensors[0]), DTypeError);
  try {
    loadable_dtype(header.tensors[0]);
  } catch (const DTypeError& error) {
    CHECK(contains(error.what(), "has dtype U16, which cannot be loaded; expected BOOL, U8, I8"));
  }
}

TEST_CASE("safetensors: dtypes", "[files][safetensors]") {
  struct Row {
    const char* name;
    std::size_t bytes;
    bool is_loadable;
  };
  const std::vector<Row> rows{{"BOOL", 1, true},    {"U8", 1, true},   {"I8", 1, true},   {"F8_E5M2", 1, true},
                              {"F8_E4M3", 1, true}, {"I16", 2, false}, {"U16", 2, false}, {"F16", 2, true},
                              {"BF16", 2, true},    {"I32", 4, true},  {"U32", 4, false}, {"F32", 4, true},
                              {"F64", 8, true},     {"I64", 8, true},  {"U64", 8, false}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto dtype = static_cast<SafetensorsDType>(i);
    CHECK(to_string(dtype) == rows[i].name);
    CHECK(size_of(dtype) == rows[i].bytes);
    CHECK(to_dtype(dtype).has_value() == rows[i].is_loadable);
  }
  for (int i = 0; i < dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(to_dtype(to_safetensors_dtype(dtype)) == dtype);
    CHECK(size_of(to_safetensors_dtype(dtype)) == size_of(dtype));
  }
}

TEST_CASE("safetensors: layout is largest dtype first, then name", "[files][safetensors]") {
  using D = SafetensorsDType;
  const SafetensorsHeader header = lay_out_safetensors({{"b", D::f32, {2, 3}, 7, 9},
                                                        {"flag", D::boolean, {3}},
                                                        {"a", D::f32, {}},
                                                        {"half", D::bf16, {1}},
                                                        {"steps", D::i64, {1}},
                                                        {"empty", D::f64, {0, 4}}},
                                                       {{"format", "pt"}, {"by", "t\n\"\\"}});
  std::vector<std::string> order;
  for (const auto& tensor : header.tensors) order.push_back(tensor.name);
  CHECK(order == std::vector<std::string>{"steps", "empty", "a", "b", "half", "flag"});
  const std::string text = format_safetensors_header(header);
  CHECK(text.size() % 8 == 0);
  CHECK(text.size() == header.data_offset);
  const std::string json =
      R"({"__metadata__":{"by":"t\n\"\\","format":"pt"},"steps":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("empty":{"dtype":"F64","shape":[0,4],"data_offsets":[8,8]},"a":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
      R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[12,36]},"half":{"dtype":"BF16","shape":[1],"data_offsets":[36,38]},)"
      R"("flag":{"dtype":"BOOL","shape":[3],"data_offsets":[38,41]}})";
  CHECK(text == little(text.size() - 8, 8) + json + std::string(text.size() - 8 - json.size(), ' '));
  const SafetensorsHeader again = parse_safetensors(bytes_of(text), text.size() + 41, "t");
  CHECK(again.tensors == header.tensors);
  CHECK(again.metadata == header.metadata);
}

TEST_CASE("safetensors: a header is filled up to eight bytes, and no further", "[files][safetensors]") {
  for (std::size_t letters = 1; letters < 18; ++letters) {
    const std::string name(letters, 'w');
    const std::string text = R"({")" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    std::string expected(8, '\0');
    expected[0] = static_cast<char>((text.size() + 7) / 8 * 8);
    expected += text + std::string((8 - text.size() % 8) % 8, ' ');
    SafetensorsHeader header;
    header.tensors.push_back({name, SafetensorsDType::f32, {2}, 0, 8});
    CHECK(format_safetensors_header(header) == expected);
  }
}

TEST_CASE("safetensors: what cannot be written is refused", "[files][safetensors]") {
  using D = SafetensorsDType;
  CHECK_THROWS_AS(lay_out_safetensors({{"a", D::f32, {}}, {"a", D::u8, {}}}, {}), ValueError);
  CHECK_THROWS_AS(lay_out_safetensors({{"__metadata__", D::f32, {}}}, {}), ValueError);
  CHECK_THROWS_AS(lay_out_safetensors({{"\xff", D::f32, {}}}, {}), ValueError);
  CHECK_THROWS_AS(lay_out_safetensors({}, {{"k", "\xff"}}), ValueError);
  CHECK_THROWS_AS(lay_out_safetensors({}, {{"k", std::string(100'000'000, 'x')}}), ValueError);
  CHECK_THROWS_AS(lay_out_safetensors({{"a", D::f32, {-1}}}, {}), ShapeError);
  CHECK_THROWS_AS(lay_out_safetensors({{"a", D::f32, {INT64_MAX}}}, {}), ShapeError);
  CHECK_THROWS_AS(lay_out_safetensors({{"a", D::u8, {INT64_MAX}}, {"b", D::u8, {INT64_MAX}}}, {}), ShapeError);
  CHECK_THROWS_AS(lay_out_safetensors({{"a", D::u8, std::vector<std::int64_t>(65, 1)}}, {}), ShapeError);
}

TEST_CASE("safetensors: write in pieces and any order, read, write again", "[files][safetensors]") {
  using D = SafetensorsDType;
  const TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  const std::string a = "abcdefgh", b = "ABCDEFGHIJKL", flag(1, '\1');
  {
    SafetensorsWriter writer(
        path, {{"b", D::f32, {3}}, {"flag", D::boolean, {1}}, {"a", D::f16, {2, 2}}, {"none", D::f64, {0}}},
        {{"made", "here"}});
    writer.append("flag", bytes_of(flag));
    writer.append("a", bytes_of(a));
    writer.append("b", bytes_of(b.substr(0, 5)));
    CHECK_THROWS_AS(writer.append("a", bytes_of(flag)), ValueError);
    CHECK_THROWS_AS(writer.append("c", bytes_of(flag)), ValueError);
    CHECK_THROWS_AS(writer.commit(), ValueError);
    writer.append("b", bytes_of(b.substr(5)));
    writer.commit();
  }
  CHECK(folder.entries() == 1);
  const SafetensorsReader reader(path);
  CHECK(read_text_file(path) == format_safetensors_header(reader.header()) + b + a + flag);
  std::vector<std::byte> part(4);
  reader.read_part(reader.entry("b"), 6, part);
  CHECK(text_of(part) == "GHIJ");
  CHECK_THROWS_WITH(reader.read_part(reader.entry("b"), 9, part),
                    "safetensors: bytes 9 to 13 wanted, tensor 'b' has 12");
  CHECK_THROWS_WITH(reader.read(reader.entry("b"), part), "safetensors: room for 4 bytes, tensor 'b' has 12");
  CHECK(contains(file_error([&] { reader.entry("c"); }), "there is no tensor 'c' in this file"));

  SafetensorsWriter copy(folder / "b.safetensors", reader.header().tensors, reader.header().metadata);
  for (const SafetensorsEntry& tensor : reader.header().tensors) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
    reader.read(tensor, bytes);
    copy.append(tensor.name, bytes);
  }
  copy.commit();
  CHECK(read_text_file(folder / "b.safetensors") == read_text_file(path));
}

TEST_CASE("safetensors: a NaN that comes in two pieces is one", "[files][safetensors]") {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "nan", {{"x", SafetensorsDType::f32, {2}}}, {});
  const float values[] = {std::nanf(""), 1};
  const auto bytes = std::as_bytes(std::span(values));
  writer.append("x", bytes.first(3));
  writer.append("x", bytes.subspan(3));
  CHECK(writer.not_finite() == "x");
}

TEST_CASE("safetensors: a writer that is given up leaves the old file", "[files][safetensors]") {
  using D = SafetensorsDType;
  const TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  write_text_file(path, "old");
  {
    SafetensorsWriter writer(path, {{"a", D::f32, {1}}});
    writer.append("a", bytes_of(std::string("abcd")));
  }
  CHECK(read_text_file(path) == "old");
  CHECK(folder.entries() == 1);
  CHECK(contains(file_error([&] { SafetensorsWriter(folder / "none/a", {}); }), "cannot create "));
}

TEST_CASE("safetensors: a BOOL is 0 or 1", "[files][safetensors]") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  std::string file = safetensors_file("{" + entry("a", "BOOL", "[4]", "[0,4]") + "}", 4);
  file[file.size() - 2] = 2;
  write_text_file(path, file);
  const SafetensorsReader reader(path);
  std::vector<std::byte> all(4), first(2);
  CHECK(contains(file_error([&] { reader.read(reader.entry("a"), all); }),
                 "at byte " + std::to_string(file.size() - 2) + ": tensor 'a' has a BOOL that is neither 0 nor 1"));
  reader.read_part(reader.entry("a"), 0, first);
}

TEST_CASE("safetensors: files above 4 GiB are read where they are", "[files][safetensors]") {
  const TemporaryFolder folder;
  const std::string path = folder / "large.safetensors";
  const std::string json = "{" + entry("a", "U8", "[5000000000]", "[0,5000000000]") + "," +
                           entry("b", "U8", "[2]", "[5000000000,5000000002]") + "}";
  write_text_file(path, safetensors_file(json, 0));
  std::filesystem::resize_file(path, 8 + json.size() + 5'000'000'002);  // a sparse file, not 5 GB
  const SafetensorsReader reader(path);
  std::vector<std::byte> two(2, std::byte{1});
  reader.read(reader.entry("b"), two);
  CHECK(two == std::vector<std::byte>(2));
}

TEST_CASE("safetensors: agrees with the reference implementation", "[files][safetensors][oracle]") {
  using D = SafetensorsDType;
  const TemporaryFolder folder;
  SafetensorsWriter writer(
      folder / "ours.safetensors",
      {{"w", D::f32, {2, 2}}, {"steps", D::i64, {}}, {"mask", D::boolean, {3}}, {"e", D::f16, {0}}},
      {{"format", "np"}});
  const float w[] = {1, -2, 0.5f, 3};
  const std::int64_t steps[] = {7};
  writer.append("w", std::as_bytes(std::span(w)));
  writer.append("steps", std::as_bytes(std::span(steps)));
  writer.append("mask", bytes_of(std::string("\1\0\1", 3)));
  writer.commit();
  const int status = run_oracle("safetensors_check.py", "'" + folder.path() + "'");
  if (status == 77) {
    thimble_test::skip("THIMBLE_PYTHON does not name a Python with numpy and safetensors");
    return;
  }
  // The script has checked ours.safetensors and saved the same tensors as theirs.safetensors.
  REQUIRE(status == 0);
  const SafetensorsReader ours(folder / "ours.safetensors"), theirs(folder / "theirs.safetensors");
  std::vector<SafetensorsEntry> entries = ours.header().tensors;
  for (SafetensorsEntry& entry : entries) entry.crc32c.reset();  // theirs has no checksums
  CHECK(theirs.header().tensors == entries);
  const auto data_of = [](const SafetensorsReader& file) {
    return read_text_file(file.path()).substr(file.header().data_offset);
  };
  CHECK(data_of(theirs) == data_of(ours));
}
