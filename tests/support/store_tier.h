#pragma once
// A tier in the host's memory with transfers that a test can make fail.

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/offload/tier.h>

namespace store_test {

using namespace thimble;

/// Copies at once. Its `fail_at`-th call of write, read or wait (from 1) fails; 0 fails none.
class MemoryTier final : public memory::Tier {
 public:
  explicit MemoryTier(memory::Device device = cpu, std::uint64_t fail_at = 0) : device_(device), fail_at_(fail_at) {}

  memory::Device device() const noexcept override { return device_; }
  memory::Ticket write(const void* from, std::size_t bytes, memory::Stream) override {
    count("write");
    std::vector<std::byte>& copy = live_[++last_];
    copy.resize(bytes);
    if (!device_.is_dry) std::memcpy(copy.data(), from, bytes);
    ++statistics_.writes;
    statistics_.bytes_written += bytes;
    statistics_.live_bytes += bytes;
    return last_;
  }
  void read(memory::Ticket ticket, void* to, memory::Stream) override {
    count("read");
    const std::vector<std::byte>& copy = live_.at(ticket);
    if (!device_.is_dry) std::memcpy(to, copy.data(), copy.size());
    ++statistics_.reads;
    statistics_.bytes_read += copy.size();
  }
  void wait(memory::Ticket) override { count("wait"); }
  void drop(memory::Ticket ticket) noexcept override {
    const auto found = live_.find(ticket);
    statistics_.live_bytes -= found->second.size();
    live_.erase(found);
  }
  memory::TierStatistics statistics() const override { return statistics_; }
  std::uint64_t calls() const noexcept { return calls_; }

 private:
  void count(const char* call) {
    if (++calls_ == fail_at_) throw FileError("memory", 0, std::string("no more ") + call);
  }

  memory::Device device_;
  std::uint64_t fail_at_, calls_ = 0;
  memory::Ticket last_ = 0;
  std::map<memory::Ticket, std::vector<std::byte>> live_;
  memory::TierStatistics statistics_;
};

}  // namespace store_test
