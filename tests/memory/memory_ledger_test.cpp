#include <algorithm>
#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/arena/arena.h>
#include <thimble/memory/policies/ledger.h>
#include <thimble/memory/policies/limit.h>
#include <thimble/memory/summary.h>
#include <thimble/models/planning/planning.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"

namespace {

using thimble::OutOfMemory;
using thimble::PathId;
using thimble::memory::Arena;
using thimble::memory::Block;
using thimble::memory::Category;
using thimble::memory::CategoryBytes;
using thimble::memory::Ledger;

constexpr std::size_t ledger_category_count = thimble::memory::category_count;

std::shared_ptr<Arena> dry_arena(Arena::Options options = {}) {
  return std::make_shared<Arena>(thimble::memory::make_dry_backing(thimble::cpu), options);
}

/// Interns a dotted path.
PathId ledger_path(std::string_view dotted) {
  PathId id = 0;
  while (!dotted.empty()) {
    const std::size_t dot = dotted.find('.');
    id = thimble::join_path(id, dotted.substr(0, dot));
    dotted = dot == std::string_view::npos ? std::string_view{} : dotted.substr(dot + 1);
  }
  return id;
}

}  // namespace

TEST_CASE("memory ledger: every category has a name of its own", "[memory][ledger]") {
  std::map<std::string_view, int> names;
  for (std::size_t i = 0; i < ledger_category_count; ++i) ++names[to_string(static_cast<Category>(i))];
  CHECK(names.size() == ledger_category_count);
  CHECK(names.count("parameter") == 1);
  CHECK(names.count("unknown") == 0);
}

TEST_CASE("memory ledger: books agree with a slow account", "[memory][ledger]") {
  const auto ledger = std::make_shared<Ledger>(dry_arena());
  const std::vector<std::string> paths = {"", "net", "net.a", "net.a.w", "net.ab", "other"};
  std::vector<PathId> ids;
  for (const std::string& path : paths) ids.push_back(ledger_path(path));

  // The reference: live bytes per (path, category), copied whenever their sum reaches a new peak.
  using Table = std::map<std::pair<std::size_t, std::size_t>, std::size_t>;
  struct Entry {
    Block* block;
    std::size_t path, category;
  };
  Table live, at_peak;
  CategoryBytes category_peak{};
  std::size_t sum = 0, peak = 0, differences = 0;
  std::vector<Entry> blocks;
  std::mt19937 random(3);

  const auto category_sum = [](const Table& table, std::size_t category) {
    std::size_t bytes = 0;
    for (const auto& [key, value] : table) bytes += key.second == category ? value : 0;
    return bytes;
  };
  const auto compare = [&] {
    if (ledger->bytes() != sum || ledger->max_allocated() != peak) ++differences;
    for (std::size_t c = 0; c < ledger_category_count; ++c) {
      const auto category = static_cast<Category>(c);
      if (ledger->bytes(category) != category_sum(live, c)) ++differences;
      if (ledger->bytes_by_category()[c] != category_sum(live, c)) ++differences;
      if (ledger->peak_by_category()[c] != category_sum(at_peak, c)) ++differences;
      if (ledger->max_allocated(category) != category_peak[c]) ++differences;
    }
    // "net.a" covers net.a and net.a.w, but not net.ab.
    std::size_t now = 0, then = 0, now_activation = 0, then_activation = 0;
    for (const std::size_t p : {std::size_t{2}, std::size_t{3}}) {
      for (std::size_t c = 0; c < ledger_category_count; ++c) {
        now += live[{p, c}];
        then += at_peak[{p, c}];
      }
      now_activation += live[{p, static_cast<std::size_t>(Category::activation)}];
      then_activation += at_peak[{p, static_cast<std::size_t>(Category::activation)}];
    }
    if (ledger->bytes_by_path("net.a") != now || ledger->peak_bytes_by_path("net.a") != then) ++differences;
    if (ledger->bytes(Category::activation, "net.a") != now_activation) ++differences;
    if (ledger->peak_bytes(Category::activation, "net.a") != then_activation) ++differences;
    if (ledger->bytes_by_path("") != sum || ledger->peak_bytes_by_path("") != peak) ++differences;
    if (ledger->bytes_by_path("nowhere") != 0 || ledger->bytes_by_path("net.a.") != 0) ++differences;
  };

  for (int i = 0; i < 20000; ++i) {
    const std::size_t what = random() % 10;
    if (what < 5 || blocks.empty()) {
      const std::size_t path = random() % paths.size(), category = random() % ledger_category_count;
      const std::size_t bytes = 1 + random() % 5000;
      blocks.push_back(
          {ledger->allocate({.bytes = bytes, .category = static_cast<Category>(category), .path = ids[path]}), path,
           category});
      live[{path, category}] += bytes;
      sum += bytes;
      category_peak[category] = std::max(category_peak[category], category_sum(live, category));
      if (sum > peak) {
        peak = sum;
        at_peak = live;
      }
    } else {
      const std::size_t which = random() % blocks.size();
      Entry& entry = blocks[which];
      live[{entry.path, entry.category}] -= entry.block->bytes;
      if (what < 6) {
        entry.category = random() % ledger_category_count;
        live[{entry.path, entry.category}] += entry.block->bytes;
        ledger->relabel(entry.block, static_cast<Category>(entry.category));
        if (static_cast<std::size_t>(entry.block->category) != entry.category) ++differences;
        category_peak[entry.category] = std::max(category_peak[entry.category], category_sum(live, entry.category));
      } else {
        sum -= entry.block->bytes;
        ledger->deallocate(entry.block, nullptr);
        entry = blocks.back();
        blocks.pop_back();
      }
    }
    if (i == 12345) {
      ledger->reset_peak();
      peak = sum;
      at_peak = live;
      for (std::size_t c = 0; c < ledger_category_count; ++c) category_peak[c] = category_sum(live, c);
    }
    if (i % 16 == 0) compare();
  }
  CHECK(differences == 0);
  for (const Entry& entry : blocks) ledger->deallocate(entry.block, nullptr);
  CHECK(ledger->bytes() == 0);
  CHECK(ledger->max_allocated() == peak);
}

