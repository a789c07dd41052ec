// The memory contract, checked on the process itself: inside a launch no allocation bypasses the ledger, an arena's
// resident pages are its committed bytes, training fits into a limit set by the kernel, and predictions equal
// measurements.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include <thimble/autograd/functions.h>
#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/view.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/stack.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/training/training.h>

#include "support/catch.h"
#include "support/heap_watch.h"

using namespace thimble;
#if defined(THIMBLE_TEST_WATCHES_HEAP)
using namespace heap_watch;
#endif

namespace {

constexpr std::size_t contract_MiB = std::size_t{1} << 20;

models::Setup make_setup(const char* model, std::int64_t batch, const char* optimizer, models::ModelOptions sizes) {
  models::Setup setup;
  setup.model = model;
  setup.batch = batch;
  setup.optimizer.name = optimizer;
  setup.sizes = sizes;
  return setup;
}

models::ModelOptions gpt_sizes(std::int64_t layers, std::int64_t width, std::int64_t sequence, double dropout = 0) {
  models::ModelOptions sizes;
  sizes.layers = layers, sizes.width = width, sizes.heads = 4, sizes.sequence = sequence, sizes.dropout = dropout;
  return sizes;
}

models::ModelOptions image_sizes(std::int64_t image, std::int64_t width = 0) {
  models::ModelOptions sizes;
  sizes.image = image, sizes.width = width;
  return sizes;
}

std::string describe(const models::Setup& setup) {
  return setup.model + ", batch " + std::to_string(setup.batch) + ", " + setup.optimizer.name;
}

}  // namespace

#if defined(THIMBLE_TEST_WATCHES_HEAP)

TEST_CASE("contract: an allocation inside of a launch is caught", "[contract]") {
  // Volatile, so that the compiler removes no pair of allocation and release.
  static void* volatile block = nullptr;
  struct Offender {
    const char* name;
    void (*allocate)();
    void (*release)();
  };
  const auto free_block = [] { std::free(block); };
  const Offender offenders[] = {
      {"malloc", [] { block = std::malloc(allowed_bytes + 1); }, free_block},
      {"calloc", [] { block = std::calloc(allowed_bytes, 2); }, free_block},
      {"realloc", [] { block = std::realloc(nullptr, allowed_bytes + 1); }, free_block},
      {"aligned_alloc", [] { block = std::aligned_alloc(64, 2 * allowed_bytes); }, free_block},
      {"new", [] { block = ::operator new(allowed_bytes + 1); }, [] { ::operator delete(block); }},
      {"aligned new", [] { block = ::operator new (2 * allowed_bytes, std::align_val_t{64}); },
       [] { ::operator delete (block, std::align_val_t{64}); }},
      {"vector", [] { block = new std::vector<char>(2 * allowed_bytes); },
       [] { delete static_cast<std::vector<char>*>(block); }},
  };
  for (const Offender& offender : offenders) {
    INFO(offender.name);
    const Watch watching;
    offender.allocate();
    offender.release();
    CHECK(watching.count() == 0);  // outside a launch every allocation is fine
    launch(cpu, [&](const Addresses&) {
      offender.allocate();
      offender.release();
    });
    CHECK(watching.count() == 1);
    launch(dry(cpu), [&](const Addresses&) { offender.allocate(); });
    CHECK(watching.count() == 1);  // a dry launch runs nothing
  }
  {
    const Watch watching;
    launch(cpu, [&](const Addresses&) {
      block = std::malloc(allowed_bytes);
      std::free(block);
    });
    CHECK(watching.count() == 0);
  }
  const int threads_before = thread_count();
  set_thread_count(3);
  {
    const Watch watching;  // a worker thread's offence counts, too
    launch(cpu, [&](const Addresses&) {
      parallel_threads(3, [](int thread) {
        void* volatile own = thread == 2 ? std::malloc(3 * allowed_bytes) : nullptr;
        std::free(own);
      });
    });
    CHECK(watching.count() == 1);
    CHECK(Watch::largest() == 3 * allowed_bytes);
  }
  set_thread_count(threads_before);
}

