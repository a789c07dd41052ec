#include <thimble/models/weights/follow_weights.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/models/transformer/transformer.h>
#include <thimble/models/weights/config.h>
#include <thimble/nn/files/checkpoint_info.h>
#include <thimble/nn/files/weight_files.h>
#include <thimble/nn/files/weights.h>

namespace thimble::models {
namespace {

constexpr std::string_view gpt_prefix = "transformer.";  // in GPT-2's public files

/// The config.json in a folder, or next to a file named as the hub names weights; or empty.
std::string config_beside(const std::string& path) {
  std::error_code unknown;
  std::filesystem::path folder(path);
  if (!std::filesystem::is_directory(folder, unknown)) {
    const std::string name = folder.filename().string();
    const bool is_shard = name.starts_with("model-") && name.ends_with(".safetensors");
    if (name != nn::weight_file && name != nn::weight_index && !is_shard) return {};
    folder = folder.parent_path();
  }
  folder /= "config.json";
  return std::filesystem::exists(folder, unknown) ? folder.string() : std::string();
}

}  // namespace

std::string WeightFacts::text(const std::string& key) const {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string() : found->second;
}

WeightFacts read_weight_facts(const std::string& path, bool is_checkpoint) {
  WeightFacts facts{path, {}, {}};
  facts.is_checkpoint = is_checkpoint;
  const nn::WeightFiles files(path);
  facts.metadata = files.metadata();
  if (!is_checkpoint && nn::is_checkpoint(facts.metadata)) {
    throw ValueError("`weights`: expected parameters only, as `save_weights` writes them, got " + quote(path) +
                     ", a checkpoint; `resume` in training and `checkpoint` in generation read it");
  }
  if (is_checkpoint) {
    SafetensorsHeader header = files.weights().empty() ? SafetensorsHeader{} : files.weights().front().file->header();
    facts.metadata = nn::parse_checkpoint_info(header, path).metadata;
  } else {
    facts.config = config_beside(path);
  }
  const std::string_view prefix = is_checkpoint ? std::string_view(checkpoint_prefix) : std::string_view();
  for (const nn::StoredWeight& weight : files.weights()) {
    facts.bytes += weight.entry->bytes();
    std::string_view name = weight.entry->name;
    if (!name.starts_with(prefix) || weight.entry->shape.size() > 8) continue;
    name.remove_prefix(prefix.size());
    if (name.starts_with(gpt_prefix)) name.remove_prefix(gpt_prefix.size());
    if (name.ends_with(".weight_q8")) name.remove_suffix(3);  // as many rows
    Shape shape;
    for (const std::int64_t size : weight.entry->shape) shape.push_back(size);
    facts.shapes.emplace(name, shape);
  }
  return facts;
}

namespace {

using Size = std::int64_t ModelOptions::*;

/// A size and the tensor that shows it, under one of `names`.
struct ShapeOfSize {
  std::string_view family;
  Size size;
  int axis;  // in a file of weights; filters in a checkpoint have channels last
  std::vector<std::string_view> names;
};
const std::vector<ShapeOfSize>& shapes_of_sizes() {
  static const std::vector<ShapeOfSize> rows{
      {"gpt", &ModelOptions::vocabulary, 0, {"wte.weight", "lm_head.weight"}},
      {"gpt", &ModelOptions::width, 1, {"wte.weight", "lm_head.weight"}},
      {"gpt", &ModelOptions::sequence, 0, {"wpe.weight"}},
      {"llama", &ModelOptions::vocabulary, 0, {"model.embed_tokens.weight", "lm_head.weight"}},
      {"llama", &ModelOptions::width, 1, {"model.embed_tokens.weight", "lm_head.weight"}},
      {"llama", &ModelOptions::hidden, 0, {"model.layers.0.mlp.gate_proj.weight"}},
      {"bert",
       &ModelOptions::vocabulary,
       0,
       {"bert.embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.weight"}},
      {"bert",
       &ModelOptions::width,
       1,
       {"bert.embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight",
        "cls.predictions.decoder.weight"}},
      {"bert",
       &ModelOptions::sequence,
       0,
       {"bert.embeddings.position_embeddings.weight", "embeddings.position_embeddings.weight"}},
      {"vit", &ModelOptions::width, 2, {"class_token", "vit.embeddings.cls_token"}},
      {"vit", &ModelOptions::channels, 1, {"conv_proj.weight", "vit.embeddings.patch_embeddings.projection.weight"}},
      {"vit", &ModelOptions::classes, 0, {"heads.head.weight", "classifier.weight"}}};
  return rows;
}

/// A tensor's name before and after the layer's number.
struct LayerName {
  std::string_view family, before, after;
};
constexpr LayerName layer_names[] = {{"gpt", "h.", ".ln_1.weight"},
                                     {"llama", "model.layers.", ".input_layernorm.weight"},
                                     {"bert", "bert.encoder.layer.", ".intermediate.dense.weight"},
                                     {"bert", "encoder.layer.", ".intermediate.dense.weight"},
                                     {"vit", "encoder.layers.encoder_layer_", ".ln_1.weight"},
                                     {"vit", "vit.encoder.layer.", ".layernorm_before.weight"}};

/// Names of sizes in errors, and in the config.json of each family.
struct SizeName {
  Size size;
  const char *option, *gpt_key, *key;
};
constexpr SizeName size_names[] = {{&ModelOptions::vocabulary, "`vocabulary`", "vocab_size", "vocab_size"},
                                   {&ModelOptions::layers, "`layers`", "n_layer", "num_hidden_layers"},
                                   {&ModelOptions::width, "`width`", "n_embd", "hidden_size"},
                                   {&ModelOptions::heads, "`heads`", "n_head", "num_attention_heads"},
                                   {&ModelOptions::key_heads, "`key_heads`", "", "num_key_value_heads"},
                                   {&ModelOptions::hidden, "`hidden`", "", "intermediate_size"},
                                   {&ModelOptions::window, "`window`", "", "sliding_window"},
                                   {&ModelOptions::image, "`image`", "", "image_size"},
                                   {&ModelOptions::channels, "`channels`", "", "num_channels"},
                                   {&ModelOptions::classes, "`classes`", "", "id2label"},
                                   {&ModelOptions::sequence, "`sequence`", "n_positions", "max_position_embeddings"}};

const Shape* shape_of(const WeightFacts& facts, const ShapeOfSize& row) {
  for (const std::string_view name : row.names) {
    const auto found = facts.shapes.find(std::string(name));
    if (found != facts.shapes.end() && static_cast<int>(found->second.rank()) > row.axis) return &found->second;
  }
  return nullptr;
}

std::int64_t size_in(const Shape& shape, const ShapeOfSize& row, const WeightFacts& facts) {
  const bool is_filter = shape.rank() == 4;
  return shape[is_filter && facts.is_checkpoint ? shape.rank() - 1 : row.axis];
}

/// Layers are numbered from 0 on.
std::int64_t count_layers(const WeightFacts& facts, std::string_view family) {
  std::int64_t most = 0;
  for (const LayerName& name : layer_names) {
    if (name.family != family) continue;
    std::int64_t count = 0;
    const auto is_there = [&] {
      return facts.shapes.contains(std::string(name.before) + std::to_string(count) + std::string(name.after));
    };
    while (is_there()) ++count;
    most = std::max(most, count);
  }
  return most;
}

std::int64_t whole_number(const WeightFacts& facts, const std::string& key) {
  const std::string text = facts.text(key);
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty()) return 0;
  if (error != std::errc{} || stop != text.data() + text.size() || value < 1) {
    throw ValueError(facts.path + ": " + key + ": expected a whole number from 1 on, got " + quote(text));
  }
  return value;
}

/// Throws ValueError if the requested value is not the file's.
void require_same(const char* option, std::int64_t asked, std::int64_t own, const std::string& where) {
  if (asked == own) return;
  throw ValueError(std::string(option) + ": expected " + std::to_string(own) + ", as " + where + " has it, got " +
                   std::to_string(asked));
}

void require_same_function(std::string_view name, const ModelFunction& asked, const ModelFunction& own,
                           const std::string& where) {
  const nn::Metadata other = function_texts(with_function(own, asked), own);
  if (other.empty()) return;
  throw ValueError(std::string(name) + ": expected the function that " + where + " has, got another " +
                   other.begin()->first + ", " + other.begin()->second);
}

/// Throws ValueError unless the sizes in a config.json match the tensors. Runs before anything is built.
void require_shapes(const ModelConfig& config, const WeightFacts& facts, std::string_view family) {
  const auto key_of = [&](const SizeName& name) { return std::string(family == "gpt" ? name.gpt_key : name.key); };
  const auto require = [&](Size size, std::int64_t of_tensors) {
    for (const SizeName& name : size_names) {
      if (name.size != size || config.sizes.*size == of_tensors) continue;
      throw ValueError(facts.config + ": " + key_of(name) + ": expected " + std::to_string(of_tensors) +
                       ", as the tensors beside it have, got " + std::to_string(config.sizes.*size));
    }
  };
  for (const ShapeOfSize& row : shapes_of_sizes()) {
    if (row.family != family) continue;
    const Shape* const shape = shape_of(facts, row);
    if (shape != nullptr) require(row.size, size_in(*shape, row, facts));
    if (shape != nullptr || config.sizes.*row.size == 0) continue;
    throw ValueError(facts.path + ": expected a tensor " + quote(row.names.front()) + ", got none");
  }
  require(&ModelOptions::layers, count_layers(facts, family));
}

/// The number of key heads, from the rows of k_proj; 0 if unknown.
std::int64_t key_heads(const WeightFacts& facts, const ModelOptions& sizes, std::int64_t usual_heads) {
  const auto found = facts.shapes.find("model.layers.0.self_attn.k_proj.weight");
  const std::int64_t heads = sizes.heads > 0 ? sizes.heads : usual_heads;
  if (found == facts.shapes.end() || found->second.rank() != 2 || sizes.width % heads != 0) return 0;
  return found->second[0] / (sizes.width / heads);
}

void set_open(std::int64_t& size, std::int64_t value) {
  if (size == 0) size = value;
}

/// Takes sizes from the tensors' shapes.
void follow_shapes(std::string_view name, ModelOptions& sizes, const WeightFacts& facts) {
  const std::string_view family = model_family(name);
  const auto follow = [&](Size size, std::int64_t own) {
    const auto same = [&](const SizeName& one) { return one.size == size; };
    const bool is_of_data =
        size == &ModelOptions::vocabulary || size == &ModelOptions::channels || size == &ModelOptions::classes;
    if (facts.is_checkpoint && !is_of_data && sizes.*size > 0 && own > 0) {
      require_same(std::find_if(std::begin(size_names), std::end(size_names), same)->option, sizes.*size, own,
                   facts.path);
    }
    set_open(sizes.*size, own);
  };
  for (const ShapeOfSize& row : shapes_of_sizes()) {
    if (row.family != family) continue;
    if (const Shape* const shape = shape_of(facts, row)) follow(row.size, size_in(*shape, row, facts));
  }
  follow(&ModelOptions::layers, count_layers(facts, family));
  if (family == "llama") follow(&ModelOptions::key_heads, key_heads(facts, sizes, complete_options(name).heads));
}

/// The function in Thimble's metadata.
ModelFunction own_function(std::string_view name, const WeightFacts& facts) {
  const std::string saved = facts.text("model");
  const ModelFunction usual = complete_options(saved.empty() ? name : std::string_view(saved)).function;
  return read_function(facts.metadata, usual, facts.path);
}

void require_family(std::string_view name, const WeightFacts& facts) {
  const std::string saved = facts.text("model");
  if (saved.empty() || saved == name) return;
  if (model_family(saved) == model_family(name)) return;
  throw ValueError(facts.path + ": it is of the model " + quote(saved) + ", not of " + quote(name));
}

void follow_config(std::string_view name, ModelOptions& sizes, const WeightFacts& facts, WeightUse use) {
  const std::string_view family = model_family(name);
  const ModelConfig config = read_model_config(facts.config, family);
  require_shapes(config, facts, family);
  const ModelOptions& own = config.sizes;
  const bool learns_positions = family != "llama";
  for (const SizeName& size : size_names) {
    if (size.size == &ModelOptions::sequence && !learns_positions) continue;
    if (size.size != &ModelOptions::window && own.*size.size == 0) continue;
    if (sizes.*size.size > 0) require_same(size.option, sizes.*size.size, own.*size.size, facts.config);
    sizes.*size.size = own.*size.size;
  }
  if (!learns_positions && sizes.sequence == 0) {
    const std::int64_t usual = complete_options(name).sequence;
    if (use == WeightUse::writing || own.sequence < usual) sizes.sequence = own.sequence;
  }
  require_same_function(name, sizes.function, own.function, facts.config);
  sizes.function = own.function;
  if (sizes.dropout >= 0) return;
  if (!config.why_no_dropout.empty()) throw ValueError(config.why_no_dropout + "; `dropout` sets another");
  sizes.dropout = own.dropout;
}

}  // namespace