TEST_CASE("memory ledger: the peak is the first moment of the largest sum", "[memory][ledger]") {
  const auto ledger = std::make_shared<Ledger>(dry_arena());
  for (const Category category : {Category::temporary, Category::activation}) {
    Block* const block = ledger->allocate({.bytes = 100, .category = category});
    ledger->relabel(block, Category::workspace);
    ledger->deallocate(block, nullptr);
  }
  CategoryBytes expected{};
  expected[static_cast<std::size_t>(Category::temporary)] = 100;
  CHECK(ledger->peak_by_category() == expected);
  CHECK(ledger->max_allocated() == 100);
  CHECK(ledger->max_allocated(Category::workspace) == 100);
}

TEST_CASE("memory ledger: the table names categories and paths", "[memory][ledger]") {
  const auto ledger = std::make_shared<Ledger>(dry_arena());
  const PathId fc = ledger_path("gpt.h.3.mlp.fc");
  Block* const weight = ledger->allocate({.bytes = 1536, .category = Category::parameter, .path = fc});
  Block* const kept =
      ledger->allocate({.bytes = 3 << 20, .category = Category::activation, .path = ledger_path("gpt")});
  ledger->deallocate(kept, nullptr);
  const std::string text = ledger->summary();
  INFO(text);
  CHECK(text.find("memory on dry(cpu)") != std::string::npos);
  CHECK(text.find("1.50 KiB (1536 B)") != std::string::npos);
  CHECK(text.find("3.00 MiB (3145728 B)") != std::string::npos);
  CHECK(text.find("gpt.h.3.mlp.fc") != std::string::npos);
  CHECK(text.find("gpt ") < text.find("gpt.h.3.mlp.fc"));  // most bytes at the peak first
  for (std::size_t i = 0; i < ledger_category_count; ++i) {
    CHECK(text.find(to_string(static_cast<Category>(i))) != std::string::npos);
  }
  CHECK(ledger->summary(1).find("and 1 more paths") != std::string::npos);
  CHECK(ledger->paths().size() == 2);
  ledger->deallocate(weight, nullptr);
}

