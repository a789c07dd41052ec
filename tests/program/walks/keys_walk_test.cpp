// Changes every key of every file that the program reads: the result changes, the file is refused, a message names the
// key, or keys.txt says why it has no effect. The program writes these files itself.

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/ops/copy.h>
#include <thimble/models/llama/llama_files.h>
#include <thimble/nn/files/safetensors.h>

#include "program/walks/walk.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/program.h"
#include "support/skip.h"

namespace {

using namespace thimble;
using files_test::contains;
using nlohmann::ordered_json;

/// A way to change one key: its name, and an action that writes the changed file.
struct Change {
  std::string key, value;  // the new value, if messages may show it
  std::function<void()> apply;
};

class Files {
 public:
  std::string path(const std::string& name) const { return folder_ / name; }

  program_test::Output run(const std::string& arguments) const {
    const std::string line = "cd '" + folder_.path() + "' && '" + std::getenv("THIMBLE_PROGRAM") + "' " + arguments +
                             " > out~ 2> error~ < /dev/null";
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, files_test::read_text_file(folder_ / "out~"),
            files_test::read_text_file(folder_ / "error~")};
  }
  void make(const std::string& arguments) const {
    const program_test::Output made = run(arguments);
    INFO(arguments << "\n" << made.error);
    REQUIRE(made.status == 0);
  }

 private:
  files_test::TemporaryFolder folder_;
};

ordered_json other_value(const ordered_json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number_float()) return value.get<double>() * 1.5 + 0.25;
  if (value.is_number()) return value.get<std::int64_t>() + 1;
  if (value.is_string()) return value.get<std::string>() + "x";
  return 1;  // null or an empty container
}

std::string text_of(const ordered_json& value) {
  if (value.is_number_integer()) return value.dump();
  return value.is_string() ? value.get<std::string>() : "";
}

/// Leaves of a document, with only the first two entries of a list or of an object with many keys (a vocabulary).
void list_leaves(const ordered_json& value, const std::string& path, const std::string& name,
                 std::vector<std::pair<std::string, std::string>>& leaves) {
  constexpr std::size_t many = 40;
  if (!value.is_structured() || value.empty()) return leaves.emplace_back(path, name), void();
  std::size_t seen = 0;
  for (const auto& [key, inner] : value.items()) {
    if ((value.is_array() || value.size() > many) && ++seen > 2) return;
    const bool is_list = value.is_array() || value.size() > many;
    std::string token = key;
    for (std::size_t at = 0; (at = token.find_first_of("~/", at)) != std::string::npos; at += 2) {
      token.replace(at, 1, token[at] == '~' ? "~0" : "~1");
    }
    list_leaves(inner, path + "/" + token, name + "/" + (is_list ? std::to_string(seen - 1) : key), leaves);
  }
}

std::vector<Change> json_changes(const std::string& path) {
  const ordered_json whole = ordered_json::parse(files_test::read_text_file(path));
  std::vector<std::pair<std::string, std::string>> leaves;
  list_leaves(whole, "", "", leaves);
  std::vector<Change> changes;
  for (const auto& [pointer, name] : leaves) {
    changes.push_back({name, text_of(other_value(whole[ordered_json::json_pointer(pointer)])),
                       [whole, path, at = ordered_json::json_pointer(pointer)] {
                         ordered_json changed = whole;
                         changed[at] = other_value(changed[at]);
                         files_test::write_text_file(path, changed.dump());
                       }});
  }
  changes.push_back({"/no_such_key", "", [whole, path] {
                       ordered_json changed = whole;
                       changed["no_such_key"] = 3;
                       files_test::write_text_file(path, changed.dump());
                     }});
  return changes;
}

/// Changes of a safetensors file's metadata. The rewritten file gets correct checksums.
std::vector<Change> metadata_changes(const std::string& path) {
  const std::string whole = files_test::read_text_file(path);
  std::vector<Change> changes;
  const auto metadata = SafetensorsReader(path).header().metadata;
  for (const auto& [key, value] : metadata) {
    changes.push_back({"/" + key, "", [path, whole, key = key, value = value] {
                         const std::string before = path + ".before";
                         files_test::write_text_file(before, whole);
                         const SafetensorsReader reader(before);
                         auto changed = reader.header().metadata;
                         char* end = nullptr;
                         const double number = std::strtod(value.c_str(), &end);
                         changed[key] =
                             *end == '\0' && value.size() < 16 ? ordered_json(number + 1).dump() : value + "ff";
                         if (changed[key].ends_with(".0")) changed[key].resize(changed[key].size() - 2);
                         SafetensorsWriter writer(path, reader.header().tensors, changed);
                         for (const SafetensorsEntry& entry : writer.header().tensors) {
                           std::vector<std::byte> bytes(static_cast<std::size_t>(entry.bytes()));
                           reader.read(reader.entry(entry.name), bytes);
                           writer.append(entry.name, bytes);
                         }
                         writer.commit();
                       }});
  }
  return changes;
}

