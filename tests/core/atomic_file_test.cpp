#include "support/catch.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/temporary_file.h>

namespace {

namespace fs = std::filesystem;

// A folder of its own for one test, removed at the end.
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

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

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

// Lets no file of this process grow past `bytes` while it lives.
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
    CHECK(content(path) == text);
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
    CHECK(content(path) == "old");
  }
  CHECK(content(path) == "old");
  CHECK(folder.names().size() == 1);  // the temporary file is gone

  thimble::AtomicFile first(path);
  thimble::AtomicFile second(path);  // two writers do not share a temporary file
  first.write("first");
  second.write("second");
  first.commit();
  second.commit();
  CHECK(content(path) == "second");
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
  file.write("!");  // appends to the furthest part
  file.commit();
  CHECK(content(path) == std::string("head\0\0tail!", 11));
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
  CHECK(content(path) == "old");
  CHECK(folder.names().size() == 1);
}

TEST_CASE("atomic file: links are followed and permission bits are kept", "[file]") {
  const Folder folder;
  const std::string path = folder / "model.bin";
  thimble::write_file_atomically(path, std::string_view("old"));
  REQUIRE(::chmod(path.c_str(), 02640) == 0);
  REQUIRE(::symlink("model.bin", (folder / "latest").c_str()) == 0);
  thimble::write_file_atomically(folder / "latest", std::string_view("new"));
  CHECK(content(path) == "new");
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
  for (const Row& row : rows) {
    INFO(row.path);
    const std::string message = failure(row.path, "text");
    INFO(message);
    CHECK(message.find(row.why) != std::string::npos);
  }
  CHECK(folder.names().size() == 2);
  // The suffix of the temporary file does not make a valid name too long.
  CHECK(failure(folder / std::string(255, 'n').c_str(), "text").empty());
}

TEST_CASE("atomic file: temporary files that nobody holds are removed, others stay", "[file]") {
  const Folder folder;
  const std::string path = folder / "model.bin";
  const std::string stale = path + ".0123456789abcdef.tmp";
  const std::vector<std::string> others = {path + "." + std::to_string(::getpid()) + ".0.tmp",  // of no pattern of ours
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
    thimble::AtomicFile first(path);  // removes what is stale
    CHECK_FALSE(fs::exists(stale));
    CHECK(folder.names().size() == others.size() + 3);
    thimble::AtomicFile second(path);  // and nothing that is being written
    CHECK(folder.names().size() == others.size() + 4);
    first.write("first");
    first.commit();
    second.write("second");
    second.commit();
  }
  CHECK(content(path) == "second");
  for (const std::string& name : others) CHECK(content(name) == "left behind");
  CHECK(folder.names().size() == others.size() + 3);
}

TEST_CASE("atomic file: a temporary name that is taken is passed over", "[file]") {
  const Folder folder;
  const std::string target = folder / "x";
  std::ofstream(folder / "x.0000000000000007.tmp") << "taken";
  std::uint64_t next = 7;
  const thimble::TemporaryFile file = thimble::make_temporary_file(target, [&] { return next++; });
  CHECK(file.path == folder / "x.0000000000000008.tmp");
  CHECK(content(folder / "x.0000000000000007.tmp") == "taken");
  // Locked, it is not stale; the other one is.
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
    CHECK(folder.names().size() == 1);  // its own; that of the one before is gone
  }
  thimble::write_file_atomically(path, std::string_view("whole"));
  CHECK(folder.names() == std::vector<std::string>{"model.bin"});
}