void follow_weights(std::string_view name, ModelOptions& sizes, const WeightFacts& facts, WeightUse use) {
  require_family(name, facts);
  if (use == WeightUse::writing && sizes.dropout < 0) sizes.dropout = 0;
  if (!facts.config.empty()) follow_config(name, sizes, facts, use);
  const std::int64_t heads = whole_number(facts, "heads"), window = whole_number(facts, "window");
  if (heads > 0) {
    if (sizes.heads > 0) require_same("`heads`", sizes.heads, heads, facts.path);
    if (sizes.window > 0) require_same("`window`", sizes.window, window, facts.path);
    sizes.heads = heads;
  }
  set_open(sizes.window, window);
  if (!facts.config.empty()) return;
  if (model_family(name) == "gpt" || model_family(name) == "llama" || model_family(name) == "bert" ||
      model_family(name) == "vit") {
    const ModelFunction own = own_function(name, facts);
    require_same_function(name, sizes.function, own, facts.path);
    if (own != complete_options(name).function) sizes.function = own;
  }
  follow_shapes(name, sizes, facts);
}

void follow_checkpoint(std::string_view name, ModelOptions& sizes, const WeightFacts& facts) {
  if (facts.text("model") != name) return;
  set_open(sizes.heads, whole_number(facts, "heads"));
  set_open(sizes.window, whole_number(facts, "window"));
  if (whole_number(facts, "heads") > 0 && sizes.function == ModelFunction{}) {
    const ModelFunction own = own_function(name, facts);
    if (own != complete_options(name).function) sizes.function = own;
  }
  follow_shapes(name, sizes, facts);
}

nn::Metadata function_metadata(std::string_view name, const ModelOptions& complete) {
  if (complete.heads == 0) return {};
  nn::Metadata metadata = function_texts(complete.function, complete_options(name).function);
  metadata["heads"] = std::to_string(complete.heads);
  if (complete.window > 0) metadata["window"] = std::to_string(complete.window);
  return metadata;
}

std::unique_ptr<Model> load_model(std::string_view name, const std::string& path, const nn::TensorOptions& on,
                                  ModelOptions options) {
  follow_weights(name, options, read_weight_facts(path), WeightUse::training);
  auto model = make_model(name, options, on);
  nn::load_weights(*model, path);
  return model;
}

}  // namespace thimble::models
