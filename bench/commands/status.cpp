#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/core/error.h>
#include <thimble/core/files/printable.h>
#include <thimble/nn/fit/fit.h>

namespace thimble::bench {
namespace status_detail {

// `text` on one line: what an out-of-memory table or a parser puts on several is joined by "; ".
std::string one_line(const std::string& text) {
  std::string line;
  bool is_break = false;
  for (const char c : text) {
    if (c == '\n' || c == '\r') {
      is_break = true;
      continue;
    }
    if (is_break && c == ' ') continue;
    if (is_break && !line.empty()) line += "; ";
    is_break = false;
    line += c;
  }
  return line;
}

}  // namespace status_detail

void print_error(const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "thimble: %s\n",
               printable(status_detail::one_line(with_flags(what))).c_str());  // names may hold what a terminal obeys
}

int status_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const nn::BudgetError&) {
    return memory_status;
  } catch (const OutOfMemory&) {
    return memory_status;
  } catch (const std::bad_alloc&) {
    return memory_status;
  } catch (const std::system_error& e) {  // a thread that the system does not start
    const bool is_for_want =
        e.code() == std::errc::resource_unavailable_try_again || e.code() == std::errc::not_enough_memory;
    return is_for_want ? memory_status : bad_input_status;
  } catch (const std::exception& e) {
    try {
      std::rethrow_if_nested(e);
    } catch (...) {
      return status_of(std::current_exception());
    }
    return bad_input_status;
  } catch (...) {
    return bad_input_status;
  }
}

}  // namespace thimble::bench
