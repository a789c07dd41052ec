// Tensors as text, and to and from .npy files.

#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include <thimble/core/files/npy.h>
#include <thimble/core/files/printable.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/ops/text.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/skip.h"

using namespace thimble;

namespace {

Tensor make(const std::vector<double>& values, const Shape& shape, DType dtype) {
  return to_dtype(from_host(values, shape), dtype);
}

bool is_same(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  if (a.elements() == 0) return true;
  const Tensor da = contiguous(a), db = contiguous(b);
  return std::memcmp(memory::Pin(da).data(), memory::Pin(db).data(), da.bytes()) == 0;
}

// Arrays of many magnitudes, in every shape with a layout of another kind.
std::vector<Tensor> many() {
  RandomGenerator generator(17);
  const GeneratorScope draws(generator);
  std::vector<Tensor> list;
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::i64, DType::i32, DType::i8, DType::boolean}) {
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{7}, Shape{60}, Shape{3, 4}, Shape{2, 3, 4}, Shape{2, 1, 2, 3},
                               Shape{0}, Shape{2, 0, 3}, Shape{1000}, Shape{1001}, Shape{40, 40}, Shape{3, 500},
                               Shape{4, 7, 6, 8}, Shape{1, 1200}, Shape{1200, 1}}) {
      for (int repeat = 0; repeat < 2; ++repeat) {
        const double scale = std::array{1.0, 1e-6, 300.0, 1e6, 1e9}[list.size() % (dtype == DType::f16 ? 3 : 5)];
        std::vector<double> values = to_host<double>(randn(shape, DType::f64));
        for (double& v : values) {
          v *= is_floating(dtype) ? scale : std::min(scale, 40.0);
          if (list.size() % 3 == 0) v = std::round(v * 4) / 4;
          if (dtype == DType::boolean) v = v > 0;
        }
        if (is_floating(dtype) && list.size() % 4 == 1 && values.size() > 3) {
          values[1] = NAN;
          values[2] = list.size() % 8 == 1 ? INFINITY : -INFINITY;
          values[3] = -0.0;
        }
        list.push_back(make(values, shape, dtype));
      }
    }
  }
  return list;
}

}  // namespace

TEST_CASE("tensor: a shape takes as many values as it has elements", "[tensor]") {
  CHECK_THROWS_WITH(from_host(std::vector<float>{1, 2, 3}, {2, 2}), "from_host: 3 values for shape (2, 2)");
}

