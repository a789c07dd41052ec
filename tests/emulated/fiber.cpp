#include "emulated/fiber.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace thimble::emulated {
namespace {

// Nine cache lines more than a power of two, so that the tops of many stacks do not share one cache set.
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

namespace {

// AddressSanitizer must know the current stack. It understands swapcontext(), too, but then forgets all it knows of a
// stack each time.
#if defined(__SANITIZE_ADDRESS__)
void new_stack(void* stack) { __asan_unpoison_memory_region(stack, stack_bytes); }
void begin_switch(void** frames, const void* to, std::size_t bytes) {
  __sanitizer_start_switch_fiber(frames, to, bytes);
}
void end_switch(void* frames, const void** from, std::size_t* bytes) {
  __sanitizer_finish_switch_fiber(frames, from, bytes);
}
#else
void new_stack(void*) {}
void begin_switch(void**, const void*, std::size_t) {}
void end_switch(void*, const void**, std::size_t*) {}
#endif

}  // namespace

// Saves the callee-saved registers on one stack and loads them from the other. swapcontext() would call the kernel for
// the signal mask each time.
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
  new_stack(stack_.get());
  void (*const first)() = [] { starting->run(); };
  auto top = reinterpret_cast<std::uintptr_t>(stack_.get() + stack_bytes) & ~std::uintptr_t{15};
  auto* const frame = reinterpret_cast<void**>(top) - 8;  // six registers, an entry address, and a null caller
  std::memset(frame, 0, 8 * sizeof(void*));
  frame[6] = reinterpret_cast<void*>(first);
  own_ = frame;
}
void Fiber::run() {
  end_switch(own_frames_, &host_stack_, &host_stack_bytes_);
  entry_(argument_);
  std::abort();
}
void Fiber::resume() {
  starting = this;
  begin_switch(&host_frames_, stack_.get(), stack_bytes);
  thimble_switch_stacks(&host_, own_);
  end_switch(host_frames_, nullptr, nullptr);
}
void Fiber::leave() {
  begin_switch(&own_frames_, host_stack_, host_stack_bytes_);
  thimble_switch_stacks(&own_, host_);
  end_switch(own_frames_, &host_stack_, &host_stack_bytes_);
}

#endif

}  // namespace thimble::emulated
