// The order of calls that a file's promise rests on: its bytes are on the disk before its name is, and its name before
// the call returns. The system's calls go through the functions of this test, which note them and can fail.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/outputs.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/layers/layers.h>
#include <thimble/nn/lora/adapter_files.h>
#include <thimble/nn/trainer/checkpoint_keeper.h>
#include <thimble/optim/sgd.h>

#include "support/catch.h"
#include "support/files.h"

namespace {

/// What was called, while a test asks for it: "fsync new", "rename new -> x".
struct Calls {
  bool is_on = false;
  std::string folder;  // its files are named by their last part; a temporary file is "new"
  std::vector<std::string> list;
  std::string failing;  // the call that fails
  int error = 0;

  std::string name_of(const std::string& path) const {
    if (path == folder) return "folder";
    const std::string name = path.substr(path.rfind('/') + 1);
    return name.ends_with(".tmp") ? "new " + name.substr(0, name.size() - 21) : name;
  }
  std::string name_of(int descriptor) const {
    char path[4096] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    const ssize_t length = ::readlink(link.c_str(), path, sizeof path - 1);
    return length < 0 ? "?" : name_of(std::string(path, static_cast<std::size_t>(length)));
  }
  /// Whether the call fails.
  bool note(const std::string& call) {
    if (!is_on) return false;
    list.push_back(call);
    if (call != failing) return false;
    errno = error;
    return true;
  }
};
Calls calls;

}  // namespace

extern "C" int fsync(int descriptor) {
  if (calls.note("fsync " + calls.name_of(descriptor))) return -1;
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (calls.note("rename " + calls.name_of(from) + " -> " + calls.name_of(to))) return -1;
  return static_cast<int>(::renameat(AT_FDCWD, from, AT_FDCWD, to));
}

extern "C" int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  if (calls.note("link " + calls.name_of(from) + " -> " + calls.name_of(to))) return -1;
  return static_cast<int>(::syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
}

namespace {

using namespace thimble;
using files_test::TemporaryFolder;
using Lines = std::vector<std::string>;

/// The calls that `f` makes for files of the folder.
template <class F>
Lines calls_of(const TemporaryFolder& folder, const F& f, const std::string& failing = "", int error = 0) {
  calls = {true, std::filesystem::canonical(folder.path()).string(), {}, failing, error};
  try {
    f();
  } catch (...) {
    calls.is_on = false;
    throw;
  }
  calls.is_on = false;
  return calls.list;
}

/// What replacing a file by name is made of.
Lines replaced(const std::string& name) {
  return {"fsync new " + name, "rename new " + name + " -> " + name, "fsync folder"};
}

Lines operator+(Lines a, const Lines& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct Net final : nn::Module {
  Net() : a(child<nn::Linear>("a", 4, 4)), b(child<nn::Linear>("b", 4, 4)) {}
  nn::Linear &a, &b;
};

}  // namespace

TEST_CASE("files: bytes, then the name, then the folder", "[file]") {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  const auto write = [&] { write_file_atomically(path, "new text"); };
  CHECK(calls_of(folder, write) == replaced("x"));
  CHECK(calls_of(folder, write) == replaced("x"));  // over the one that is there
  CHECK(calls_of(folder, [&] { check_outputs({{"--out", path, &file_kinds::text}}, {}, true); }) == Lines{});
}

TEST_CASE("files: a step that fails ends what comes after it", "[file]") {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  struct Row {
    const char *failing, *text, *content;
    int error;
    Lines made;
  };
  const std::vector<Row> rows{
      {"fsync new x", "cannot fsync: ", "old", EIO, {"fsync new x"}},
      {"rename new x -> x", "cannot rename ", "old", EIO, {"fsync new x", "rename new x -> x"}},
      {"fsync folder", "cannot fsync its folder: ", "new", EIO, replaced("x")},
      {"fsync folder", "", "new", EINVAL, replaced("x")},  // a file system that keeps nothing for folders
  };
  for (const Row& row : rows) {
    INFO(row.failing << ", " << row.error);
    write_file_atomically(path, "old");
    std::string text;
    try {
      calls_of(
          folder, [&] { write_file_atomically(path, "new"); }, row.failing, row.error);
    } catch (const FileError& error) {
      text = error.what();
    }
    CHECK(calls.list == row.made);
    CHECK(text.empty() == (*row.text == 0));
    CHECK(text.find(row.text) != std::string::npos);
    CHECK(files_test::read_text_file(path) == row.content);
    CHECK(folder.entries() == 1);
  }
}

TEST_CASE("files: the older checkpoint has its second name before the new one takes the first", "[file]") {
  const TemporaryFolder folder;
  Net net;
  optim::Sgd sgd(net.trainable(), {});
  RandomGenerator generator(1);
  const auto write = [&](const std::string& path) { nn::save_checkpoint(path, net, sgd, generator); };
  nn::CheckpointKeeper keeper({.path = folder / "x", .keep = 2});
  CHECK(calls_of(folder, [&] { keeper.save(0, write); }) == replaced("x"));
  sgd.set_step_count(1);
  CHECK(calls_of(folder, [&] { keeper.save(1, write); }) == Lines{"link x -> x.step-0"} + replaced("x"));
  nn::CheckpointKeeper one({.path = folder / "x"});
  sgd.set_step_count(2);
  CHECK(calls_of(folder, [&] { one.save(2, write); }) == Lines{"link x -> new x"} + replaced("x"));
}

TEST_CASE("files: what names others comes last", "[file]") {
  const TemporaryFolder folder;
  Net net;
  const Lines shards = replaced("model-00001-of-00002.safetensors") + replaced("model-00002-of-00002.safetensors");
  CHECK(calls_of(folder, [&] { nn::save_weight_folder(net, folder.path(), 100); }) ==
        shards + replaced("model.safetensors.index.json"));
  const std::string last = "rename new model-00002-of-00002.safetensors -> model-00002-of-00002.safetensors";
  const auto save_again = [&] { nn::save_weight_folder(net, folder.path(), 100); };
  CHECK(calls_of(folder, save_again) == Lines{"fsync folder"} + shards + replaced("model.safetensors.index.json"));
  CHECK_THROWS_AS(calls_of(folder, save_again, "fsync folder", EIO), FileError);
  CHECK(calls.list == Lines{"fsync folder"});  // the old index may come back, and then names old shards
  save_again();
  CHECK_THROWS_AS(calls_of(folder, save_again, last, EIO), FileError);
  CHECK_THROWS_AS(nn::load_weights(net, folder.path()), FileError);  // not a mix of two models
  nn::add_lora(net, {});
  CHECK(calls_of(folder, [&] { nn::save_adapters(net, folder.path()); }) ==
        replaced("adapter_model.safetensors") + replaced("adapter_config.json"));
}
