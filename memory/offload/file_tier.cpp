#include <thimble/memory/offload/file_tier.h>

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/tensor/context.h>

#if defined(__linux__)
#include <sys/vfs.h>
#endif

namespace thimble::memory {
namespace {

const char* const allowed = "; expected a folder on a disk whose file system can do direct I/O (ext4, xfs, btrfs)";

// The name of a file system that keeps its files in memory, or null.
const char* memory_file_system([[maybe_unused]] int descriptor) {
#if defined(__linux__)
  struct statfs facts {};
  if (fstatfs(descriptor, &facts) != 0) return nullptr;
  switch (static_cast<unsigned long>(facts.f_type) & 0xfffffffful) {
    case 0x01021994:
      return "tmpfs";
    case 0x858458f6:
      return "ramfs";
    case 0x958458f6:
      return "hugetlbfs";
    default:
      return nullptr;
  }
#else
  return nullptr;
#endif
}

// A nameless new file, for direct I/O, or -1 with errno.
int open_nameless(const std::string& folder) {
  std::string name = folder + "/thimble-offload-XXXXXX";
#if defined(O_DIRECT)
  const int descriptor = mkostemp(name.data(), O_DIRECT | O_CLOEXEC);
#else
  const int descriptor = mkstemp(name.data());
#endif
  const int error = errno;
  // open creates the file even where it refuses direct I/O.
  if (descriptor >= 0 || error == EINVAL) unlink(name.c_str());
#if !defined(O_DIRECT) && defined(F_NOCACHE)
  if (descriptor >= 0) fcntl(descriptor, F_NOCACHE, 1);
#endif
  errno = error;
  return descriptor;
}

}  // namespace

DirectFile::DirectFile(const std::string& folder) : folder_(folder) {
  // Check the kind of file system first: some refuse direct I/O with an unclear error.
  const int parent = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0) throw FileError(folder, 0, std::string("cannot offload there: ") + std::strerror(errno) + allowed);
  const char* const in_memory = memory_file_system(parent);
  close(parent);
  if (in_memory != nullptr) {
    throw FileError(folder, 0,
                    std::string("cannot offload there: it is a ") + in_memory +
                        ", whose files take the memory that offloading is to free" + allowed);
  }
  descriptor_ = open_nameless(folder);
  if (descriptor_ < 0) {
    const std::string why = errno == EINVAL ? "its file system cannot do direct I/O" : std::strerror(errno);
    throw FileError(folder, 0, "cannot offload there: " + why + allowed);
  }
}

DirectFile::~DirectFile() { close(descriptor_); }

