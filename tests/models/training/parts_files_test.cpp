// Checkpoints of models with sharded blocks match whole models' checkpoints, whichever ranks have the shards.

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/dist/threads.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/files/weights.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/part_layouts.h"
#include "support/sanitizer.h"
#include "support/tensor_bytes.h"
#include "support/tensor_files.h"

using namespace thimble;
using files_test::read_text_file;
using files_test::TemporaryFolder;
using testing::Layout;
using testing::load;
using testing::on_ranks;
using testing::options_of;
using testing::save;
using testing::setup_of;
using testing::train;
using testing::width;

namespace {

/// Assembles a file's tensors by hand from the ranks' shards.
class ByHand {
 public:
  ByHand(const std::string& path, int parts) : file_(path), parts_(parts) {
    for (const SafetensorsEntry& entry : file_.header().tensors) {
      read_[entry.name].resize(entry.bytes());
      file_.read(entry, read_[entry.name]);
      made_[entry.name].assign(entry.bytes(), std::byte{0});
      filled_[entry.name].assign(entry.bytes(), false);
    }
  }

  /// Writes elements of `own`, a parameter or its state, from `first` on. Thread-safe. Throws ValueError
  /// if the file lacks them.
  void put(const std::string& own, std::int64_t first, const Tensor& values) {
    const std::lock_guard lock(mutex_);
    const auto [name, part] = place_of(own);
    if (made_.count(name) != 1) throw ValueError(own + ": the file has no " + name);
    const std::vector<std::byte> bytes = testing::bytes_of(values);
    const std::size_t size = size_of(values.dtype());
    for (std::int64_t i = 0; i < values.elements(); ++i) {
      const std::size_t at = static_cast<std::size_t>(part < 0 ? first + i : in_whole(name, part, first + i)) * size;
      if (at + size > made_[name].size()) throw ValueError(own + ": the file's " + name + " is smaller");
      std::memcpy(made_[name].data() + at, bytes.data() + static_cast<std::size_t>(i) * size, size);
      for (std::size_t k = 0; k < size; ++k) filled_[name][at + k] = true;
    }
  }
  void check() const {
    for (const auto& [name, bytes] : made_) {
      INFO(name);
      CHECK(std::count(filled_.at(name).begin(), filled_.at(name).end(), false) == 0);
      CHECK((bytes == read_.at(name)));
    }
  }

 private:
  /// "h.0.attn.c_attn.1.weight" -> shard 1 of "h.0.attn.c_attn.weight"; a shard < 0 means the whole tensor.
  static std::pair<std::string, int> place_of(const std::string& own) {
    for (const char* const layer : {"c_attn", "c_fc", "c_proj", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                    "up_proj", "down_proj", "wte", "embed_tokens", "lm_head"}) {
      const std::size_t at = own.find(layer);
      if (at == std::string::npos) continue;
      const std::size_t dot = at + std::strlen(layer), end = own.find('.', dot + 1);
      const std::string number = own.substr(dot + 1, end - dot - 1);
      if (number.find_first_not_of("0123456789") != std::string::npos) break;  // a bias after a sum
      return {own.substr(0, dot) + own.substr(end), std::stoi(number)};
    }
    return {own, -1};
  }
  /// The index in the whole tensor of a shard's element.
  std::int64_t in_whole(const std::string& name, int part, std::int64_t own) const {
    const auto is = [&](const char* layer) { return name.find(layer) != std::string::npos; };
    const std::vector<std::int64_t>& shape = file_.entry(name).shape;
    const std::int64_t rows = shape.size() == 2 ? shape[0] : 1, columns = shape.back();
    const std::int64_t of_part = columns / parts_, row = own / of_part, column = own % of_part;
    if (is("c_fc") || is("o_proj") || is("down_proj")) return row * columns + part * of_part + column;
    if (!is("c_attn")) return part * rows / parts_ * columns + own;  // whole rows
    const std::int64_t third = of_part / 3;                          // queries, keys, values next to each other
    return row * columns + column / third * (columns / 3) + part * third + column % third;
  }

