#include <thimble/bench/report/pickle.h>

#include <cstdint>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>

namespace thimble::report {
namespace pickle_detail {

// Opcodes are named as in Python's pickletools.
class Writer {
 public:
  void value(const nlohmann::ordered_json& value) {
    if (value.is_object()) {
      bytes_ += "}(";  // EMPTY_DICT MARK
      for (const auto& [key, entry] : value.items()) {
        text(key);
        this->value(entry);
      }
      bytes_ += 'u';  // SETITEMS
    } else if (value.is_array()) {
      constexpr std::size_t batch = 1000;  // readers hold the items of a batch on a stack
      bytes_ += "](";                      // EMPTY_LIST MARK
      std::size_t count = 0;
      for (const nlohmann::ordered_json& item : value) {
        if (count > 0 && count % batch == 0) bytes_ += "e(";  // APPENDS MARK
        this->value(item);
        ++count;
      }
      bytes_ += 'e';
    } else if (value.is_number_integer()) {
      integer(value.get<std::int64_t>());
    } else if (value.is_string()) {
      text(value.get_ref<const std::string&>());
    } else {
      throw ValueError("write_pickle: expected an object, an array, an integer or text, got " + value.dump());
    }
  }

  std::string bytes_ = "\x80\x02";  // PROTO

 private:
  void integer(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (value >= 0 && value < 256) {
      number('K', bits, 1);  // BININT1
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      number('J', bits, 4);  // BININT
    } else {
      bytes_ += "\x8A";  // LONG1
      number(8, bits, 8);
    }
  }
  void text(const std::string& value) {
    const auto [found, is_new] = texts_.try_emplace(value, texts_.size());
    const std::size_t name = found->second;
    const bool is_short = name < 256;
    if (!is_new) return number(is_short ? 'h' : 'j', name, is_short ? 1 : 4);  // BINGET, LONG_BINGET
    number('X', value.size(), 4);                                              // BINUNICODE
    bytes_ += value;
    number(is_short ? 'q' : 'r', name, is_short ? 1 : 4);  // BINPUT, LONG_BINPUT
  }
  // An opcode and its operand, the lowest byte first.
  void number(char opcode, std::uint64_t value, int bytes) {
    bytes_ += opcode;
    for (int i = 0; i < bytes; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
  }

  std::unordered_map<std::string, std::size_t> texts_;
};

}  // namespace pickle_detail

std::string write_pickle(const nlohmann::ordered_json& value) {
  pickle_detail::Writer writer;
  writer.value(value);
  return writer.bytes_ + ".";  // STOP
}

}  // namespace thimble::report