TEST_CASE("contract: a tape that is used again asks the heap for nothing", "[contract]") {
  const memory::Stack stack = memory::make_resource(cpu);
  const ResourceScope scope(stack.top);
  Tensor x = zeros({2, 4}), w = zeros({4, 4});
  x.require_grad();
  w.require_grad();
  Tape tape;
  const auto run = [&](bool goes_back) {
    const long before = heap_calls();
    Tensor loss;
    {
      const Recording on(tape);
      Tensor y = x;
      for (int i = 0; i < 50; ++i) y = relu(add(linear(y, w), x));
      loss = sum(y);
    }
    goes_back ? tape.backward(loss) : tape.clear();
    x.grad() = w.grad() = Tensor();
    return heap_calls() - before;
  };
  CHECK(run(false) > 0);  // its tables grow
  for (const bool goes_back : {false, true}) {
    run(goes_back);
    run(goes_back);
    CHECK(run(goes_back) == 0);
  }
}

TEST_CASE("contract: training allocates nothing inside of a launch", "[contract]") {
  const std::vector<models::Setup> setups{make_setup("char-gpt", 2, "adamw", gpt_sizes(2, 64, 32, 0.1)),
                                          make_setup("resnet18", 2, "momentum", image_sizes(32, 16)),
                                          make_setup("mlp", 16, "adam", image_sizes(28))};
  const int threads_before = thread_count();
  for (const int threads : {1, 2}) {
    set_thread_count(threads);
    for (models::Setup setup : setups) {
      for (const models::Build build : {models::Build::fused, models::Build::textbook}) {
        setup.sizes.build = build;
        INFO(describe(setup) << ", " << threads << " threads");
        const Watch watching;
        nn::profile_training(cpu, models::zero_batch_run(setup), 2);
        INFO("largest: " << Watch::largest() << " bytes");
        CHECK(watching.count() == 0);
      }
    }
  }
  set_thread_count(threads_before);
}

// ---- The process. Each check runs in a new one: this program again, with one hidden test case.

namespace {

constexpr int child_passed = 42;  // differs from the status of a failed test program, or one that found no test

// Ends a child after all its checks have passed.
[[noreturn]] void pass() {
  std::fflush(stdout);
  _exit(child_passed);
}

// Runs a hidden test case of this program; returns its exit status, 255 if it died. After a mere fork the parent's
// earlier memory would count.
int in_new_process(const char* test_case) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "contract", test_case, static_cast<char*>(nullptr));
    _exit(254);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

models::Setup middle_gpt() {
  models::ModelOptions sizes = gpt_sizes(3, 384, 128);
  sizes.heads = 6;
  return make_setup("char-gpt", 4, "adamw", sizes);
}
models::Setup middle_resnet() { return make_setup("resnet18", 8, "momentum", image_sizes(32)); }

constexpr int middle_threads = 2;  // fixed, because each thread has a stack and a heap

void check_growth(const models::Setup& setup) {
  set_thread_count(middle_threads);
  const nn::MemoryProfile measured = nn::profile_training(cpu, models::zero_batch_run(setup), 3);
  REQUIRE(measured.rss_bytes == measured.peak_bytes);  // nothing was trimmed
  REQUIRE(measured.peak_live_bytes <= measured.peak_bytes);
  REQUIRE(process::peak_rss_bytes() > measured.peak_bytes);
  const std::size_t outside = process::peak_rss_bytes() - measured.peak_bytes;
  std::printf("%s: arena %.0f MiB, process outside of it %.1f MiB\n", describe(setup).c_str(),
              static_cast<double>(measured.peak_bytes) / contract_MiB, static_cast<double>(outside) / contract_MiB);
  REQUIRE(outside <= 48 * contract_MiB);
  pass();
}

// RLIMIT_DATA counts all writable memory: heap and thread stacks besides the arena.
void limit_data(std::size_t bytes) {
  const rlimit limit{bytes, bytes};
  REQUIRE(setrlimit(RLIMIT_DATA, &limit) == 0);
}

