// Broken, foreign or hostile JSON for every reader of JSON: each throws a short, typed error that names the file, in
// this project's words.

#include <functional>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/models/generation/generate.h>
#include <thimble/models/weights/config.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/files/weight_files.h>
#include <thimble/nn/fit/cost_file.h>
#include <thimble/nn/fit/graph_file.h>
#include <thimble/nn/fit/plan_file.h>
#include <thimble/nn/lora/adapter_files.h>
#include <thimble/nn/tokens/tokenizer_file.h>

#include "support/catch.h"
#include "support/files.h"

using namespace thimble;

TEST_CASE("json texts: readers speak in words of their own", "[files]") {
  const files_test::TemporaryFolder folder;
  struct Reader {
    std::string file;  // in the folder
    std::function<void(const std::string& path)> read;
  };
  const std::string here = folder.path();
  const std::vector<Reader> readers = {
      {"tokenizer.json", [](const std::string& path) { data::read_tokenizer(path); }},
      {"graph.json", [](const std::string& path) { nn::read_graph(path); }},
      {"costs.json", [](const std::string& path) { nn::read_cost_model(path); }},
      {"generation_config.json", [&](const std::string&) { models::find_end_tokens(here, {}); }},
      {"config.json", [](const std::string& path) { models::read_model_config(path, "llama"); }},
      {"model.safetensors.index.json", [](const std::string& path) { nn::WeightFiles files(path); }},
      {"small.plan", [](const std::string& path) { nn::read_plan(path, nullptr, cpu); }},  // makes no run
      {"adapter_config.json", [&](const std::string&) { nn::read_adapter_folder(here); }},
  };
  const std::string digits(100'000, '7');
  std::vector<std::string> texts = {"",
                                    "{",
                                    "[]",
                                    "7",
                                    "null",
                                    "\"x\"",
                                    "{\"a\": }",
                                    "{\"a\": 1e999}",
                                    "{\"a\": -1e999}",
                                    "{\"a\": " + digits + "}",
                                    "{\"" + digits + "\": 1}",
                                    "\"" + digits + "\"",
                                    std::string(100'000, '['),
                                    "{\"a\": \"\xff\"}",
                                    std::string("{\0}", 3),
                                    "{\"version\": [], \"model\": 7, \"weight_map\": [], \"nodes\": 7, "
                                    "\"format\": 3, \"eos_token_id\": {}}",
                                    "{\"weight_map\": {\"a\": 7}, \"nodes\": [[]], \"hardware\": 1, \"format\": "
                                    "\"thimble cost model 1\", \"eos_token_id\": [[]], \"target_modules\": 7}"};
  // Plans with the right checksum.
  for (const char* const members :
       {"", ",\"figures\":7", ",\"figures\":{},\"key\":[],\"tape\":-1,\"placement\":{}",
        ",\"figures\":{\"peak\":1e300},\"key\":{\"nodes\":[[7]]},\"tape\":{\"fates\":\"x\"},\"placement\":[[]]"}) {
    texts.push_back("{\"format\":\"thimble plan 2\",\"crc32c\":\"00000000\"" + std::string(members) + "}");
    nn::put_plan_sum(texts.back());
  }
  for (const Reader& reader : readers) {
    for (const std::string& text : texts) {
      files_test::write_text_file(folder / reader.file, text);
      std::string message;
      try {
        reader.read(folder / reader.file);
        // An object without the key simply sets nothing.
        CHECK((reader.file == "generation_config.json" && text.starts_with("{")));
        continue;
      } catch (const Error& error) {
        message = error.what();
      }
      INFO(reader.file << " " << text.substr(0, 80) << ": " << message.substr(0, 300));
      CHECK(files_test::contains(message, here));
      CHECK(message.size() < 1000);
      for (const char* const foreign : {"json.exception", "type_error", "parse_error", "out_of_range", "stoi", "stoul",
                                        "basic_string", "filesystem error", "bad_", "vector::"}) {
        INFO(foreign);
        CHECK(!files_test::contains(message, foreign));
      }
    }
    std::remove((folder / reader.file).c_str());
  }
  // A header of safetensors is JSON after its length.
  for (const std::string& text : texts) {
    files_test::write_text_file(folder / "x.safetensors", files_test::little(text.size(), 8) + text);
    try {
      SafetensorsReader reader(folder / "x.safetensors");
      FAIL("read: " << text.substr(0, 80));
    } catch (const FileError& error) {
      const std::string message = error.what();
      INFO(text.substr(0, 80) << ": " << message.substr(0, 300));
      CHECK(message.size() < 1000);
      CHECK(!files_test::contains(message, "json.exception"));
    }
  }
}
