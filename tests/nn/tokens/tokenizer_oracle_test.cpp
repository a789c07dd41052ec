// Hugging Face's `tokenizers` against Thimble's: tests/oracle/tokenizer_check.py trains tokenizers like those in GPT-2,
// Llama 3 and Qwen 2.5, and encodes real and hostile text.

#include <filesystem>
#include <string>
#include <vector>

#include <thimble/core/files/bytes.h>
#include <thimble/nn/tokens/tokenizer_file.h>

#include "support/catch.h"
#include "support/files.h"
#include "support/find_data.h"
#include "support/skip.h"

using namespace thimble;
using namespace files_test;

namespace {

/// Reads the script's lists of byte strings, each after its 32-bit size.
std::vector<std::string> read_list(const std::string& path) {
  const std::string file = read_text_file(path);
  std::vector<std::string> items;
  for (std::size_t at = 0; at < file.size();) {
    const auto size = load_le<std::uint32_t>(bytes_of(file).data() + at);
    items.push_back(file.substr(at + 4, size));
    at += 4 + size;
  }
  return items;
}

void append_item(std::string& list, std::string_view item) {
  list += little(item.size(), 4);
  list += item;
}

std::vector<std::uint32_t> ids_of(const std::string& item) {
  std::vector<std::uint32_t> ids;
  for (std::size_t at = 0; at < item.size(); at += 4) ids.push_back(load_le<std::uint32_t>(bytes_of(item).data() + at));
  return ids;
}

/// Counts the strings whose tokens differ from `expected`, and shows the first.
std::size_t count_wrong(const data::Tokenizer& tokenizer, const std::vector<std::string>& strings,
                        const std::vector<std::string>& expected) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::string& text = strings[i % strings.size()];
    const auto ids = tokenizer.encode(text, {.adds_ends = i >= strings.size()});
    if (ids == ids_of(expected[i])) continue;
    if (++wrong > 1) continue;
    const auto theirs = ids_of(expected[i]);
    std::size_t at = 0;
    while (at < ids.size() && at < theirs.size() && ids[at] == theirs[at]) ++at;
    WARN("string " << i << " differs at token " << at << ": ours "
                   << quote(tokenizer.decode(std::span(ids).subspan(at))) << ", theirs "
                   << quote(tokenizer.decode(std::span(theirs).subspan(at))));
  }
  return wrong;
}

}  // namespace

TEST_CASE("tokenizer: agrees with Hugging Face's tokenizers", "[tokens][oracle]") {
  const TemporaryFolder folder;
  std::string texts;
  if (const auto shakespeare = thimble_test::find_data("tinyshakespeare/input.txt")) texts = " '" + *shakespeare + "'";
  std::string sources;
  for (const char* part : {"docs", "nn", "models", "bench"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(tests_folder().parent_path() / part)) {
      const std::string extension = entry.path().extension().string();
      const bool is_source = extension == ".md" || extension == ".cpp" || extension == ".h" || extension == ".js";
      if (is_source && sources.size() < 1'000'000) sources += read_text_file(entry.path().string());
    }
  }
  write_text_file(folder / "sources.txt", sources);
  texts += " '" + (folder / "sources.txt") + "'";
  const int made = run_oracle("tokenizer_check.py", "make '" + folder.path() + "'" + texts);
  if (made == 77) {
    thimble_test::skip("THIMBLE_PYTHON does not name a Python with tokenizers");
    return;
  }
  REQUIRE(made == 0);
  const std::vector<std::string> strings = read_list(folder / "strings"), sequences = read_list(folder / "sequences");
  REQUIRE(strings.size() > 9'000);
  for (const char* name : {"gpt2", "gpt2-mixed", "llama3", "llama3-fewer", "llama3-whole", "qwen2"}) {
    INFO(name);
    const std::string base = folder / name;
    const data::Tokenizer tokenizer = data::read_tokenizer(base + ".json");
    CHECK(count_wrong(tokenizer, strings, read_list(base + ".ids")) == 0);
    data::write_tokenizer(base + ".ours.json", tokenizer);
    std::string decoded;
    for (const std::string& sequence : sequences) {
      append_item(decoded, tokenizer.decode(ids_of(sequence)));
      append_item(decoded, tokenizer.decode(ids_of(sequence), true));
    }
    write_text_file(base + ".decoded", decoded);
  }
  CHECK(run_oracle("tokenizer_check.py", "check '" + folder.path() + "'") == 0);
}
