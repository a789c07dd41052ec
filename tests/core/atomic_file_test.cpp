#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
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

namespace fs = std::filesystem;

// A temporary folder for one test, removed at the end.
struct Folder {
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "thimble-file-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  std::string operator/(const char* name) const { return (path / name).string(); }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& entry : fs::directory_iterator(path)) result.push_back(entry.path().filename().string());
    return result;
  }
  fs::path path;
};

// The FileError that writing `text` to `path` throws: its message, or "" when nothing is thrown.
std::string failure(const std::string& path, std::string_view text) {
  try {
    thimble::write_file_atomically(path, text);
  } catch (const thimble::FileError& error) {
    CHECK(error.path() == path);
    return error.what();
  }
  return "";
}

// While it lives, no file of this process grows past `bytes`.
struct FileSizeLimit {
  explicit FileSizeLimit(rlim_t bytes) {
    handler = std::signal(SIGXFSZ, SIG_IGN);
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
    struct rlimit limit = old;
    limit.rlim_cur = bytes;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, handler);
  }
  struct rlimit old {};
  void (*handler)(int) = nullptr;
};

}  // namespace

TEST_CASE("atomic file: contents arrive whole and replace what was there", "[file]") {
  const Folder folder;
  const std::string path = folder / "model.bin";
  for (const std::string& text :
       {std::string("first"), std::string(), std::string(3'000'000, 'x'), std::string("a\0b", 3)}) {
    thimble::write_file_atomically(path, text);
    CHECK(files_test::read_text_file(path) == text);
    CHECK(folder.names() == std::vector<std::string>{"model.bin"});
  }
}

TEST_CASE("atomic file: the target does not change before commit", "[file]") {
  const Folder folder;
  const std::string path = folder / "model.bin";
  thimble::write_file_atomically(path, std::string_view("old"));
  {
    thimble::AtomicFile file(path);
    file.write("part of the ");
    file.write("new");
    CHECK(file.size() == 15);
    CHECK(files_test::read_text_file(path) == "old");
  }
  CHECK(files_test::read_text_file(path) == "old");
  CHECK(folder.names().size() == 1);  // the temporary file is gone

  thimble::AtomicFile first(path);
  thimble::AtomicFile second(path);  // two writers do not share a temporary file
  first.write("first");
  second.write("second");
  first.commit();
  second.commit();
  CHECK(files_test::read_text_file(path) == "second");
  CHECK(folder.names().size() == 1);
  CHECK_THROWS_AS(first.write("more"), thimble::FileError);
  CHECK_THROWS_AS(first.commit(), thimble::FileError);
}

TEST_CASE("atomic file: parts can be written where they belong", "[file]") {
  const Folder folder;
  const std::string path = folder / "model.bin";
  const std::string head = "head", tail = "tail";
  thimble::AtomicFile file(path);
  file.write(6, std::as_bytes(std::span(tail)));
  file.write(0, std::as_bytes(std::span(head)));
  CHECK(file.size() == 10);
  file.write("!");  // appends after the furthest write
  file.commit();
  CHECK(files_test::read_text_file(path) == std::string("head\0\0tail!", 11));
  CHECK_THROWS_AS(file.write(0, std::as_bytes(std::span(head))), thimble::FileError);
}

