// Failures of offloading: full disks, folders in memory, no room to read back. All are typed errors that leave the
// tensor in place.

#include <sys/vfs.h>

#include <sys/resource.h>

#include <csignal>

#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/memory/offload/offload.h>
#include <thimble/memory/stack.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/offload_data.h"

using namespace thimble;
using namespace offload_test;
using memory::offload;
using memory::Offloaded;

namespace {

// Limits the file size of this process for a scope.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    signal_before_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit now{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_before_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*signal_before_)(int);
};

}  // namespace

TEST_CASE("offload: a full disk is an error that changes nothing", "[memory][offload]") {
  const std::string folder = disk_folder();
  if (folder.empty()) return;
  const Tensor small = pattern({20000}, DType::u8, 1), large = pattern({100000}, DType::u8, 2);
  {
    INFO("a capacity");
    auto options = options_at(folder);
    options.capacity_bytes = 60000;
    const auto tier = std::make_shared<memory::FileTier>(cpu, options);
    Offloaded first = offload(small, tier);
    const auto before = counts(tier->statistics());
    const std::string message = files_test::file_error([&] { offload(large, tier); });
    CHECK(files_test::contains(message, "no room for 102400 offloaded bytes: the capacity is 60000 bytes"));
    CHECK(counts(tier->statistics()) == before);
    Offloaded second = offload(small, tier);
    first.complete();
    CHECK((bytes_of(first.fetch()) == bytes_of(small)));
    CHECK((bytes_of(second.fetch()) == bytes_of(small)));
  }
  {
    INFO("a capacity that is just enough");
    memory::FileTier tier(dry(cpu), {.folder = "/nowhere", .capacity_bytes = 8192});
    CHECK_NOTHROW(tier.write(nullptr, 5000));  // takes a slot of 8192
    CHECK_THROWS_AS(tier.write(nullptr, 1), FileError);
  }
  {
    INFO("the system says no when the slot is taken");
    const auto tier = std::make_shared<memory::FileTier>(cpu, options_at(folder));
    const FileSizeLimit limit(50000);
    Offloaded first = offload(small, tier);
    const std::string message = files_test::file_error([&] { offload(large, tier); });
    CHECK(files_test::contains(message, folder + ": at byte 20480: no room for 102400 offloaded bytes"));
    first.complete();
    CHECK((bytes_of(first.fetch()) == bytes_of(small)));
  }
  {
    INFO("the system says no while bytes are written");
    const auto tier = std::make_shared<memory::FileTier>(cpu, options_at(folder));
    offload(large, tier).drop();  // the slot exists
    Offloaded away;
    {
      const FileSizeLimit limit(50000);
      away = offload(large, tier);
      CHECK(files_test::contains(files_test::file_error([&] { away.complete(); }),
                                 "writing 100000 offloaded bytes failed"));
    }
    CHECK(away.defined());
    away.complete();  // the tensor stays in memory
    CHECK((bytes_of(away.fetch()) == bytes_of(large)));
    CHECK(tier->statistics().live_bytes == 0);
    Offloaded again = offload(large, tier);
    again.complete();
    CHECK((bytes_of(again.fetch()) == bytes_of(large)));
  }
}

TEST_CASE("offload: reading bytes whose write failed is an error", "[memory][offload]") {
  const std::string folder = disk_folder();
  if (folder.empty()) return;
  memory::FileTier tier(cpu, options_at(folder));
  std::vector<std::byte> bytes(100000);
  tier.drop(tier.write(bytes.data(), bytes.size()));  // the slot exists
  memory::Ticket ticket = 0;
  {
    const FileSizeLimit limit(0);
    ticket = tier.write(bytes.data(), bytes.size());
    CHECK_THROWS_AS(tier.wait(ticket), FileError);
  }
  const std::string message = files_test::file_error([&] { tier.read(ticket, bytes.data()); });
  CHECK(files_test::contains(message, "the offloaded bytes were never written"));
}

TEST_CASE("offload: no memory for what comes back is an error that can be tried again", "[memory][offload]") {
  const std::string folder = disk_folder();
  if (folder.empty()) return;
  memory::Options limited;
  limited.limit_bytes = 200000;
  const memory::Stack stack = memory::make_resource(cpu, limited);
  const ResourceScope on(stack.top);
  const auto tier = std::make_shared<memory::FileTier>(cpu, options_at(folder, 4096, 1));
  Tensor t = pattern({100000}, DType::u8, 1);
  const Bytes expected = bytes_of(t);
  Offloaded away = offload(std::move(t), tier);
  t = Tensor();
  away.complete();
  Tensor other = zeros({150000}, DType::u8);
  CHECK_THROWS_AS(away.prefetch(), OutOfMemory);
  CHECK_THROWS_AS(away.fetch(), OutOfMemory);
  CHECK(away.defined());
  other = Tensor();
  CHECK((bytes_of(away.fetch()) == expected));
}

TEST_CASE("offload: what is refused, and why", "[memory][offload]") {
  const auto refusal = [](const std::string& at) {
    return files_test::file_error([&] { memory::FileTier(cpu, options_at(at)); });
  };
  struct statfs shared_memory {};
  constexpr auto tmpfs = 0x01021994;  // in a chroot it may be a plain folder
  if (statfs("/dev/shm", &shared_memory) == 0 && shared_memory.f_type == tmpfs) {
    const std::string message = refusal("/dev/shm");
    CHECK(files_test::contains(message, "/dev/shm"));
    CHECK(files_test::contains(message, "it is a tmpfs, whose files take the memory that offloading is to free"));
    CHECK(files_test::contains(message, "expected a folder on a disk"));
  }
  CHECK(files_test::contains(refusal("/nowhere/at/all"), "/nowhere/at/all: at byte 0: cannot offload there: No such"));
  CHECK(files_test::contains(refusal("/proc/version"), "cannot offload there"));
  CHECK(files_test::contains(refusal("/proc"), "cannot offload there"));
  for (const auto& [chunk, workers] :
       {std::pair<std::size_t, int>{0, 1}, {4095, 1}, {4096, 0}, {4096, -1}, {4096, 17}}) {
    INFO(chunk << " " << workers);
    CHECK_THROWS_AS(memory::FileTier(dry(cpu), options_at("", chunk, workers)), ValueError);
  }
  CHECK_NOTHROW(memory::FileTier(dry(cpu), options_at("", 4096, 16)));
  const auto tier = std::make_shared<memory::FileTier>(dry(cpu));
  const Tensor t = zeros({3}, DType::f32, dry(cpu));
  CHECK_THROWS_AS(offload(Tensor(), tier), ShapeError);
  CHECK_THROWS_AS(offload(t, nullptr), ValueError);
  CHECK_THROWS_AS(offload(zeros({3}), tier), DeviceError);
  Offloaded away = offload(t, tier);
  Offloaded moved = std::move(away);
  CHECK_THROWS_AS(away.fetch(), ValueError);  // NOLINT(bugprone-use-after-move): use after move is the test
  moved.fetch();
  CHECK_THROWS_AS(moved.fetch(), ValueError);
  CHECK_THROWS_AS(Offloaded().fetch(), ValueError);
  CHECK_THROWS_AS(tier->wait(77), ValueError);
  CHECK_THROWS_AS(tier->read(77, nullptr), ValueError);
  CHECK_THROWS_AS(tier->write(nullptr, 0), ValueError);
  tier->drop(77);
}