TEST_CASE("tensor text: is NumPy's", "[text]") {
  struct Row {
    Tensor t;
    const char* text;
  };
  const double nan = NAN, infinity = INFINITY;
  const Tensor grid = arange(24);
  for (const Row& row : std::vector<Row>{
           {full({}, 2.5), "2.5"},
           {full({}, -7, DType::i32), "-7"},
           {full({}, 1, DType::boolean), "True"},
           {make({1, 2.5, -3}, {3}, DType::f32), "[ 1.   2.5 -3. ]"},
           {make({0.1, 0.2}, {2}, DType::f64), "[0.1 0.2]"},
           {make({0.1, 0.2}, {2}, DType::f32), "[0.1 0.2]"},
           {make({1.0 / 3, 100}, {2}, DType::f64), "[  0.33333333 100.        ]"},
           {make({1.0 / 3}, {1}, DType::f32), "[0.33333334]"},
           {make({1, 1e-5}, {2}, DType::f64), "[1.e+00 1.e-05]"},
           {make({1e8, 1}, {2}, DType::f64), "[1.e+08 1.e+00]"},
           {make({1e-300, 1}, {2}, DType::f64), "[1.e-300 1.e+000]"},
           {make({123456, 1e6}, {2}, DType::f32), "[1.23456e+05 1.00000e+06]"},
           // Both sides of each border between the two forms.
           {make({1, 1000}, {2}, DType::f64), "[   1. 1000.]"},
           {make({1, 1000.5}, {2}, DType::f64), "[1.0000e+00 1.0005e+03]"},
           {make({-1, 0, 1000}, {3}, DType::f32), "[  -1.    0. 1000.]"},
           {make({0.5, 500}, {2}, DType::f16), "[  0.5 500. ]"},
           {make({0.5, 500.5}, {2}, DType::f16), "[5.000e-01 5.005e+02]"},
           {make({99999999}, {1}, DType::f64), "[99999999.]"},
           {make({1e8}, {1}, DType::f64), "[1.e+08]"},
           {make({999999}, {1}, DType::f32), "[999999.]"},
           {make({1e6}, {1}, DType::f32), "[1.e+06]"},
           {make({999}, {1}, DType::f16), "[999.]"},
           {make({1000}, {1}, DType::f16), "[1.e+03]"},
           {make({1e-4}, {1}, DType::f64), "[0.0001]"},
           {make({1e-4}, {1}, DType::f32), "[0.0001]"},
           {make({1e-4}, {1}, DType::f16), "[0.0001]"},
           {make({9.9e-5}, {1}, DType::f64), "[9.9e-05]"},
           {make({nan, 1.5, -infinity, infinity}, {4}, DType::f32), "[ nan  1.5 -inf  inf]"},
           {make({nan, nan}, {2}, DType::f32), "[nan nan]"},
           {make({0, -0.0}, {2}, DType::f32), "[ 0. -0.]"},
           {make({1, 0, 1}, {3}, DType::boolean), "[ True False  True]"},
           {make({1, 1}, {2}, DType::boolean), "[ True  True]"},
           {make({-128, 5}, {2}, DType::i8), "[-128    5]"},
           {view::reshape(grid, {2, 3, 4}),
            "[[[ 0  1  2  3]\n  [ 4  5  6  7]\n  [ 8  9 10 11]]\n\n [[12 13 14 15]\n  [16 17 18 19]\n  [20 21 22 "
            "23]]]"},
           {view::transpose(view::reshape(view::slice(grid, 0, 0, 6), {2, 3})), "[[0 3]\n [1 4]\n [2 5]]"},
           {view::slice(grid, 0, 1, 24, 9), "[ 1 10 19]"},
           {view::expand(full({1}, 0.5), {2, 2}), "[[0.5 0.5]\n [0.5 0.5]]"},
           {Tensor::empty({0}), "[]"},
           {Tensor::empty({3, 0}), "[]"},
           {arange(1000 + 1), "[   0    1    2 ...  998  999 1000]"},
           {view::reshape(arange(2000), {1000, 2}),
            "[[   0    1]\n [   2    3]\n [   4    5]\n ...\n [1994 1995]\n [1996 1997]\n [1998 1999]]"},
           // Dtypes that NumPy lacks: the fewest digits that tell a value from its neighbours.
           {make({0.1, 3}, {2}, DType::bf16), "[0.1 3. ]"},
           {make({0.1, 0.3, 448}, {3}, DType::f8e4m3), "[1.0e-01 3.1e-01 4.5e+02]"},
           {make({0.1, 2, infinity}, {3}, DType::f8e5m2), "[0.09 2.    inf]"},
           {make({65504, 1}, {2}, DType::f16), "[6.55e+04 1.00e+00]"},
       }) {
    CHECK(to_text(row.t) == row.text);
  }
  std::string lines;  // 75 characters at most
  for (int i = 0; i < 60; ++i)
    lines += (i == 0 ? "[" : i % 24 == 0 ? "\n " : " ") + std::string(i < 10 ? " " : "") + std::to_string(i);
  CHECK(to_text(arange(60)) == lines + "]");
  CHECK(to_text(arange(1001), 1) == "[   0 ... 1000]");
  CHECK(to_text(arange(1000), 1).find("...") == std::string::npos);
  CHECK(to_text(full({40}, 7, DType::i32)).find('\n') == 74);  // 37 digits, each after '[' or a space
  // An axis of twice the edge is printed whole.
  CHECK(to_text(view::reshape(arange(1002), {2, 501}), 1) == "[[   0 ...  500]\n [ 501 ... 1001]]");
  CHECK(to_text(view::reshape(arange(1002), {3, 334}), 1) == "[[   0 ...  333]\n ...\n [ 668 ... 1001]]");
  CHECK(to_text(view::reshape(arange(1004), {251, 4}), 2) ==
        "[[   0    1    2    3]\n [   4    5    6    7]\n ...\n [ 996  997  998  999]\n [1000 1001 1002 1003]]");
}

TEST_CASE("device text: there and back, and nothing else", "[text]") {
  for (const memory::Device device : {cpu, cuda(0), cuda(7), cuda(99), dry(cpu), dry(cuda(0)), dry(cuda(12))}) {
    CHECK(parse_device(to_string(device)) == device);
  }
  CHECK(parse_device("cuda") == cuda(0));
  CHECK(parse_device("dry(cuda)") == dry(cuda(0)));
  for (const char* const text : {"", "CPU", "cpu ", "cpu:0", "cuda:", "cuda:100", "cuda:-1", "cuda:1a", "cuda:1/",
                                 "dry", "dry()", "dry(cpu", "dry(dry(cpu))", "dry(mps)"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_device(text), ValueError);
  }
}

TEST_CASE("tensor text: agrees with NumPy on many arrays", "[text][oracle]") {
  if (std::getenv("THIMBLE_PYTHON") == nullptr) {
    thimble_test::skip("THIMBLE_PYTHON does not name a Python with numpy");
    return;
  }
  const files_test::TemporaryFolder folder;
  const std::vector<Tensor> list = many();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string name = folder / std::to_string(i);
    save_npy(name + ".npy", list[i]);
    files_test::write_text_file(name + ".txt", to_text(list[i]));
  }
  const int status = files_test::run_oracle("text_check.py", "'" + folder.path() + "'");
  if (status == 77) {
    thimble_test::skip("THIMBLE_PYTHON does not name a Python with numpy 2.4 or later");
    return;
  }
  CHECK(status == 0);
}