TEST_CASE("atomic file: a new file has the permission bits of any new file", "[file]") {
  const Folder folder;
  thimble::write_file_atomically(folder / "model.bin", std::string_view("new"));
  struct stat status {};
  REQUIRE(::stat((folder / "model.bin").c_str(), &status) == 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  CHECK((status.st_mode & 0777) == (0666 & ~mask));
}

TEST_CASE("atomic file: a write that fails leaves the old file and nothing else", "[file]") {
  const Folder folder;
  const std::string path = folder / "model.bin";
  thimble::write_file_atomically(path, std::string_view("old"));
  {
    const FileSizeLimit limit(100'000);
    try {
      thimble::write_file_atomically(path, std::string(250'000, 'x'));
      FAIL("no FileError");
    } catch (const thimble::FileError& error) {
      CHECK(error.offset() == 100'000);  // where writing stopped
      CHECK(error.path() == path);
    }
  }
  CHECK(files_test::read_text_file(path) == "old");
  CHECK(folder.names().size() == 1);
}

TEST_CASE("atomic file: links are followed and permission bits are kept", "[file]") {
  const Folder folder;
  const std::string path = folder / "model.bin";
  thimble::write_file_atomically(path, std::string_view("old"));
  REQUIRE(::chmod(path.c_str(), 02640) == 0);
  REQUIRE(::symlink("model.bin", (folder / "latest").c_str()) == 0);
  thimble::write_file_atomically(folder / "latest", std::string_view("new"));
  CHECK(files_test::read_text_file(path) == "new");
  CHECK(fs::is_symlink(folder / "latest"));
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 02640);
}

TEST_CASE("atomic file: what cannot be written is refused by name", "[file]") {
  const Folder folder;
  fs::create_directory(folder / "folder");
  REQUIRE(::symlink("missing", (folder / "dangling").c_str()) == 0);
  struct Row {
    std::string path;
    const char* why;
  };
  const std::vector<Row> rows = {
      {"", "without a name"},
      {folder / "folder", "not a regular file"},
      {folder / "dangling", "cannot follow the symbolic link"},
      {"/dev/null", "not a regular file"},
      {folder / "nowhere/model.bin", "No such file or directory"},
      {folder / std::string(300, 'n').c_str(), "File name too long"},
  };
  CHECK_THROWS_AS(thimble::AtomicFile(folder / "name" + std::string(1, '\0')), thimble::FileError);
  for (const Row& row : rows) {
    INFO(row.path);
    const std::string message = failure(row.path, "text");
    INFO(message);
    CHECK(message.find(row.why) != std::string::npos);
  }
  CHECK(folder.names().size() == 2);
  // The temporary suffix does not make a valid name too long.
  CHECK(failure(folder / std::string(255, 'n').c_str(), "text").empty());
}

TEST_CASE("atomic file: temporary files that nobody holds are removed, others stay", "[file]") {
  const Folder folder;
  const std::string path = folder / "model.bin";
  const std::string stale = path + ".0123456789abcdef.tmp";
  const std::vector<std::string> others = {path + "." + std::to_string(::getpid()) + ".0.tmp",  // none of our patterns
                                           path + ".0123456789abcdeF.tmp",
                                           path + ".0123456789abcde.tmp",
                                           path + ".0123456789abcdef.tmp2",
                                           folder / "other.bin.0123456789abcdef.tmp",
                                           folder / "xmodel.bin.0123456789abcdef.tmp"};
  const auto leave = [](const std::string& name) { std::ofstream(name) << "left behind"; };
  for (const std::string& name : others) leave(name);
  leave(stale);
  fs::create_directory(path + ".aaaaaaaaaaaaaaaa.tmp");
  REQUIRE(::symlink("model.bin", (path + ".bbbbbbbbbbbbbbbb.tmp").c_str()) == 0);
  {
    thimble::AtomicFile first(path);  // removes stale files
    CHECK_FALSE(fs::exists(stale));
    CHECK(folder.names().size() == others.size() + 3);
    thimble::AtomicFile second(path);  // but none that is being written
    CHECK(folder.names().size() == others.size() + 4);
    first.write("first");
    first.commit();
    second.write("second");
    second.commit();
  }
  CHECK(files_test::read_text_file(path) == "second");
  for (const std::string& name : others) CHECK(files_test::read_text_file(name) == "left behind");
  CHECK(folder.names().size() == others.size() + 3);
}

TEST_CASE("atomic file: a temporary name that is taken is passed over", "[file]") {
  const Folder folder;
  const std::string target = folder / "x";
  std::ofstream(folder / "x.0000000000000007.tmp") << "taken";
  std::uint64_t next = 7;
  const thimble::TemporaryFile file = thimble::make_temporary_file(target, [&] { return next++; });
  CHECK(file.path == folder / "x.0000000000000008.tmp");
  CHECK(files_test::read_text_file(folder / "x.0000000000000007.tmp") == "taken");
  // The locked file is not stale; the other one is.
  CHECK(thimble::remove_stale_temporary_files(target) == 1);
  CHECK(folder.names() == std::vector<std::string>{"x.0000000000000008.tmp"});
  ::close(file.descriptor);
  CHECK(thimble::remove_stale_temporary_files(target) == 1);
  CHECK(folder.names().empty());
  const thimble::TemporaryFile nowhere = thimble::make_temporary_file(folder / "no/x");
  CHECK((nowhere.descriptor == -1 && nowhere.error == ENOENT));
}

TEST_CASE("atomic file: what a killed process leaves is removed by the next, with the same process id or another",
          "[file]") {
  const Folder folder;
  const std::string path = folder / "model.bin";
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      thimble::AtomicFile file(path);
      file.write("part");
      ::raise(SIGKILL);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    CHECK(folder.names().size() == 1);  // its temporary file; the previous one's is gone
  }
  thimble::write_file_atomically(path, std::string_view("whole"));
  CHECK(folder.names() == std::vector<std::string>{"model.bin"});
}

// ---- The order of calls behind a file's promise: its bytes reach the disk before its name does, and its name before
// the call returns. System calls go through this test's functions, which record them and can fail.

namespace {

/// The calls while recording is on: "fsync new", "rename new -> x".
struct Calls {
  bool is_on = false;
  std::string folder;  // paths are recorded by their last part, temporary files as "new"
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
  /// Records a call; returns whether it fails.
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

/// The calls of `f` for files in the folder.
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

/// The calls that replace a file by name.
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
  CHECK(calls_of(folder, write) == replaced("x"));  // replaces the existing file
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
      {"fsync folder", "", "new", EINVAL, replaced("x")},  // a file system that cannot sync folders
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
  CHECK(calls.list == Lines{"fsync folder"});  // the old index may come back, and must then name old shards
  save_again();
  CHECK_THROWS_AS(calls_of(folder, save_again, last, EIO), FileError);
  CHECK_THROWS_AS(nn::load_weights(net, folder.path()), FileError);  // not a mix of two models
  nn::add_lora(net, {});
  CHECK(calls_of(folder, [&] { nn::save_adapters(net, folder.path()); }) ==
        replaced("adapter_model.safetensors") + replaced("adapter_config.json"));
}
