#include "emulated/fiber.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace thimble::emulated {
namespace {

// Nine lines of a cache more than a power of two, so that many stacks' tops do not share one set of it.
constexpr std::size_t stack_bytes = (std::size_t{128} << 10) + 576;

thread_local Fiber* starting = nullptr;

}  // namespace

Fiber::Fiber() : stack_(new std::byte[stack_bytes]) {}

#if defined(THIMBLE_FIBERS_OF_THE_SYSTEM)

void Fiber::start(void (*entry)(void*), void* argument) {
  entry_ = entry, argument_ = argument;
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack_.get();
  own_.uc_stack.ss_size = stack_bytes;
  own_.uc_link = nullptr;
  makecontext(
      &own_, [] { starting->entry_(starting->argument_); }, 0);
}
void Fiber::resume() {
  starting = this;
  swapcontext(&host_, &own_);
}
void Fiber::leave() { swapcontext(&own_, &host_); }

#else

// What a called function keeps goes to the one stack and comes from the other. swapcontext() would call the kernel for
// the mask of signals, each time.
extern "C" void thimble_switch_stacks(void** from, void* to);
asm(R"(
.text
.globl thimble_switch_stacks
.type thimble_switch_stacks, @function
thimble_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size thimble_switch_stacks, .-thimble_switch_stacks
)");

void Fiber::start(void (*entry)(void*), void* argument) {
  entry_ = entry, argument_ = argument;
  void (*const first)() = [] {
    starting->entry_(starting->argument_);
    std::abort();
  };
  auto top = reinterpret_cast<std::uintptr_t>(stack_.get() + stack_bytes) & ~std::uintptr_t{15};
  auto* const frame = reinterpret_cast<void**>(top) - 8;  // six registers, where to go, and a caller that is none
  std::memset(frame, 0, 8 * sizeof(void*));
  frame[6] = reinterpret_cast<void*>(first);
  own_ = frame;
}
void Fiber::resume() {
  starting = this;
  thimble_switch_stacks(&host_, own_);
}
void Fiber::leave() { thimble_switch_stacks(&own_, host_); }

#endif

}  // namespace thimble::emulated