/// Changes of a file with fixed fields: adds one to each field's last byte.
std::vector<Change> byte_changes(const std::string& path,
                                 const std::vector<std::pair<std::string, std::size_t>>& fields) {
  const std::string whole = files_test::read_text_file(path);
  std::vector<Change> changes;
  for (const auto& [name, at] : fields) {
    changes.push_back({"/" + name, "", [whole, path, at = at] {
                         std::string changed = whole;
                         changed[at] = static_cast<char>(changed[at] + 1);
                         files_test::write_text_file(path, changed);
                       }});
  }
  return changes;
}

/// Changes of the cells in a CSV's first two lines.
std::vector<Change> cell_changes(const std::string& path) {
  const std::string whole = files_test::read_text_file(path);
  std::vector<Change> changes;
  const std::size_t end = whole.find('\n', whole.find('\n') + 1);
  for (std::size_t at = 0; (at = whole.find_first_of(",\n", at)) <= end; ++at) {
    changes.push_back({"/cell " + std::to_string(changes.size()), "", [whole, path, at] {
                         std::string changed = whole;
                         changed.insert(at, "7");
                         files_test::write_text_file(path, changed);
                       }});
  }
  return changes;
}

struct Format {
  const char* name;
  std::string file, command;
  std::vector<Change> changes;
};

/// The reasons of keys without effect, from lines "format | key | reason".
std::map<std::string, std::string> read_reasons() {
  std::map<std::string, std::string> reasons;
  std::istringstream in(
      files_test::read_text_file((files_test::tests_folder() / "program" / "walks" / "keys.txt").string()));
  for (std::string line; std::getline(in, line);) {
    const std::size_t cut = line.rfind(" | ");
    if (!line.starts_with("#") && cut != std::string::npos) reasons[line.substr(0, cut)] = line.substr(cut + 3);
  }
  return reasons;
}

/// Whether the message names the key, as in the file or as a flag, or the file or its folder.
bool names(const std::string& message, const std::string& key, const std::string& file) {
  std::string last = key.substr(key.find_last_of("/.") + 1), flag = last;
  std::replace(flag.begin(), flag.end(), '_', '-');
  const std::string folder = file.substr(0, file.find('/'));
  return contains(message, last) || contains(message, flag) || contains(message, folder);
}

/// The program's own lines of standard error, without progress.
std::string told(const std::string& error) {
  std::string text;
  std::istringstream in(error);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("thimble: ")) text += line + " ";
  }
  return text;
}

}  // namespace

