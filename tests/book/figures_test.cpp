// The book's pictures are the program's drawings, and each is in a chapter.

#include <filesystem>
#include <set>

#include "chapters.h"
#include "support/catch.h"
#include "support/files.h"

namespace fs = std::filesystem;

TEST_CASE("book: pictures are drawn from what they show", "[book]") {
  // The command's folder is deleted when it ends, so the comparison is part of the command.
  const book::Result result = book::run(
      "thimble book --figures new >/dev/null && for f in new/*.svg; do cmp \"$f\" docs/book/figures/$(basename $f); "
      "done; "
      "ls new | sort");
  INFO("draw them anew: OMP_NUM_THREADS=2 THIMBLE_ISA=generic thimble book --figures docs/book/figures\n"
       << result.output);
  CHECK(result.output.find("differ") == std::string::npos);
  CHECK(result.output.find("No such file") == std::string::npos);
  std::set<std::string> committed;
  for (const auto& entry : fs::directory_iterator("docs/book/figures")) committed.insert(entry.path().filename());
  std::string names;
  for (const std::string& name : committed) names += name + "\n";
  CHECK(result.output == names);
}

TEST_CASE("book: every picture stands in the chapter of its number", "[book]") {
  std::set<int> with_pictures;
  for (const auto& entry : fs::directory_iterator("docs/book/figures")) {
    const std::string name = entry.path().filename();
    bool is_shown = false;
    for (const book::Chapter& chapter : book::chapters()) {
      const bool is_here = chapter.text.find("](figures/" + name + ")") != std::string::npos;
      if (is_here && chapter.number == std::stoi(name)) with_pictures.insert(chapter.number);
      is_shown |= is_here && chapter.number == std::stoi(name);
    }
    INFO(name);
    CHECK(is_shown);
  }
  CHECK(with_pictures.size() == book::chapters().size());
}

TEST_CASE("book: pictures have a dark scheme and say what they are", "[book]") {
  for (const auto& entry : fs::directory_iterator("docs/book/figures")) {
    const std::string svg = files_test::read_text_file(entry.path());
    INFO(entry.path());
    CHECK(svg.find("prefers-color-scheme:dark") != std::string::npos);
    CHECK(svg.find("<title>") != std::string::npos);
    CHECK(svg.size() < 400'000);
  }
}
