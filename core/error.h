#pragma once
// Typed errors. Every message names the operation, the value it got and the values it expects.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace thimble {

/// Base of every error the library throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A shape, axis or index does not fit the operation: `matmul: inner sizes differ, lhs (2, 3), rhs (4, 5)`.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// A dtype is not supported by the operation, or two operands disagree.
class DTypeError : public Error {
 public:
  using Error::Error;
};

/// A device does not exist, two operands live on different devices, or data is read on a dry device.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// An argument (a rate, a probability, a name, a flag) is outside its range.
class ValueError : public Error {
 public:
  using Error::Error;
};

/// Misuse of the tape: backward twice, a tensor of another tape, a saved tensor that was overwritten.
class AutogradError : public Error {
 public:
  using Error::Error;
};

/// A plan cannot be made or kept.
class PlanError : public Error {
 public:
  using Error::Error;
};

/// A file cannot be read or written: path, byte offset where reading stopped, and why.
class FileError : public Error {
 public:
  FileError(std::string path, std::uint64_t offset, const std::string& why)
      : Error(path + ": at byte " + std::to_string(offset) + ": " + why), path_(std::move(path)), offset_(offset) {}

  const std::string& path() const noexcept { return path_; }
  std::uint64_t offset() const noexcept { return offset_; }

 private:
  std::string path_;
  std::uint64_t offset_;
};

/// A rank failed, did not answer in time, or sent an unexpected message (dist/communicator.h).
class RankError : public Error {
 public:
  RankError(int rank, const std::string& text) : Error(text), rank_(rank) {}
  /// The failed rank's number among all ranks.
  int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

/// A launch uses a parameter whose bytes are away and were not fetched (core/tensor/parameter_store.h). The message has
/// its module path, its size and a way to fetch it.
class AwayError : public Error {
 public:
  using Error::Error;
};

/// A request for memory failed. Nothing has changed, and the request can be repeated.
class OutOfMemory : public Error {
 public:
  struct Facts {
    std::size_t requested_bytes = 0;
    std::size_t in_use_bytes = 0;        ///< live bytes at that moment
    std::size_t peak_bytes = 0;          ///< largest live bytes so far
    std::size_t capacity_bytes = 0;      ///< limit of the resource; 0 if unbounded
    std::size_t largest_free_bytes = 0;  ///< the largest request that would have succeeded
  };

  OutOfMemory(const std::string& message, Facts facts) : Error(message), facts_(facts) {}
  const Facts& facts() const noexcept { return facts_; }

 private:
  Facts facts_;
};

}  // namespace thimble
