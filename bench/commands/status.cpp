#include <exception>
#include <new>
#include <system_error>

#include <thimble/bench/commands.h>
#include <thimble/core/error.h>
#include <thimble/nn/fit/fit.h>

namespace thimble::bench {

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