TEST_CASE("memory ledger: out of memory carries the categories", "[memory][ledger]") {
  const auto ledger = std::make_shared<Ledger>(dry_arena({.capacity_bytes = 4 << 20}));
  Block* const block = ledger->allocate({.bytes = 1536, .category = Category::optimizer});
  try {
    ledger->allocate({.bytes = 8 << 20, .category = Category::activation, .path = ledger_path("net.a")});
    FAIL("the capacity was exceeded");
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    INFO(text);
    CHECK(error.facts().requested_bytes == 8 << 20);
    CHECK(error.facts().in_use_bytes == 1536);
    CHECK(error.facts().peak_bytes == 1536);
    CHECK(error.facts().capacity_bytes == 4 << 20);
    CHECK(error.facts().largest_free_bytes == (4 << 20) - 1536);
    for (const char* part : {"requested 8.00 MiB (8388608 B)", "of 'net.a'", "in use by category: parameter 0 B",
                             "optimizer 1.50 KiB (1536 B)", "capacity", "largest free block", "fragmentation"}) {
      INFO(part);
      CHECK(text.find(part) != std::string::npos);
    }
  }
  CHECK(ledger->bytes() == 1536);
  CHECK(ledger->max_allocated() == 1536);
  ledger->deallocate(block, nullptr);
}

TEST_CASE("memory limit: refuses above the limit and serves again below it", "[memory][limit]") {
  const auto arena = dry_arena();
  const auto limit = std::make_shared<thimble::memory::Limit>(arena, 1000);
  const auto ledger = std::make_shared<Ledger>(limit);
  ledger->deallocate(ledger->allocate({.bytes = 700}), nullptr);
  Block* const a = ledger->allocate({.bytes = 600, .category = Category::gradient});
  for (const std::size_t bytes : {std::size_t{401}, ~std::size_t{0}}) {
    try {
      bytes == 401 ? limit->allocate({.bytes = bytes}) : ledger->allocate({.bytes = bytes});
      FAIL("the limit was exceeded");
    } catch (const OutOfMemory& error) {
      const std::string text = error.what();
      INFO(text);
      CHECK(error.facts().requested_bytes == bytes);
      CHECK(error.facts().in_use_bytes == 600);
      CHECK(error.facts().peak_bytes == 700);
      CHECK(error.facts().capacity_bytes == 1000);
      CHECK(error.facts().largest_free_bytes == 400);
      CHECK(text.find("above the limit of 1000 B") != std::string::npos);
      CHECK((text.find("gradient 600 B") != std::string::npos) == (bytes != 401));
    }
  }
  CHECK(limit->live_bytes() == 600);
  CHECK(arena->statistics().allocation_count == 2);  // upstream was not asked
  Block* const b = ledger->allocate({.bytes = 400});
  CHECK(limit->live_bytes() == 1000);
  ledger->deallocate(a, nullptr);
  Block* const c = ledger->allocate({.bytes = 600});
  ledger->relabel(c, Category::workspace);
  CHECK(c->category == Category::workspace);
  CHECK(limit->limit_bytes() == 1000);
  ledger->deallocate(b, nullptr);
  ledger->deallocate(c, nullptr);
  CHECK(limit->live_bytes() == 0);
}

TEST_CASE("memory limit: what upstream refuses is not counted", "[memory][limit]") {
  const auto limit =
      std::make_shared<thimble::memory::Limit>(dry_arena({.capacity_bytes = 2 << 20}), std::size_t{1} << 40);
  CHECK_THROWS_AS(limit->allocate({.bytes = 3 << 20}), OutOfMemory);
  CHECK(limit->live_bytes() == 0);
}

