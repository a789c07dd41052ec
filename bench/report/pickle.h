#pragma once
// A writer of Python pickles, protocol 2 (PEP 307): dictionaries, lists, integers and text. Nothing is ever read.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

namespace thimble::report {

/// Writes one object. Containers are open from begin to end; a dictionary takes keys and values in turn. Text is
/// written once and referred to after that (the pickle's memo).
class PickleWriter {
 public:
  PickleWriter();

  void begin_dict();
  void end_dict();
  void begin_list();
  void end_list();
  /// In a list: readers take what was written so far off their stack. For lists of more than a thousand items.
  void next_batch();
  /// 64 bits, signed.
  void integer(std::int64_t value);
  /// UTF-8 without surrogates.
  void text(std::string_view value);

  /// Remembers the value that has just been written, a container that has ended among them, and names it.
  std::uint32_t remember();
  /// Writes a remembered value again, as the same object.
  void again(std::uint32_t name);

  /// The whole file. Nothing can be written after.
  std::string finish();

 private:
  void byte(unsigned value) { bytes_ += static_cast<char>(value); }
  void little(std::uint64_t value, int count);

  std::string bytes_;
  std::unordered_map<std::string, std::uint32_t> texts_;
  std::uint32_t names_ = 0;
};

}  // namespace thimble::report