void check_limit(const models::Setup& setup) {
  set_thread_count(middle_threads);
  const std::size_t predicted = nn::profile_training(dry(cpu), models::zero_batch_run(setup), 3).peak_bytes;
  limit_data(predicted + 64 * contract_MiB);
  const nn::MemoryProfile measured = nn::profile_training(cpu, models::zero_batch_run(setup), 3);
  REQUIRE(measured.peak_bytes == predicted);
  std::printf("%s: predicted %.0f MiB, trained with RLIMIT_DATA 64 MiB above\n", describe(setup).c_str(),
              static_cast<double>(predicted) / contract_MiB);
  pass();
}

void check_refusal(const models::Setup& setup) {
  set_thread_count(middle_threads);
  const std::size_t predicted = nn::profile_training(dry(cpu), models::zero_batch_run(setup), 3).peak_bytes;
  limit_data(predicted / 2);
  REQUIRE_THROWS_AS(nn::profile_training(cpu, models::zero_batch_run(setup), 3), OutOfMemory);
  // Training that fits still works.
  REQUIRE_NOTHROW(nn::profile_training(cpu, models::zero_batch_run(make_setup("mlp", 4, "sgd", image_sizes(28)))));
  pass();
}

// Twelve layers reach the same losses in a third of the bytes of keeping everything, plus 64 MiB for the rest of the
// process. Without the budget the limit refuses the run.
void check_budget() {
  set_thread_count(1);  // two threads that wait for each other on a busy machine take minutes
  models::RunOptions options;
  options.setup = make_setup("char-gpt", 24, "adamw", gpt_sizes(12, 128, 64, 0.1));
  options.data = "synthetic";
  options.steps = 5;
  options.eval_batches = 1;
  const auto losses_of = [](models::Engine& engine) {
    std::vector<double> losses;
    engine.run([&](const nn::Progress& p) { losses.push_back(p.loss); });
    return losses;
  };
  models::Engine free(options);
  const std::vector<double> losses = losses_of(free);
  options.budget_bytes = free.plan().peak_bytes / 3;
  models::Engine planned(options);
  limit_data(options.budget_bytes + 64 * contract_MiB);
  REQUIRE(losses_of(planned) == losses);
  REQUIRE_THROWS_AS(losses_of(free), OutOfMemory);
  std::printf("12 layers: %.0f MiB without a budget, trained in %.0f MiB with RLIMIT_DATA 64 MiB above\n",
              static_cast<double>(free.plan().peak_bytes) / contract_MiB,
              static_cast<double>(options.budget_bytes) / contract_MiB);
  pass();
}

}  // namespace

TEST_CASE("contract child: gpt growth", "[.contract-child]") { check_growth(middle_gpt()); }
TEST_CASE("contract child: resnet growth", "[.contract-child]") { check_growth(middle_resnet()); }
TEST_CASE("contract child: gpt limit", "[.contract-child]") { check_limit(middle_gpt()); }
TEST_CASE("contract child: resnet limit", "[.contract-child]") { check_limit(middle_resnet()); }
TEST_CASE("contract child: gpt budget", "[.contract-child]") { check_budget(); }
TEST_CASE("contract child: gpt refusal", "[.contract-child]") { check_refusal(middle_gpt()); }
TEST_CASE("contract child: resnet refusal", "[.contract-child]") { check_refusal(middle_resnet()); }

TEST_CASE("contract: the process grows by the arena and little else", "[contract]") {
  CHECK(in_new_process("contract child: gpt growth") == child_passed);
  CHECK(in_new_process("contract child: resnet growth") == child_passed);
}

TEST_CASE("contract: a third of the bytes, inside a limit of the kernel, and the same losses", "[contract]") {
  CHECK(in_new_process("contract child: gpt budget") == child_passed);
}

TEST_CASE("contract: training runs inside a limit of the kernel, or is refused", "[contract]") {
  CHECK(in_new_process("contract child: gpt limit") == child_passed);
  CHECK(in_new_process("contract child: resnet limit") == child_passed);
  CHECK(in_new_process("contract child: gpt refusal") == child_passed);
  CHECK(in_new_process("contract child: resnet refusal") == child_passed);
}

