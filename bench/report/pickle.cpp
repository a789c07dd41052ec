#include <thimble/bench/report/pickle.h>

#include <utility>

namespace thimble::report {
namespace pickle_detail {

// Opcodes, by their names in Python's pickletools.
enum Opcode : unsigned {
  proto = 0x80,
  empty_dict = '}',
  empty_list = ']',
  mark = '(',
  setitems = 'u',
  appends = 'e',
  binint = 'J',
  binint1 = 'K',
  long1 = 0x8a,
  binunicode = 'X',
  binput = 'q',
  long_binput = 'r',
  binget = 'h',
  long_binget = 'j',
  stop = '.'
};

}  // namespace pickle_detail

PickleWriter::PickleWriter() {
  byte(pickle_detail::proto);
  byte(2);
}

void PickleWriter::begin_dict() {
  byte(pickle_detail::empty_dict);
  byte(pickle_detail::mark);
}

void PickleWriter::end_dict() { byte(pickle_detail::setitems); }

void PickleWriter::begin_list() {
  byte(pickle_detail::empty_list);
  byte(pickle_detail::mark);
}

void PickleWriter::end_list() { byte(pickle_detail::appends); }

void PickleWriter::next_batch() {
  byte(pickle_detail::appends);
  byte(pickle_detail::mark);
}

void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value < 256) {
    byte(pickle_detail::binint1);
    little(static_cast<std::uint64_t>(value), 1);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    byte(pickle_detail::binint);
    little(static_cast<std::uint64_t>(value), 4);
  } else {
    byte(pickle_detail::long1);
    byte(8);
    little(static_cast<std::uint64_t>(value), 8);
  }
}

void PickleWriter::text(std::string_view value) {
  const auto [found, is_new] = texts_.try_emplace(std::string(value), names_);
  if (!is_new) return again(found->second);
  byte(pickle_detail::binunicode);
  little(value.size(), 4);
  bytes_ += value;
  remember();
}

std::uint32_t PickleWriter::remember() {
  const bool is_short = names_ < 256;
  byte(is_short ? pickle_detail::binput : pickle_detail::long_binput);
  little(names_, is_short ? 1 : 4);
  return names_++;
}

void PickleWriter::again(std::uint32_t name) {
  const bool is_short = name < 256;
  byte(is_short ? pickle_detail::binget : pickle_detail::long_binget);
  little(name, is_short ? 1 : 4);
}

std::string PickleWriter::finish() {
  byte(pickle_detail::stop);
  return std::move(bytes_);
}

void PickleWriter::little(std::uint64_t value, int count) {
  for (int i = 0; i < count; ++i) byte(static_cast<unsigned>(value >> (8 * i) & 0xff));
}

}  // namespace thimble::report