TEST_CASE("memory ledger: threads do not disturb the books", "[memory][ledger]") {
  const auto arena = dry_arena();
  const auto ledger = std::make_shared<Ledger>(arena);
  const PathId path = ledger_path("net.a");
  std::atomic<bool> is_done{false};
  std::atomic<std::size_t> differences{0};
  std::thread reader([&] {
    while (!is_done) {
      const CategoryBytes bytes = ledger->peak_by_category();
      std::size_t sum = 0;
      for (const std::size_t value : bytes) sum += value;
      if (sum > ledger->max_allocated()) ++differences;
    }
  });
  std::vector<std::thread> writers;
  for (std::uint32_t seed = 0; seed < 3; ++seed) {
    writers.emplace_back([&, seed] {
      std::mt19937 random(seed);
      std::vector<Block*> live;
      for (int i = 0; i < 20000; ++i) {
        if (random() % 2 == 0 || live.empty()) {
          live.push_back(ledger->allocate({.bytes = 1 + random() % 4096, .path = path}));
          ledger->relabel(live.back(), Category::activation);
        } else {
          ledger->deallocate(live.back(), nullptr);
          live.pop_back();
        }
      }
      for (Block* block : live) ledger->deallocate(block, nullptr);
    });
  }
  for (std::thread& writer : writers) writer.join();
  is_done = true;
  reader.join();
  CHECK(differences == 0);
  CHECK(ledger->bytes() == 0);
  CHECK(ledger->max_allocated() == arena->statistics().peak_requested_bytes);
}

// ---- Parts of committed bytes: every table adds up to them.

using namespace thimble;
using files_test::contains;
using files_test::TemporaryFolder;
using memory::CommittedParts;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

std::size_t sum_of(const CategoryBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}); }

void check_parts(const CommittedParts& parts, std::size_t live, std::size_t holes, std::size_t rounding) {
  CHECK(parts.live_bytes == live);
  CHECK(parts.hole_bytes == holes);
  CHECK(parts.rounding_bytes == rounding);
}

// The last number of each line of `text` after the line with `from`, up to the first line with `to`: 1024 for "
// gradient   1,024   1.00 KiB" and for "  gradient   1,024".
std::vector<std::size_t> column(const std::string& text, const std::string& from, const std::string& to) {
  std::vector<std::size_t> numbers;
  std::istringstream lines(text.substr(text.find(from)));
  std::string line;
  for (std::getline(lines, line); std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word, found;
    while (words >> word) {
      if (word.find_first_not_of("0123456789,") == std::string::npos) found = word;
    }
    REQUIRE_FALSE(found.empty());
    found.erase(std::remove(found.begin(), found.end(), ','), found.end());
    numbers.push_back(std::stoull(found));
    if (contains(line, to)) break;
  }
  return numbers;
}

models::RunOptions small_gpt() {
  models::RunOptions options;
  options.setup.model = "char-gpt";
  options.setup.batch = 4;
  options.setup.sizes.layers = 3, options.setup.sizes.heads = 2, options.setup.sizes.width = 64;
  options.setup.sizes.sequence = 128;
  return options;
}

void check_plan(const models::PlanReport& report) {
  CHECK(report.committed.live_bytes == sum_of(report.plan.peak_by_category));
  CHECK(report.committed.total() == report.plan.peak_bytes);
  CHECK(report.committed.rounding_bytes < 2 * mib);  // the CPU's granule
}

}  // namespace