TEST_CASE("tensor text: what has no values is refused", "[text]") {
  const Tensor on_dry = zeros({2, 3}, DType::f32, dry(cpu));
  CHECK_THROWS_AS(to_text(on_dry), DeviceError);
  CHECK_THROWS_AS(to_text(arange(3), 0), ValueError);
  CHECK_THROWS_AS(to_text(arange(3), -1), ValueError);
  CHECK(to_text(Tensor()) == "undefined tensor");
}

TEST_CASE("tensor npy: out and in again, in every dtype and layout", "[files][npy]") {
  const files_test::TemporaryFolder folder;
  const std::string path = folder / "a.npy";
  for (int d = 0; d < dtype_count; ++d) {
    const auto dtype = static_cast<DType>(d);
    INFO(to_string(dtype));
    std::vector<double> values(60);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = dtype == DType::boolean ? double(i % 3 == 0) : double(i);
    const Tensor whole = make(values, {3, 4, 5}, dtype);
    if (dtype == DType::bf16 || dtype == DType::f8e4m3 || dtype == DType::f8e5m2) {
      CHECK_THROWS_AS(save_npy(path, whole), DTypeError);
      continue;
    }
    for (const Tensor& t : {whole, view::transpose(whole, 0, 2), view::slice(whole, 1, 1, 4, 2),
                            view::expand(view::slice(whole, 0, 2, 3), {2, 4, 5}),
                            view::reshape(view::slice(view::reshape(whole, {60}), 0, 7, 8), {}),
                            Tensor::empty({0}, dtype), Tensor::empty({2, 0, 3}, dtype)}) {
      save_npy(path, t);
      CHECK(read_npy(path).shape == std::vector<std::int64_t>(t.shape().begin(), t.shape().end()));
      const Tensor back = load_npy(path);
      CHECK(is_same(back, t));
      CHECK(back.is_contiguous());
      const Tensor imagined = load_npy(path, dry(cpu));
      CHECK(imagined.shape() == t.shape());
      CHECK(imagined.dtype() == dtype);
      CHECK(imagined.device() == dry(cpu));
    }
  }
  CHECK(folder.entries() == 1);
}

TEST_CASE("tensor npy: bytes are booked, and what cannot be written is refused", "[files][npy]") {
  const files_test::TemporaryFolder folder;
  const std::string path = folder / "a.npy";
  {
    Tensor leaf = full({10, 10}, 3);
    leaf.require_grad();
    save_npy(path, leaf);
  }
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope on(stack.top);
  {
    const Tensor t = load_npy(path);
    CHECK(stack.ledger->bytes(memory::Category::input) == 400);
    CHECK_FALSE(t.requires_grad());
    const Tensor p = load_npy(path, cpu, memory::Category::parameter);
    CHECK(stack.ledger->bytes(memory::Category::parameter) == 400);
  }
  CHECK(stack.ledger->bytes() == 0);
  CHECK_THROWS_AS(save_npy(path, zeros({2}, DType::f32, dry(cpu))), DeviceError);
  {
    Tensor scaled = full({2}, 3, DType::i8);
    scaled.set_scale(full({1}, 0.5));
    CHECK_THROWS_AS(save_npy(path, scaled), DTypeError);
  }
  CHECK_THROWS_AS(load_npy(folder / "nothing.npy"), FileError);
  CHECK_THROWS_AS(save_npy(folder / "no folder/a.npy", zeros({2})), FileError);
  files_test::write_text_file(path, "neither");
  CHECK_THROWS_AS(load_npy(path), FileError);
  CHECK(stack.ledger->bytes() == 0);
}

// ---- Text of unknown origin, made safe for a terminal.

using thimble::printable;

TEST_CASE("printable: text stays, what a terminal obeys is escaped", "[printable]") {
  CHECK(printable("plain, with 100 %") == "plain, with 100 %");
  CHECK(printable("\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80") == "\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80");
  CHECK(printable("\x1B[31mred\x07") == "\\x1b[31mred\\x07");
  CHECK(printable(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(printable("a\nb\tc\r") == "a\\x0ab\\x09c\\x0d");
  CHECK(printable("a\nb\tc\r", "\n\t") == "a\nb\tc\\x0d");
  CHECK(printable("\x7F") == "\\x7f");
  CHECK(printable("\xC2\x9B"
                  "31m") == "\\xc2\\x9b31m");                      // U+009B begins a sequence as ESC [ does
  CHECK(printable("\x9B") == "\\x9b");                             // not UTF-8
  CHECK(printable("\xC3") == "\\xc3");                             // cut off
  CHECK(printable("\xC0\xAF") == "\\xc0\\xaf");                    // longer than necessary
  CHECK(printable("\xED\xA0\x80") == "\\xed\\xa0\\x80");           // a surrogate
  CHECK(printable("\xF4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");  // above U+10FFFF
  CHECK(printable("\x1F\xC2\x9F") == "\\x1f\\xc2\\x9f");           // the last controls
  // The first and the last character of each length, and the neighbours of the surrogates.
  for (const char* const text : {" ", "~", "\xC2\xA0", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                                 "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    CHECK(printable(text) == text);
  }
}
