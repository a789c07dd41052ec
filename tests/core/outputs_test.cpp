// Outputs that are refused before any work, and accepted ones. Existing files stay unchanged either way.

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/outputs.h>
#include <thimble/memory/placement/csv.h>
#include <thimble/nn/data/tokens.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/lora/adapter_files.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/files.h"

using namespace thimble;
using files_test::read_text_file;
using files_test::TemporaryFolder;

namespace {

/// Why the outputs are refused; empty if they are accepted.
std::string refusal(const std::vector<files::Output>& outputs, const std::vector<files::Input>& inputs,
                    bool overwrites = false) {
  try {
    check_outputs(outputs, inputs, overwrites);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "";
}

struct Net final : nn::Module {
  Net() : a(child<nn::Linear>("a", 4, 4)) {}
  nn::Linear& a;
};

}  // namespace

TEST_CASE("outputs: no input, no other output", "[file]") {
  const TemporaryFolder folder;
  namespace fs = std::filesystem;
  const std::string in = folder / "in", out = folder / "out", table = "id,lower,upper,size\n";
  write_file_atomically(in, table);
  write_file_atomically(out, table);
  fs::create_directory(folder / "sub");
  write_file_atomically(folder / "sub/model-1.safetensors", table);
  write_file_atomically(folder / "sub/adapter_model.safetensors", table);
  write_file_atomically(folder / "sub/base.safetensors", table);
  write_file_atomically(folder / "sub/model.json", table);
  write_file_atomically(folder / "sub/page", table);
  write_file_atomically(folder / "sub/data", "data");
  fs::create_symlink(in, folder / "link");
  REQUIRE(::link(in.c_str(), (folder / "hard").c_str()) == 0);
  fs::create_directory_symlink(folder / "sub", folder / "other_sub");
  const std::string is_read = "--out: expected a file that is not read, got ",
                    twice = "--b: expected one output in a file, got ";
  struct Row {
    std::string output, second, input, text;
  };
  const std::vector<Row> rows{
      {out, "", in, ""},
      {folder / "new", folder / "new2", in, ""},
      {"", "", in, ""},
      {out, "", "", ""},
      {in, "", in, is_read},
      {folder / "link", "", in, is_read},
      {folder / "hard", "", in, is_read},
      {in, "", folder / "link", is_read},
      {folder / "sub/../in", "", in, is_read},
      {folder / "sub/model-1.safetensors", "", folder / "sub", is_read},
      {folder / "other_sub/model-1.safetensors", "", folder / "sub", is_read},
      {folder / "sub/adapter_model.safetensors", "", folder / "sub", is_read},
      {folder / "sub/base.safetensors", "", folder / "sub", ""},
      {folder / "sub/model.json", "", folder / "sub", is_read},
      {folder / "sub/data", "", folder / "sub", is_read},  // even with overwrites
      {folder / "sub/page", "", folder / "sub", ""},       // ours, from an earlier run
      {folder / "sub/new", "", folder / "sub", ""},
      {out, out, in, twice},
      {folder / "new", folder / "new", in, twice},
      {folder / "new", folder / "sub/../new", in, twice},
      {folder / "sub/new", folder / "other_sub/new", in, twice},
      {"new", "./new", in, twice},  // relative, and not there yet
      {"new", "sub/../new", in, twice},
      {"new", folder / "new", in, twice},
      {"./in", "", in, is_read},
      {out, folder / "hard", "", ""},
      {in, folder / "hard", "", twice},
  };
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  for (const Row& row : rows) {
    INFO(row.output << ", " << row.second << ", " << row.input);
    for (const bool overwrites : {false, true}) {
      const std::string text =
          refusal({{"--out", row.output, &file_kinds::lifetimes}, {"--b", row.second, &file_kinds::lifetimes}},
                  {{"IN", row.input}}, overwrites);
      const bool is_vain = overwrites && row.output.empty() && row.second.empty();
      CHECK(text.starts_with(is_vain ? "`overwrites`: needs a file" : row.text));
      CHECK(text.empty() == (row.text.empty() && !is_vain));
    }
  }
  fs::current_path(before);
  CHECK(refusal({{"--save", in, &file_kinds::lifetimes}}, {{"--resume", in, "--save"}}).empty());  // goes on there
  CHECK(read_text_file(in) == table);
  CHECK(read_text_file(folder / "sub/data") == "data");
  CHECK_FALSE(fs::exists(folder / "new"));
}

TEST_CASE("outputs: folders and numbered files have names of their own", "[file]") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "made");
  struct Row {
    std::string file, folder, weights, text;
  };
  const std::string is_file = "log: expected a folder, got ", kept = ": expected another name, got ";
  const std::vector<Row> rows{
      {"x", "y", "z", ""},
      {"made/x", "made", "made/z", ""},
      {"x", "x", "", is_file},
      {"x", "./x/", "", is_file},
      {"x", "x/log", "", is_file},
      {"x", "xy", "x.step-", ""},
      {"x", "x.step-2", "", "log" + kept},
      {"x", "", "x.step-40", "weights" + kept},
      {"x", "", "made/../x.step-40", "weights" + kept},
      {"x", "", "x.step-4a", ""},
      {"x", "", "made/x.step-4", ""},
  };
  for (const Row& row : rows) {
    INFO(row.file << ", " << row.folder << ", " << row.weights);
    const auto in = [&](const std::string& name) { return name.empty() ? "" : folder / name; };
    const std::string text = refusal({{"save", in(row.file), &file_kinds::checkpoint, ".step-"},
                                      {"weights", in(row.weights), &file_kinds::weights},
                                      {"log", in(row.folder), &file_kinds::folder},
                                      {"adapters", in(row.folder), &file_kinds::folder}},
                                     {});
    CHECK(text.starts_with(row.text));
    CHECK(text.empty() == row.text.empty());
  }
}