void DirectFile::reserve(std::uint64_t offset, std::uint64_t bytes) {
#if defined(__linux__)
  int error = 0;
  do {
    error = fallocate(descriptor_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  // Without preallocation the file gets only its length, and writes detect a full disk.
  if (error == EOPNOTSUPP) error = ftruncate(descriptor_, static_cast<off_t>(offset + bytes)) == 0 ? 0 : errno;
#else
  const int error = ftruncate(descriptor_, static_cast<off_t>(offset + bytes)) == 0 ? 0 : errno;
#endif
  if (error == 0) return;
  struct statvfs facts {};
  std::string free_bytes = "?";
  if (fstatvfs(descriptor_, &facts) == 0) free_bytes = std::to_string(std::uint64_t{facts.f_bavail} * facts.f_frsize);
  throw FileError(folder_, offset,
                  "no room for " + std::to_string(bytes) + " offloaded bytes: " + std::strerror(error) + "; " +
                      free_bytes + " bytes are free there");
}

int DirectFile::write(std::uint64_t offset, const std::byte* from, std::size_t bytes) noexcept {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = pwrite(descriptor_, from + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    // The rest of a short write must begin aligned.
    const std::size_t whole = static_cast<std::size_t>(n) / alignment * alignment;
    if (whole == 0) return ENOSPC;
    done += whole;
  }
  return 0;
}

int DirectFile::read(std::uint64_t offset, std::byte* to, std::size_t bytes) noexcept {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = pread(descriptor_, to + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    const std::size_t whole = static_cast<std::size_t>(n) / alignment * alignment;
    if (whole == 0) return EIO;  // the file ends before the requested bytes
    done += whole;
  }
  return 0;
}

namespace {

constexpr int most_workers = 16;

std::size_t rounded_up(std::size_t bytes) { return round_up(bytes, DirectFile::alignment); }

std::string chosen_folder(const std::string& folder) {
  if (!folder.empty()) return folder;
  const char* const temporary = std::getenv("TMPDIR");
  return temporary != nullptr && *temporary != '\0' ? temporary : "/var/tmp";
}

void check(const FileTier::Options& options, Device device) {
  if (!device.is_cpu() && !device.is_dry) {
    throw DeviceError("file tier: " + to_string(device) + "; expected the cpu or a dry device");
  }
  if (options.chunk_bytes == 0 || options.chunk_bytes % DirectFile::alignment != 0) {
    throw ValueError("file tier: chunks of " + std::to_string(options.chunk_bytes) + " bytes; expected a multiple of " +
                     std::to_string(DirectFile::alignment));
  }
  if (options.workers < 1 || options.workers > most_workers) {
    throw ValueError("file tier: " + std::to_string(options.workers) + " workers; expected 1 to " +
                     std::to_string(most_workers));
  }
}

Tensor make_bounce(const FileTier::Options& options, Device device) {
  check(options, device);
  const PathScope path("offload");
  const auto bytes = static_cast<std::int64_t>(FileTier::workspace_bytes(options));
  return Tensor::empty({bytes}, DType::u8, device, Category::workspace);
}

// Adds its lifetime, in ms.
class Stopwatch {
 public:
  explicit Stopwatch(double& ms) : ms_(ms) {}
  ~Stopwatch() { ms_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& ms_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

class FileTier::State {
  // A ticket's bytes, and their running transfer if any.
  struct Entry {
    std::uint64_t offset = 0;  // of the slot
    std::size_t bytes = 0;
    std::byte* memory = nullptr;
    std::size_t begun = 0;  // bytes that workers have started
    int active = 0;         // workers moving bytes now
    int error = 0;          // errno of the transfer
    bool is_write = false;
    bool is_queued = false;
    bool is_lost = false;  // the write failed

    bool is_busy() const noexcept { return is_queued || active > 0; }
  };

 public:
  State(Device device, const Options& options)
      : options_(options), device_(device), bounce_(make_bounce(options, device)) {
    if (device.is_dry) return;
    pin_.emplace(bounce_);
    file_.emplace(chosen_folder(options.folder));
    try {
      for (int w = 0; w < options.workers; ++w) workers_.emplace_back([this, w] { work(w); });
    } catch (const std::system_error&) {
      const std::size_t begun = workers_.size();
      join();
      throw OutOfMemory("file tier: the system starts no further thread, " + std::to_string(begun) + " of " +
                            std::to_string(options.workers) + " are there",
                        {});
    } catch (...) {
      join();
      throw;
    }
  }
  ~State() { join(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Device device() const noexcept { return device_; }

  Ticket write(const void* from, std::size_t bytes) {
    if (bytes == 0) throw ValueError("file tier: a write of 0 bytes");
    const std::lock_guard lock(mutex_);
    const Ticket ticket = last_ticket_ + 1;
    Entry& entry = entries_[ticket];
    try {
      entry.offset = take_slot(rounded_up(bytes));
      entry.bytes = bytes;
      begin(entry, const_cast<std::byte*>(static_cast<const std::byte*>(from)), true);
    } catch (...) {
      if (entry.bytes != 0) give_slot(entry);
      entries_.erase(ticket);
      throw;
    }
    last_ticket_ = ticket;
    ++statistics_.writes;
    statistics_.bytes_written += bytes;
    statistics_.live_bytes += bytes;
    return ticket;
  }

  void read(Ticket ticket, void* to) {
    std::unique_lock lock(mutex_);
    Entry& entry = find("read", ticket);
    wait_until_idle(entry, lock);
    if (entry.is_write) throw_error(entry);
    if (entry.is_lost) fail(entry, "the offloaded bytes were never written");
    entry.error = 0;
    begin(entry, static_cast<std::byte*>(to), false);
    ++statistics_.reads;
    statistics_.bytes_read += entry.bytes;
  }

  void wait(Ticket ticket) {
    std::unique_lock lock(mutex_);
    Entry& entry = find("wait", ticket);
    wait_until_idle(entry, lock);
    throw_error(entry);
  }

  void drop(Ticket ticket) noexcept {
    std::unique_lock lock(mutex_);
    const auto found = entries_.find(ticket);
    if (found == entries_.end()) return;
    Entry& entry = found->second;
    leave_queue(entry);
    wait_until_idle(entry, lock);
    give_slot(entry);
    statistics_.live_bytes -= entry.bytes;
    entries_.erase(found);
  }

  TierStatistics statistics() const {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  std::uint64_t take_slot(std::size_t bytes) {
    std::vector<std::uint64_t>& free = free_slots_[bytes];
    if (!free.empty()) {
      const std::uint64_t offset = free.back();
      free.pop_back();
      return offset;
    }
    const std::uint64_t offset = statistics_.committed_bytes;
    if (options_.capacity_bytes != 0 && bytes > options_.capacity_bytes - std::min(offset, options_.capacity_bytes)) {
      throw FileError(chosen_folder(options_.folder), offset,
                      "no room for " + std::to_string(bytes) + " offloaded bytes: the capacity is " +
                          std::to_string(options_.capacity_bytes) + " bytes, " + std::to_string(offset) +
                          " of them are taken");
    }
    std::size_t& slots = slot_counts_[bytes];
    free.reserve(slots + 1);  // so that drop() allocates nothing
    if (file_) file_->reserve(offset, bytes);
    ++slots;
    statistics_.committed_bytes += bytes;
    return offset;
  }

  void give_slot(const Entry& entry) noexcept {  // take_slot() made room in the list
    free_slots_[rounded_up(entry.bytes)].push_back(entry.offset);
  }

  Entry& find(const char* operation, Ticket ticket) {
    const auto found = entries_.find(ticket);
    if (found == entries_.end()) {
      throw ValueError(std::string("file tier: ") + operation + " of ticket " + std::to_string(ticket) +
                       ", which was never given or is dropped");
    }
    return found->second;
  }

  void begin(Entry& entry, std::byte* memory, bool is_write) {
    entry.memory = memory;
    entry.is_write = is_write;
    if (!file_) return;
    queue_.push_back(&entry);
    entry.begun = 0;
    entry.is_queued = true;
    work_.notify_all();
  }

  void leave_queue(Entry& entry) noexcept {
    if (!entry.is_queued) return;
    queue_.erase(std::find(queue_.begin(), queue_.end(), &entry));
    entry.is_queued = false;
  }

  void wait_until_idle(Entry& entry, std::unique_lock<std::mutex>& lock) noexcept {
    if (!entry.is_busy()) return;
    const Stopwatch watch(statistics_.wait_ms);  // guarded by the lock
    done_.wait(lock, [&] { return !entry.is_busy(); });
  }

  [[noreturn]] void fail(const Entry& entry, const std::string& why) const {
    throw FileError(chosen_folder(options_.folder), entry.offset, why);
  }

  void throw_error(Entry& entry) {
    const int error = std::exchange(entry.error, 0);
    if (error == 0) return;
    entry.is_lost = entry.is_lost || entry.is_write;
    entry.is_write = false;
    fail(entry, std::string(entry.is_lost ? "writing" : "reading") + " " + std::to_string(entry.bytes) +
                    " offloaded bytes failed: " + std::strerror(error));
  }

  std::byte* bounce(int worker) const {
    const auto first = reinterpret_cast<std::uintptr_t>(pin_->data());
    const std::size_t aligned = rounded_up(first) - first;
    return static_cast<std::byte*>(pin_->data()) + aligned + static_cast<std::size_t>(worker) * options_.chunk_bytes;
  }

  // Moves one chunk. Returns 0 or an errno.
  int move(const Entry& entry, std::size_t at, std::size_t bytes, std::byte* buffer) noexcept {
    const std::size_t whole = rounded_up(bytes);
    if (entry.is_write) {
      std::memcpy(buffer, entry.memory + at, bytes);
      std::memset(buffer + bytes, 0, whole - bytes);
      return file_->write(entry.offset + at, buffer, whole);
    }
    const int error = file_->read(entry.offset + at, buffer, whole);
    if (error == 0) std::memcpy(entry.memory + at, buffer, bytes);
    return error;
  }

  void work(int worker) {
    std::byte* const buffer = bounce(worker);
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return is_stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Entry& entry = *queue_.front();
      const std::size_t at = entry.begun, bytes = std::min(options_.chunk_bytes, entry.bytes - at);
      entry.begun += bytes;
      ++entry.active;
      if (entry.begun == entry.bytes) leave_queue(entry);
      lock.unlock();
      double ms = 0;
      int error = 0;
      {
        const Stopwatch watch(ms);
        error = move(entry, at, bytes, buffer);
      }
      lock.lock();
      statistics_.transfer_ms += ms;
      --entry.active;
      if (error != 0 && entry.error == 0) {
        entry.error = error;
        leave_queue(entry);  // skip the rest
      }
      if (!entry.is_busy()) done_.notify_all();
    }
  }

  void join() noexcept {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  const Options options_;
  const Device device_;
  const Tensor bounce_;
  std::optional<WritePin> pin_;     // of bounce_: empty on a dry device
  std::optional<DirectFile> file_;  // empty on a dry device

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable work_, done_;
  std::deque<Entry*> queue_;  // transfers with bytes that no worker has started
  std::unordered_map<Ticket, Entry> entries_;
  std::map<std::size_t, std::vector<std::uint64_t>> free_slots_;  // by size
  std::map<std::size_t, std::size_t> slot_counts_;
  Ticket last_ticket_ = 0;
  TierStatistics statistics_;
  bool is_stopping_ = false;
  std::vector<std::thread> workers_;
};

FileTier::FileTier(Device device, const Options& options) : state_(std::make_unique<State>(device, options)) {}
FileTier::~FileTier() = default;

Device FileTier::device() const noexcept { return state_->device(); }
Ticket FileTier::write(const void* from, std::size_t bytes, Stream) { return state_->write(from, bytes); }
void FileTier::read(Ticket ticket, void* to, Stream) { state_->read(ticket, to); }
void FileTier::wait(Ticket ticket) { state_->wait(ticket); }
void FileTier::drop(Ticket ticket) noexcept { state_->drop(ticket); }
TierStatistics FileTier::statistics() const { return state_->statistics(); }

std::size_t FileTier::workspace_bytes(const Options& options) noexcept {
  return static_cast<std::size_t>(options.workers) * options.chunk_bytes + DirectFile::alignment;
}

}  // namespace thimble::memory