TEST_CASE("keys walk: every key of every file is read, refused by name, or known to have no effect", "[program]") {
  if (std::getenv("THIMBLE_PROGRAM") == nullptr) return thimble_test::skip("THIMBLE_PROGRAM does not name the program");
  const Files files;
  files_test::write_text_file(
      files.path("text.txt"),
      files_test::read_text_file((files_test::tests_folder() / "program" / "walks" / "flags.txt").string()));
  const std::string net = "char-gpt --batch 4 --layers 2 --heads 2 --width 16 --seq 16 ";
  const std::string planned =
      "char-gpt --batch 8 --layers 4 --heads 2 --width 64 --seq 64 --budget 9MiB --data synthetic ";
  std::filesystem::copy_file(files_test::tests_folder() / "fuzz/corpus/tokenizer/gpt2", files.path("tokenizer.json"));
  files.make("train " + net +
             "--data text.txt --steps 30 --lr 0.05 --dropout 0.2 --save-weights text.safetensors --save text.run");
  files.make("train " + net + "--data synthetic --steps 20 --lr 0.05 --lora 2 --save-adapters adapters");
  files.make("plan " + planned + "--save small.plan");
  files.make("plan " + planned + "--profile --profile-file times.json");
  {
    models::ModelOptions sizes;
    sizes.layers = 2, sizes.heads = 4, sizes.key_heads = 2, sizes.width = 32, sizes.hidden = 48, sizes.sequence = 64;
    sizes.vocabulary = 310;
    RandomGenerator generator(3);
    const GeneratorScope scope(generator);
    models::Llama model(models::llama_config("tiny-llama", sizes), {});
    for (const auto& p : model.parameters()) {  // larger than initial values, so that texts depend on all of them
      auto values = to_host<float>(p.tensor);
      for (float& value : values) value *= p.tensor.rank() >= 2 ? 12.0F : 1.0F;
      copy_into(p.tensor, from_host(values, p.tensor.shape()));
    }
    models::save_llama(model, files.path("llama"));
  }
  const auto idx = [](std::uint32_t magic, std::initializer_list<std::uint32_t> sizes, std::size_t bytes) {
    std::string text = files_test::big(magic, 4);
    for (const std::uint32_t size : sizes) text += files_test::big(size, 4);
    for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(i * 37 % 10);
    return text;
  };
  files_test::write_text_file(files.path("a-images-idx3-ubyte"), idx(0x803, {40, 8, 8}, 40 * 64));
  files_test::write_text_file(files.path("a-labels-idx1-ubyte"), idx(0x801, {40}, 40));
  files_test::write_text_file(files.path("lives.csv"), "id,lower,upper,size\n1,1,3,20\n2,3,5,40\n");
  files_test::write_text_file(files.path("special.txt"), "to be <|endoftext|> or not");
  const std::string images = "train mlp --batch 4 --width 8 --data a-images-idx3-ubyte --steps 20 --json";
  const std::string write = " --prompt to --tokens 12 --json";
  Format formats[] = {
      {"plan file", "small.plan", "train " + planned + "--plan small.plan --steps 3 --eval-batches 1 --json", {}},
      {"times file", "times.json", "plan " + planned + "--profile-file times.json --json", {}},
      {"tokenizer.json", "tokenizer.json", "tokenizer encode --tokenizer tokenizer.json --data special.txt", {}},
      {"adapter_config.json",
       "adapters/adapter_config.json",
       "train " + net + "--data synthetic --adapters adapters --steps 2 --lr 0.1 --json",
       {}},
      {"config.json",
       "llama/config.json",
       "generate tiny-llama --weights llama --tokenizer tokenizer.json" + write,
       {}},
      {"weights' metadata", "text.safetensors", "generate char-gpt --weights text.safetensors" + write, {}},
      {"checkpoint's metadata",
       "text.run",
       "train " + net + "--data text.txt --steps 31 --dropout 0.2 --lr 0.05 --resume text.run --json",
       {}},
      {"CSV of lifetimes", "lives.csv", "pack lives.csv --json", {}},
      {"IDX images", "a-images-idx3-ubyte", images, {}},
      {"IDX labels", "a-labels-idx1-ubyte", images, {}}};
  for (Format& f : formats) {
    const std::string path = files.path(f.file);
    if (f.file.ends_with(".json") || f.file.ends_with(".plan")) {
      f.changes = json_changes(path);
    } else if (f.file.ends_with(".csv")) {
      f.changes = cell_changes(path);
    } else if (f.file.ends_with("ubyte")) {
      std::vector<std::pair<std::string, std::size_t>> fields{{"magic", 3}, {"count", 7}, {"values", 16 + 5}};
      if (f.file.starts_with("a-images")) fields.insert(fields.end(), {{"height", 11}, {"width", 15}});
      f.changes = byte_changes(path, fields);
    } else {
      f.changes = metadata_changes(path);
    }
  }

  const auto reasons = read_reasons();
  std::string list;
  for (const Format& f : formats) {
    const std::string whole = files_test::read_text_file(files.path(f.file));
    const program_test::Output before = files.run(f.command);
    INFO(f.command << "\n" << before.error);
    REQUIRE(before.status == 0);
    for (const Change& change : f.changes) {
      const std::string key = std::string(f.name) + " | " + change.key;
      INFO(key);
      change.apply();
      const program_test::Output after = files.run(f.command);
      std::string verdict;
      if (after.status == 2 || after.status == 3) {
        INFO(after.error);
        CHECK(
            (names(after.error, change.key, f.file) || (!change.value.empty() && contains(after.error, change.value))));
        verdict = "refused: " + after.error.substr(0, after.error.find('\n'));
      } else if (after.status != 0) {
        FAIL_CHECK("status " << after.status << ": " << after.error);
      } else if (const auto differences = walk_test::differences(before.out, after.out); !differences.empty()) {
        verdict = "changes " + *differences.begin();
      } else if (told(after.error) != told(before.error) && names(told(after.error), change.key, " other data: ")) {
        verdict = "told: " + told(after.error);
      } else {
        const auto reason = std::find_if(reasons.begin(), reasons.end(), [&](const auto& row) {
          const std::string& known = row.first;
          return known.back() == '*' ? key.starts_with(known.substr(0, known.size() - 1)) : key == known;
        });
        if (reason == reasons.end()) FAIL_CHECK("has no effect, and tests/program/walks/keys.txt has no reason");
        verdict = "no effect: " + (reason == reasons.end() ? "UNKNOWN" : reason->second);
      }
      list += key + ": " + verdict + "\n";
      files_test::write_text_file(files.path(f.file), whole);
    }
  }
  walk_test::write_list("keys", list);
}
