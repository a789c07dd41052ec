// The picture of memory in a terminal while a program runs.

#include "support/catch.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include <thimble/bench/commands/live.h>

#include "support/files.h"

namespace {

using namespace thimble;
using files_test::contains;
using files_test::TemporaryFolder;

}  // namespace

TEST_CASE("seeing: a live picture shows what the bytes are, to the column", "[seeing]") {
  bench::LiveBytes bytes;
  bytes.now[static_cast<std::size_t>(Category::parameter)] = 25 << 20;
  bytes.now[static_cast<std::size_t>(Category::activation)] = 25 << 20;
  bytes.committed_bytes = 60 << 20;
  bytes.peak_bytes = 80 << 20;
  bytes.budget_bytes = 100 << 20;
  const std::string picture = bench::live_picture(bytes, 100);
  // Without the colours.
  std::string plain;
  for (std::size_t i = 0; i < picture.size(); ++i) {
    if (picture[i] == '\033')
      i = picture.find('m', i);
    else
      plain += picture[i];
  }
  const auto cells = [](const char* cell, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += cell;
    return text;
  };
  CHECK(plain == cells("\xE2\x96\x88", 50) + cells("\xE2\x96\x91", 10) + cells("\xC2\xB7", 19) + "\xE2\x94\x83" +
                     cells("\xC2\xB7", 20) +
                     "\n\xE2\x96\x88 parameters 25.00 MiB  \xE2\x96\x88 activations 25.00 MiB\n"
                     "committed 60.00 MiB  peak 80.00 MiB  budget 100.00 MiB\n");
  bytes.peak_bytes = 30 << 20;  // inside of the activations: no column is lost
  const std::string inside = bench::live_picture(bytes, 100);
  CHECK(contains(inside, "\xE2\x94\x83"));
  CHECK(std::count(inside.begin(), inside.end(), '\n') == bench::live_lines);
  CHECK_NOTHROW(bench::live_picture({}, 1));
}

TEST_CASE("seeing: the view draws by itself, and lines stand above it", "[seeing]") {
  const TemporaryFolder folder;
  std::FILE* const file = std::fopen((folder / "terminal").c_str(), "w");
  REQUIRE(file != nullptr);
  {
    const memory::Stack stack = memory::make_resource(cpu);
    bench::LiveView view(file, stack, std::size_t{1} << 20);
    memory::Block* const block = stack.top->allocate({1 << 19, 64, Category::gradient, 0, nullptr});
    view.print("step 1", true);
    stack.top->deallocate(block, nullptr);
    view.print(std::string(300, '3'), true);
    view.print("step 2", false);
  }
  std::fclose(file);
  const std::string text = files_test::read_text_file(folder / "terminal");
  CHECK(contains(text, "step 1\n"));
  CHECK(contains(text, "gradients 512.00 KiB"));
  CHECK(contains(text, "budget 1.00 MiB"));
  const std::string whole = std::string(300, '3').append("\n");
  CHECK(contains(text, whole));  // what stays is whole
  CHECK(contains(text, "step 2\n"));
  const std::string gone = "\033[3A\033[J";  // the picture; the line above it stays
  CHECK(text.substr(text.size() - gone.size()) == gone);
}
