// Shards of tensors and whole tensors in files: where elements lie, assembly in any order, and shards read from a file.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/files/cut_tensors.h>
#include <thimble/nn/parallel/shards.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/tensor_files.h"

using namespace thimble;
using files_test::TemporaryFolder;

namespace {

struct Cut {
  Shape whole;
  int axis;
  std::int64_t parts, projections;
};

const std::vector<Cut> cuts{{{12, 5}, 0, 3, 1}, {{5, 12}, 1, 2, 1},   {{4, 24}, 1, 4, 3}, {{24, 4}, 0, 2, 3},
                            {{36}, 0, 2, 3},    {{6, 4, 5}, 1, 2, 2}, {{8}, 0, 1, 1}};

/// Flat indices in the whole tensor of the elements of shard `part`, in the shard's order, by hand.
std::vector<std::int64_t> elements_of(const Cut& cut, std::int64_t part) {
  std::vector<std::int64_t> list;
  const std::int64_t projection = cut.whole[cut.axis] / cut.projections, each = projection / cut.parts;
  for (std::int64_t i = 0; i < cut.whole.elements(); ++i) {
    std::int64_t at = i;
    for (int axis = cut.whole.rank() - 1; axis > cut.axis; --axis) at /= cut.whole[axis];
    if (at % cut.whole[cut.axis] % projection / each == part) list.push_back(i);
  }
  return list;
}

/// Shard `part` of a whole tensor that holds 0, 1, ...
Tensor part_values(const Cut& cut, std::int64_t part) {
  const std::vector<std::int64_t> elements = elements_of(cut, part);
  return from_host(elements, {static_cast<std::int64_t>(elements.size())});
}

struct Net final : nn::Module {
  Net(const std::string& name, std::int64_t part) {
    nn::LinearOptions options;
    options.deviation = 0.1;
    child<nn::LinearShard>(name, 6, 8, nn::TensorOptions{}, options, nn::LinearShard::Cut{.shards = 2, .index = part});
  }
};

}  // namespace

TEST_CASE("cut tensors: where an element of a part lies", "[cut_tensors]") {
  for (const Cut& cut : cuts) {
    for (std::int64_t p = 0; p < cut.parts; ++p) {
      const nn::init::ShardOf shard{cut.whole, cut.axis, cut.parts, p, cut.projections};
      const std::vector<std::int64_t> expected = elements_of(cut, p);
      REQUIRE(shard.shape().elements() == static_cast<std::int64_t>(expected.size()));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CHECK(shard.in_whole(static_cast<std::int64_t>(i)) == expected[i]);
      }
    }
  }
}

TEST_CASE("cut tensors: parts come together in any order and in any pieces", "[cut_tensors]") {
  for (const std::int64_t step : {1, 3, 7, 100}) {
    for (const Cut& cut : cuts) {
      const memory::Stack stack = memory::make_resource(cpu);
      const ResourceScope scope(stack.top);
      std::vector<std::int64_t> whole;
      const auto append = [&](const nn::NamedTensor& t) {
        CHECK(t.name == "w");
        CHECK(t.tensor.shape() == cut.whole);
        REQUIRE(whole.empty());  // called once
        whole = to_host<std::int64_t>(t.tensor);
      };
      nn::Assembly assembly(append);
      for (std::int64_t p = cut.parts - 1; p >= 0; --p) {
        const Tensor values = part_values(cut, p);
        for (std::int64_t first = 0; first < values.elements(); first += step) {
          CHECK(whole.empty());
          const std::int64_t end = std::min(first + step, values.elements());
          assembly.put({{"w", nn::outline(cut.whole, DType::i64)},
                        view::slice(values, 0, first, end),
                        nn::init::ShardOf{cut.whole, cut.axis, cut.parts, p, cut.projections},
                        first});
        }
      }
      REQUIRE(static_cast<std::int64_t>(whole.size()) == cut.whole.elements());
      for (std::size_t i = 0; i < whole.size(); ++i) CHECK(whole[i] == static_cast<std::int64_t>(i));
      CHECK(stack.ledger->max_allocated(memory::Category::communication) == whole.size() * 8);
      CHECK(stack.ledger->bytes(memory::Category::communication) == 0);
    }
  }
}

TEST_CASE("cut tensors: a part is read out of a file, from any element on, converted", "[cut_tensors]") {
  const TemporaryFolder folder;
  std::vector<Cut> all = cuts;
  all.push_back({{300, 700}, 1, 2, 1});  // more than one block of a file
  all.push_back({{700, 300}, 0, 2, 1});
  for (const Cut& cut : all) {
    const Tensor whole = view::reshape(to_dtype(arange(cut.whole.elements()), DType::f32), cut.whole);
    nn::write_tensor_file(folder / "file", {{"w", whole}}, {});
    const SafetensorsReader file(folder / "file");
    nn::FileStaging staging;
    for (std::int64_t p = 0; p < cut.parts; ++p) {
      const nn::init::ShardOf shard{cut.whole, cut.axis, cut.parts, p, cut.projections};
      const std::vector<std::int64_t> expected = elements_of(cut, p);
      const auto count = static_cast<std::int64_t>(expected.size());
      for (const auto& [first, end] : {std::pair<std::int64_t, std::int64_t>{0, count},
                                       {1, count},
                                       {2, count - 1},
                                       {count / 2, count / 2 + 1},
                                       {0, 0}}) {
        if (first > end) continue;
        for (const DType dtype : {DType::f32, DType::f64}) {
          const Tensor own = zeros({end - first}, dtype);
          nn::read_file_tensor(file, file.entry("w"),
                               nn::FileTensor{{"w", nn::outline(cut.whole, dtype)}, own, shard, first}, staging);
          const std::vector<double> read = to_host<double>(to_dtype(own, DType::f64));
          bool is_same = true;
          for (std::int64_t i = first; i < end; ++i) {
            is_same = is_same && read[static_cast<std::size_t>(i - first)] ==
                                     static_cast<double>(expected[static_cast<std::size_t>(i)]);
          }
          CHECK(is_same);
        }
      }
    }
  }
}

TEST_CASE("cut tensors: a module names what its parts are of", "[cut_tensors]") {
  const Net net("fc.1", 1);
  const nn::CutParameters found(net);
  REQUIRE(found.find("fc.1.weight") != nullptr);
  CHECK(found.find("fc.1.weight")->whole == "fc.weight");
  CHECK(found.find("fc.1.weight")->shard.whole == Shape{8, 6});
  CHECK(found.find("fc.1.bias")->whole == "fc.bias");
  CHECK(found.find("fc.1.bias")->shard.whole == Shape{8});
  CHECK(found.find("fc.weight") == nullptr);
  const nn::Named moment{"fc.1.weight.first_moment", zeros({4, 6})}, rows{"fc.1.weight.row_moment", zeros({4})};
  const nn::FileTensor state = found.of_state(moment);
  CHECK(state.whole.name == "optimizer.fc.weight.first_moment");
  CHECK(state.whole.tensor.shape() == Shape{8, 6});
  CHECK(files_test::error_of([&] { found.of_state(rows); }) ==
        "ShapeError files: state 'fc.1.weight.row_moment' has 4 elements for a shard of a parameter with 24; expected "
        "one for "
        "each");
  CHECK(files_test::error_of([&] { nn::CutParameters(Net("fc", 1)); }) ==
        "ValueError files: 'fc.weight' is of shard 1 of a layer; expected a module named by that number");
  CHECK(nn::CutParameters(nn::Linear(2, 3)).empty());
}