TEST_CASE("outputs: a file that is there is replaced by one of its kind alone", "[file]") {
  const TemporaryFolder folder;
  Net net;
  optim::Sgd sgd(net.trainable(), {});
  RandomGenerator generator(1);
  nn::save_checkpoint(folder / "checkpoint", net, sgd, generator, {{"characters", std::string(5000, 'a')}});
  nn::save_weights(net, folder / "weights");
  nn::add_lora(net, {});
  nn::save_adapters(net, folder.path());
  data::write_tokens(folder / "tokens", std::vector<std::uint16_t>{1, 2});
  write_file_atomically(folder / "lifetimes", memory::write_placement(std::vector<memory::Buffer>{{0, 0, 1, 8}},
                                                                      std::vector<std::size_t>{0}));
  // Written by other programs.
  write_file_atomically(folder / "note", "hello\n");
  write_file_atomically(folder / "json", "{\"a\": 1}\n");
  write_file_atomically(folder / "html", "<!DOCTYPE html>\n<html><head><title>Mine</title></head></html>\n");
  write_file_atomically(folder / "svg",
                        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>");
  write_file_atomically(folder / "csv", "a,b\n1,2\n");
  write_file_atomically(folder / "foreign", files_test::little(2, 8) + "{}");  // safetensors without a checksum
  write_file_atomically(folder / "empty", "");
  const std::vector<std::pair<const files::FileKind*, std::string>> kinds{
      {&file_kinds::checkpoint, "checkpoint"},
      {&file_kinds::weights, "weights"},
      {&file_kinds::weights, "adapter_model.safetensors"},
      {&file_kinds::adapters, "adapter_config.json"},
      {&file_kinds::tokens, "tokens"},
      {&file_kinds::lifetimes, "lifetimes"},
      {&file_kinds::plan, ""},
      {&file_kinds::costs, ""},
      {&file_kinds::trace, ""},
      {&file_kinds::snapshot, ""},
      {&file_kinds::page, ""},
      {&file_kinds::picture, ""},
      {&file_kinds::results, ""},
      {&file_kinds::table, ""},
      {&file_kinds::index, ""},
      {&file_kinds::text, ""}};
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    const std::string path = entry.path().string(), name = entry.path().filename().string(),
                      before = read_text_file(path);
    for (const auto& [kind, own] : kinds) {
      INFO(name << " as " << kind->name);
      const bool is_kind = name == "empty" || name == own ||
                           (kind == &file_kinds::weights && name == "adapter_model.safetensors") ||
                           (own == "adapter_model.safetensors" && name == "weights");
      const std::string text = refusal({{"--out", path, kind}}, {});
      CHECK(text.empty() == is_kind);
      if (!is_kind) CHECK(text.starts_with("--out: expected a new file"));
      CHECK(refusal({{"--out", path, kind}}, {}, true).empty());
    }
    CHECK(read_text_file(path) == before);
  }
}

TEST_CASE("outputs: one that cannot be written is refused before any work", "[file]") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "file", "x");
  for (const std::string& path : {folder / "none/x", folder / "file/x", folder.path(), std::string("/proc/x")}) {
    INFO(path);
    CHECK(refusal({{"--out", path, &file_kinds::page}}, {}).starts_with("--out: "));
  }
  for (const files::FileKind* const kind :
       {&file_kinds::checkpoint, &file_kinds::weights, &file_kinds::plan, &file_kinds::costs, &file_kinds::adapters,
        &file_kinds::tokens, &file_kinds::results, &file_kinds::table}) {
    INFO(kind->name);
    CHECK(refusal({{"--out", "/dev/null", kind}}, {}) ==
          "--out: expected a file, into whose place " + std::string(kind->name) +
              " is renamed, got '/dev/null', which is a device, a pipe or standard output; give another name");
  }
  make_output_folder("--out", folder / "a/b");
  CHECK(std::filesystem::is_directory(folder / "a/b"));
  CHECK_THROWS_AS(make_output_folder("--out", folder / "file/b"), ValueError);
  CHECK_THROWS_AS(make_output_folder("--out", folder / "file"), ValueError);
}

TEST_CASE("outputs: devices and pipes take streams", "[file]") {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe", text(200'000, 'x');  // more than a pipe holds
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const files::FileKind* const kind :
       {&file_kinds::page, &file_kinds::picture, &file_kinds::trace, &file_kinds::lifetimes, &file_kinds::snapshot,
        &file_kinds::index, &file_kinds::text}) {
    INFO(kind->name);
    CHECK(refusal({{"--a", "/dev/null", kind}, {"--b", "/dev/null", kind}}, {}).empty());
    CHECK(refusal({{"--a", pipe, kind}}, {}).empty());
    CHECK(refusal({{"--a", pipe, kind}, {"--b", pipe, kind}}, {}).starts_with("--b: expected one output in a file"));
  }
  CHECK_NOTHROW(write_output("/dev/null", text));
  std::string got;
  std::thread reader([&] { got = read_text_file(pipe); });
  write_output(pipe, text);
  reader.join();
  CHECK(got == text);
  CHECK(std::filesystem::is_fifo(pipe));
  if (std::filesystem::exists("/dev/full")) {
    CHECK_THROWS_WITH(write_output("/dev/full", text), Catch::Contains("cannot write: No space left on device"));
  }
  write_output(folder / "file", "whole");
  CHECK(read_text_file(folder / "file") == "whole");
  CHECK(folder.entries() == 2);
}