#endif  // glibc without sanitizers
#undef THIMBLE_TEST_HAS_SANITIZER

TEST_CASE("contract: what is predicted is what is measured", "[contract]") {
  struct Row {
    const char* model;
    models::ModelOptions sizes;
  };
  const Row rows[] = {
      {"mlp", image_sizes(28)}, {"resnet18", image_sizes(16, 8)}, {"char-gpt", gpt_sizes(2, 64, 24, 0.1)}};
  const auto check = [](const models::Setup& setup) {
    INFO(describe(setup) << (setup.sizes.build == models::Build::fused ? ", fused" : ", textbook"));
    const nn::MemoryProfile predicted = nn::profile_training(dry(cpu), models::zero_batch_run(setup));
    const nn::MemoryProfile measured = nn::profile_training(cpu, models::zero_batch_run(setup));
    CHECK(predicted.peak_bytes == measured.peak_bytes);
    CHECK(predicted.lower_bound_bytes == measured.lower_bound_bytes);
    CHECK(predicted.peak_live_bytes == measured.peak_live_bytes);
    CHECK(predicted.peak_by_category == measured.peak_by_category);
    CHECK(measured.rss_bytes == measured.peak_bytes);
  };
  const int threads_before = thread_count();
  for (const Row& row : rows) {
    set_thread_count(1);
    for (const std::int64_t batch : {1, 5}) {
      for (const char* optimizer : {"sgd", "momentum", "adam", "adamw"}) {
        check(make_setup(row.model, batch, optimizer, row.sizes));
      }
    }
    // Workspace depends on the number of threads, kept bytes on the build.
    set_thread_count(3);
    models::Setup setup = make_setup(row.model, 4, "momentum", row.sizes);
    setup.sizes.build = models::Build::textbook;
    check(setup);
  }
  set_thread_count(threads_before);
}

// ---- Reshaping a view whose elements are not contiguous.

TEST_CASE("reshape: across a gap there is no view, beside it there is", "[core]") {
  const std::vector<float> values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23};
  const Tensor whole = from_host(values, {4, 6});
  const Tensor half = view::slice(whole, 1, 0, 3);  // (4, 3) of rows of 6
  CHECK_FALSE(view::can_reshape(half, {12}));
  CHECK_THROWS_AS(view::reshape(half, {12}), ShapeError);
  CHECK_THROWS_WITH(view::reshape(whole, {-1, -1}), "reshape: (-1, -1) is not a shape; one size may be -1");
  for (const auto& [begin, end, step] : {std::array{-1, 3, 1}, {2, 1, 1}, {0, 7, 1}, {0, 3, 0}, {0, 3, -1}}) {
    INFO(begin << " to " << end << " by " << step);
    CHECK_THROWS_AS(view::slice(whole, 1, begin, end, step), ShapeError);
  }
  CHECK(view::slice(whole, 1, 6, 6).shape() == Shape{4, 0});
  CHECK(view::slice(whole, 1, 1, 6, 4).shape() == Shape{4, 2});
  CHECK(view::slice(whole, 1, 1, 6, 5).shape() == Shape{4, 1});
  CHECK_FALSE(view::can_reshape(half, {2, 6}));
  REQUIRE(view::can_reshape(half, {2, 2, 3}));
  CHECK(to_host<float>(view::reshape(half, {2, 2, 3})) == std::vector<float>{0, 1, 2, 6, 7, 8, 12, 13, 14, 18, 19, 20});
  REQUIRE(view::can_reshape(whole, {24}));
  CHECK(to_host<float>(view::reshape(whole, {24})) == values);
}

TEST_CASE("shape: axes from the end, and strides around an empty axis", "[core]") {
  CHECK(normalize_axis("f", -2, 2) == 0);
  CHECK(normalize_axis("f", 1, 2) == 1);
  CHECK_THROWS_AS(normalize_axis("f", -3, 2), ShapeError);
  CHECK_THROWS_AS(normalize_axis("f", 2, 2), ShapeError);
  CHECK(contiguous_strides({2, 0, 3}) == Shape{3, 3, 1});
}