TEST_CASE("committed: live bytes, holes and rounding are all there is", "[memory]") {
  check_parts(memory::committed_parts(5, 7, 10), 5, 2, 3);
  check_parts(memory::committed_parts(5, 5, 5), 5, 0, 0);
  check_parts(memory::committed_parts(5, 20, 10), 5, 5, 0);  // holes without pages
  check_parts(memory::committed_parts(0, 0, 10), 0, 0, 10);

  const memory::Stack stack = memory::make_resource(dry(cpu));
  memory::Block* const first = stack.top->allocate({.bytes = 1000});  // 1024 in the arena
  memory::Block* const hole = stack.top->allocate({.bytes = mib});
  memory::Block* const last = stack.top->allocate({.bytes = 3 * mib});
  stack.top->deallocate(hole, nullptr);
  check_parts(memory::committed_at_peak(stack), 1000 + 4 * mib, 24, 6 * mib - 1024 - 4 * mib);
  check_parts(memory::committed_now(stack), 1000 + 3 * mib, 24 + mib, 6 * mib - 1024 - 4 * mib);
  const std::string table = memory::committed_table(stack);
  INFO(table);
  CHECK(contains(table, " 24 B\n  + rounding"));
  CHECK(contains(table, "= committed"));
  CHECK(contains(table, "1.00 MiB (1048600 B)"));
  CHECK(contains(table, "6.00 MiB (6291456 B)"));
  stack.top->deallocate(first, nullptr);
  stack.top->deallocate(last, nullptr);
  stack.arena->trim();
  CHECK(memory::committed_now(stack).total() == 0);
  CHECK(memory::committed_at_peak(stack).total() == 6 * mib);
  CHECK(contains(memory::summary(dry(cpu)), "+ holes between blocks"));
}

TEST_CASE("committed: the categories of a plan, its holes and its rounding are its peak", "[fit]") {
  models::RunOptions options = small_gpt();
  const models::PlanReport kept = models::make_plan(options);
  check_plan(kept);
  options.budget_bytes = (kept.minimum_bytes + kept.keep_everything_bytes) / 2;
  const models::PlanReport planned = models::make_plan(options);
  CHECK(planned.plan.tape != nullptr);
  check_plan(planned);
  options.budget_bytes = 1;  // forces the smallest plan
  check_plan(models::make_plan(options));
  options = small_gpt();
  options.setup.micro_batches = 2;
  options.setup.fuses_optimizer = false;
  check_plan(models::make_plan(options));
  check_plan(models::make_plan(small_gpt(), {.is_inference = true}));
}

TEST_CASE("committed: the columns that the program prints add up", "[program]") {
  const TemporaryFolder folder;
  const std::string model = "mlp --batch 4 --image 8 --width 64 ";
  const auto plan = program_test::run(folder, "plan " + model);
  if (!plan) {
    WARN("SKIPPED: THIMBLE_PROGRAM does not name the program");
    return;
  }
  REQUIRE(plan->status == 0);
  INFO(plan->out);
  std::vector<std::size_t> numbers = column(plan->out, "live bytes at the peak", "= peak (committed)");
  REQUIRE(numbers.size() > 4);
  CHECK(std::accumulate(numbers.begin(), numbers.end() - 1, std::size_t{0}) == numbers.back());

  const std::string run = "train " + model + "--data synthetic --steps 2 ";
  const auto train = program_test::run(folder, run);
  REQUIRE(train->status == 0);
  INFO(train->out);
  numbers = column(train->out, "  predicted peak", "rounding to granules");
  REQUIRE(numbers.size() > 4);
  CHECK(std::accumulate(numbers.begin() + 1, numbers.end(), std::size_t{0}) == numbers.front());  // the measured peak

  for (const std::string& line : {"plan " + model, run, run + "--budget 8MiB "}) {
    const auto out = program_test::run(folder, line + "--json");
    REQUIRE(out->status == 0);
    const auto json = nlohmann::json::parse(out->out);
    std::size_t sum = json["hole_bytes"].get<std::size_t>() + json["rounding_bytes"].get<std::size_t>();
    for (const auto& [name, bytes] : json["peak_by_category"].items()) sum += bytes.get<std::size_t>();
    CHECK(sum == json[line.starts_with("plan") ? "peak_bytes" : "measured_peak_bytes"].get<std::size_t>());
  }
}