  SafetensorsReader file_;
  int parts_;
  std::mutex mutex_;
  std::map<std::string, std::vector<std::byte>> read_, made_;
  std::map<std::string, std::vector<bool>> filled_;
};

/// Writes the checkpoint of a run of `model` in `layout`.
void write(const std::string& model, const Layout& layout, const std::string& path, const std::string& precision = {}) {
  on_ranks(setup_of(model, layout, precision), [&](models::TrainedParts& parts, const models::Setup& setup) {
    train(parts, setup, 2);
    save(parts, setup, path, {{"note", "of a run"}});
  });
}

std::string why(const std::function<void()>& f) {
  try {
    return files_test::error_of(f);
  } catch (const RankError&) {
    throw;
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("parts in files: a checkpoint has what ranks have, put together by hand", "[parts_files]") {
  const TemporaryFolder folder;
  const std::string model = GENERATE("char-gpt", "tiny-llama"), precision = GENERATE("", "O2");
  const Layout layout = GENERATE(Layout{2, 1}, Layout{2, 2}, Layout{2, 4, 1}, Layout{2, 4, 2}, Layout{2, 4, 3},
                                 Layout{4, 4}, Layout{4, 8, 3});
  INFO(model << " " << precision << ", " << layout.text());
  const std::string path = folder / "file";
  std::unique_ptr<ByHand> expected;
  on_ranks(setup_of(model, layout, precision), [&](models::TrainedParts& parts, const models::Setup& setup) {
    train(parts, setup, 2);
    save(parts, setup, path);
    if (setup.layout.rank == 0) expected = std::make_unique<ByHand>(path, layout.tp);
    if (parts.ranks != nullptr) parts.ranks->barrier();
    {
      const ParameterUse use;
      for (const nn::NamedTensor& p : parts.model->parameters()) {
        fetch_parameters(p.tensor);
        expected->put("model." + p.name, 0, p.tensor.detach());
      }
    }
    parts.optimizer->each_state([&](std::span<const optim::Named> state) {
      for (const optim::Named& s : state) expected->put("optimizer." + s.name, s.first_element, s.tensor);
    });
  });
  expected->check();
  // Names and shapes match a whole model's.
  write(model, {1, 1}, folder / "whole", precision);
  const SafetensorsReader whole(folder / "whole"), own(path);
  REQUIRE(whole.header().tensors.size() == own.header().tensors.size());
  for (std::size_t i = 0; i < whole.header().tensors.size(); ++i) {
    SafetensorsEntry a = whole.header().tensors[i], b = own.header().tensors[i];
    a.crc32c = b.crc32c = {};
    CHECK(a == b);
  }
}

TEST_CASE("parts in files: any layout reads a file and writes it again, byte by byte", "[parts_files]") {
  const TemporaryFolder folder;
  const auto [model, precision] = GENERATE(testing::table_rows<std::pair<std::string, std::string>>(
      {{"char-gpt", ""}, {"char-gpt", "O2"}, {"tiny-llama", "bf16"}, {"bert-base", ""}, {"vit-b16", "O1"}}));
  const Layout from = GENERATE(Layout{2, 1}, Layout{2, 4, 2}, Layout{1, 1});
  INFO(model + " " + precision + ", from " + from.text());
  write(model, from, folder / "file", precision);
  const std::string file = read_text_file(folder / "file");
  for (const Layout& to : {Layout{1, 1}, Layout{1, 2, 3}, Layout{2, 1}, Layout{2, 2}, Layout{2, 4, 1}, Layout{4, 1},
                           Layout{4, 4}, Layout{4, 8, 3}, Layout{2, 4, 3}}) {
    INFO("to " << to.text());
    on_ranks(setup_of(model, to, precision), [&](models::TrainedParts& parts, const models::Setup& setup) {
      const nn::Metadata metadata = load(parts, setup, folder / "file");
      save(parts, setup, folder / "again", metadata);
    });
    CHECK((read_text_file(folder / "again") == file));
  }
}

TEST_CASE("parts in files: the room in which parts come together is known, and dry", "[parts_files]") {
  const Layout layout = GENERATE(Layout{2, 1}, Layout{4, 1}, Layout{2, 2}, Layout{4, 4}, Layout{2, 4, 1},
                                 Layout{2, 4, 3}, Layout{4, 8, 2});
  INFO(layout.text());
  const TemporaryFolder folder;
  const auto communication = [](const memory::Stack& stack) {
    return static_cast<std::int64_t>(stack.ledger->max_allocated(memory::Category::communication));
  };
  std::vector<std::int64_t> measured(static_cast<std::size_t>(layout.ranks));
  const auto measure = [&](models::Setup setup, dist::Communicator* ranks) {
    const memory::Stack stack = memory::make_resource(cpu);
    const ResourceScope scope(stack.top);
    models::TrainedParts parts(setup, cpu, ranks);
    save(parts, setup, folder / "file");
    measured[static_cast<std::size_t>(setup.layout.rank)] = communication(stack);
  };
  models::Setup setup = setup_of("char-gpt", layout);
  if (layout.ranks == 1) {
    measure(setup, nullptr);
  } else {
    dist::run_ranks(layout.ranks, [&](dist::Communicator& ranks) {
      models::Setup own = setup;
      own.layout.rank = ranks.rank();
      measure(own, &ranks);
    });
  }
  for (setup.layout.rank = 0; setup.layout.rank < layout.ranks; ++setup.layout.rank) {
    const memory::Stack stack = memory::make_resource(dry(cpu));
    const ResourceScope scope(stack.top);
    models::TrainedParts parts(setup, dry(cpu));
    if (parts.parallel) {
      nn::visit_save(*parts.model, *parts.parallel, *parts.optimizer, models::whole_state(setup, cpu));
    } else {
      nn::visit_save(*parts.model, *parts.optimizer);
    }
    INFO("rank " << setup.layout.rank);
    CHECK(communication(stack) == measured[static_cast<std::size_t>(setup.layout.rank)]);
  }
  // Two moments of the largest layer: its bias too on one rank, which takes shards one by one; a shard too in a group.
  const std::int64_t weight = width * 4 * width, bias = 4 * width;
  if (layout.ranks == 1) CHECK(measured[0] == 2 * 4 * (weight + bias));
  if (layout.ranks == layout.tp && layout.tp > 1) CHECK(measured[0] == 2 * 4 * (weight + weight / layout.tp));
  if (layout.zero == 0) CHECK(std::count(measured.begin() + 1, measured.end(), 0) == layout.ranks - 1);
}

TEST_CASE("parts in files: a checkpoint that cannot be written is said on all ranks, which go on", "[parts_files]") {
  const TemporaryFolder folder;
  const Layout layout = GENERATE(Layout{2, 2}, Layout{2, 4, 3});
  std::mutex mutex;
  std::vector<std::string> said;
  on_ranks(setup_of("char-gpt", layout), [&](models::TrainedParts& parts, const models::Setup& setup) {
    train(parts, setup, 1);
    for (const bool is_weights : {false, true}) {
      const std::string error = why([&] {
        is_weights ? nn::save_weights(folder / "none/file", *parts.model, *parts.parallel)
                   : save(parts, setup, folder / "none/file");
      });
      const std::lock_guard lock(mutex);
      said.push_back(error);
    }
    train(parts, setup, 1);
    save(parts, setup, folder / "file");
  });
  REQUIRE(said.size() == 2 * static_cast<std::size_t>(layout.ranks));
  for (const std::string& text : said) CHECK(text.find("none/file") != std::string::npos);
  CHECK_NOTHROW(SafetensorsReader(folder / "file"));
}

TEST_CASE("parts in files: what cannot be is refused by name", "[parts_files]") {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::function<void(models::RunOptions&)>& change) {
    models::RunOptions options = options_of("char-gpt", {2, 1});
    options.steps = 4;
    change(options);
    return why([&] { models::Engine(options).plan(); });
  };
  CHECK(refusal([](auto& o) { o.sample = 5; }) == "ValueError `tp`: 2 with `sample`; expected `tp` 1, or `sample` 0");
  const std::string allowed = " is not cut as parameters are; expected sgd, momentum, adam or adamw, with `state` f32";
  CHECK(refusal([&](auto& o) { o.save = folder / "a", o.setup.optimizer.name = "adafactor"; }) ==
        "ValueError `tp`: 2 with `save`: the state of adafactor" + allowed);
  CHECK(refusal([&](auto& o) { o.save = folder / "a", o.setup.optimizer.name = "adamw8"; }) ==
        "ValueError `tp`: 2 with `save`: the state of adamw8 in u8" + allowed);
  CHECK(refusal([&](auto& o) { o.resume = folder / "a", o.setup.optimizer.state = DType::bf16; }) ==
        "ValueError `tp`: 2 with `resume`: the state of adamw in bf16" + allowed);
  CHECK(refusal([&](auto& o) { o.save_weights = folder / "a", o.setup.optimizer.name = "adamw8"; }) == "no error");
  // The library refuses this itself, on one rank and on several.
  for (const Layout& layout : {Layout{2, 1}, Layout{2, 2}}) {
    models::Setup setup = setup_of("char-gpt", layout);
    setup.optimizer.name = "adafactor";
    std::vector<std::string> errors(static_cast<std::size_t>(layout.ranks));
    on_ranks(setup, [&](models::TrainedParts& parts, const models::Setup& own) {
      errors[static_cast<std::size_t>(own.layout.rank)] = why([&] { save(parts, own, folder / "file"); });
    });
    for (const std::string& error : errors) {
      CHECK(error.find("ShapeError ") == 0);
      CHECK(error.find("one for each") != std::string::npos);
    }
  }
  CHECK(folder.entries() == 0);
  const std::unique_ptr<models::Model> cut = [] {
    models::ModelOptions sizes = setup_of("char-gpt", {2, 1}).sizes;
    sizes.group.shards = 2;
    return models::make_model("char-gpt", sizes);
  }();
  CHECK(why([&] {
          nn::save_weight_folder(*cut, folder / "b", 1 << 20);
        }).find("ValueError save_weight_folder: of a model in shards") == 0);
  // A file of another width: the error has the whole tensor's name and shapes.
  models::ModelOptions narrow = setup_of("char-gpt", {1, 1}).sizes;
  narrow.width = 24;
  nn::save_weights(*models::make_model("char-gpt", narrow), folder / "narrow");
  const std::string error = why([&] { nn::load_weights(*cut, folder / "narrow"); });
  CHECK(error.find("ShapeError load_weights: ") == 0);
  narrow.width = width, narrow.layers = 1;
  nn::save_weights(*models::make_model("char-gpt", narrow), folder / "short");
  CHECK(why([&] { nn::load_weights(*cut, folder / "short"); }).find("the file lacks 'h.1.") != std::string::npos);
}
