#include <thimble/models/lora_theory.h>

#include <algorithm>

#include <thimble/core/error.h>
#include <thimble/models/gpt/gpt.h>
#include <thimble/models/llama/llama.h>
#include <thimble/models/transformer/theory.h>
#include <thimble/nn/layers/module.h>

namespace thimble::models {
namespace {

/// Walks through a model's forward and lists the kept tensors.
class LoraWalk {
 public:
  LoraWalk(DType dtype, const nn::LoraOptions& lora, LoraTheory& theory)
      : dtype_(dtype), lora_(lora), theory_(theory) {}

  /// Books kept tensors under `path` from here on.
  void begin(const std::string& path) { theory_.layers.push_back({path, {}}); }

  void keep(const char* name, std::int64_t elements) { add(name, dtype_, elements, 0); }
  void keep_statistics(const char* name, std::int64_t elements) { add(name, DType::f32, elements, 0); }

  /// A norm over (s, h). Its result has a gradient if `x` has. `input` names the term of x.
  bool norm(bool x, std::int64_t s, std::int64_t h, std::int64_t statistics, const char* input) {
    if (!x) return false;
    keep_statistics("norm statistics", statistics * s);
    if (input != nullptr) keep(input, s * h);
    return true;
  }

  /// A linear layer over s positions. Returns whether its result has a gradient. `is_input_kept` already by another.
  bool linear(const std::string& name, bool x, std::int64_t s, std::int64_t in, std::int64_t out, const char* input,
              bool& is_input_kept) {
    const bool is_adapted =
        lora_.targets.empty() || std::any_of(lora_.targets.begin(), lora_.targets.end(),
                                             [&](const std::string& t) { return nn::ends_as(name, t); });
    theory_.linears.push_back({name, in, out, is_adapted});
    if (!is_adapted) return x;
    if (lora_.dropout > 0) {
      keep("dropped", s * in);
    } else if (!is_input_kept) {
      keep(input, s * in);
      is_input_kept = true;
    }
    keep("adapter", s * lora_.rank);
    if (dtype_ != DType::f32) add("adapter casts", dtype_, 0, lora_.rank * (out + (x ? in : 0)));
    return true;
  }

 private:
  void add(const char* name, DType dtype, std::int64_t per_sample, std::int64_t constant) {
    theory_.layers.back().kept.push_back({name, memory::Category::activation, dtype, per_sample, constant});
  }

  DType dtype_;
  const nn::LoraOptions& lora_;
  LoraTheory& theory_;
};

void walk_gpt(const ModelOptions& n, LoraWalk& walk) {
  const std::int64_t s = n.sequence, h = n.width;
  bool x = false;  // has a gradient
  for (std::int64_t i = 0; i < n.layers; ++i) {
    const std::string name = "h." + std::to_string(i) + ".";
    walk.begin("gpt." + name.substr(0, name.size() - 1));
    bool is_kept = false;
    bool y = walk.norm(x, s, h, 2, nullptr);
    y = walk.linear(name + "attn.c_attn", y, s, h, 3 * h, "norm 1 output", is_kept);
    is_kept = y;
    if (y) {
      walk.keep("qkv", 3 * s * h);
      walk.keep("attention output", s * h);
      walk.keep_statistics("attention logsumexp", n.heads * s);
    }
    y = walk.linear(name + "attn.c_proj", y, s, h, h, "attention output", is_kept);
    x = x || y;
    is_kept = false;
    y = walk.norm(x, s, h, 2, "residual");
    y = walk.linear(name + "mlp.c_fc", y, s, h, 4 * h, "norm 2 output", is_kept);
    if (y) walk.keep("gelu input", 4 * s * h);
    is_kept = false;
    y = walk.linear(name + "mlp.c_proj", y, s, 4 * h, h, "gelu output", is_kept);
    x = x || y;
    if (x) walk.keep("layer output", s * h);  // the next norm's input
  }
}

void walk_llama(const LlamaConfig& config, LoraWalk& walk) {
  const ModelOptions& n = config.sizes;
  const std::int64_t s = n.sequence, h = n.width, keys = n.width / n.heads * n.key_heads, f = n.hidden;
  bool x = false;
  for (std::int64_t i = 0; i < n.layers; ++i) {
    const std::string name = "model.layers." + std::to_string(i) + ".";
    walk.begin("llama." + name.substr(0, name.size() - 1));
    bool is_kept = false;
    bool y = walk.norm(x, s, h, 1, nullptr);
    const bool q = walk.linear(name + "self_attn.q_proj", y, s, h, h, "norm 1 output", is_kept);
    const bool k = walk.linear(name + "self_attn.k_proj", y, s, h, keys, "norm 1 output", is_kept);
    const bool v = walk.linear(name + "self_attn.v_proj", y, s, h, keys, "norm 1 output", is_kept);
    y = is_kept = q || k || v;
    if (y) {
      walk.keep("queries", s * h);
      walk.keep("keys, values", 2 * s * keys);
      walk.keep("attention output", s * h);
      walk.keep_statistics("attention logsumexp", n.heads * s);
    }
    y = walk.linear(name + "self_attn.o_proj", y, s, h, h, "attention output", is_kept);
    x = x || y;
    is_kept = false;
    y = walk.norm(x, s, h, 1, "residual");
    const bool gate = walk.linear(name + "mlp.gate_proj", y, s, h, f, "norm 2 output", is_kept);
    const bool up = walk.linear(name + "mlp.up_proj", y, s, h, f, "norm 2 output", is_kept);
    if (gate) {
      walk.keep("gate, up", 2 * s * f);
    } else if (up) {
      walk.keep("gate", s * f);
    }
    is_kept = false;
    y = walk.linear(name + "mlp.down_proj", gate || up, s, f, h, "gated", is_kept);
    x = x || y;
    if (x) walk.keep("layer output", s * h);
  }
}

void refuse_theory(std::string_view name, const std::string& why) {
  throw ValueError("lora theory: no closed form for " + std::string(name) + " " + why);
}

}  // namespace

std::int64_t LoraTheory::kept_bytes(memory::Category category, std::int64_t batch) const {
  std::int64_t bytes = bytes_of(outside, category, batch);
  for (const LayerTheory& layer : layers) bytes += bytes_of(layer.kept, category, batch);
  return bytes;
}

LoraTheory lora_theory(std::string_view name, const ModelOptions& options, DType dtype, const nn::LoraOptions& lora,
                       std::optional<WeightCode> code) {
  const Theory whole = make_theory(name, options, dtype);
  const bool is_gpt = name.starts_with("gpt2") || name == "char-gpt";
  if (!is_gpt && !name.starts_with("llama") && !name.starts_with("qwen") && name != "tiny-llama") {
    refuse_theory(name, "; expected a model of the GPT or Llama family");
  }
  if (dtype == DType::f64 || size_of(dtype) < 2) refuse_theory(name, "in " + std::string(to_string(dtype)));
  const LlamaConfig config = is_gpt ? LlamaConfig{.sizes = gpt_options(name, options)} : llama_config(name, options);
  const ModelOptions& sizes = config.sizes;
  if (sizes.build != Build::fused) refuse_theory(name, "in its textbook build");
  if (sizes.head != Head::full) refuse_theory(name, "with a chunked head");
  if (sizes.feed_forward != FeedForward::full) refuse_theory(name, "with feed-forward layers in tiles");

  LoraTheory theory;
  LoraWalk walk(dtype, lora, theory);
  is_gpt ? walk_gpt(sizes, walk) : walk_llama(config, walk);
  for (const std::string& target : lora.targets) {
    const auto is_it = [&](const LinearTheory& l) { return nn::ends_as(l.name, target); };
    if (std::none_of(theory.linears.begin(), theory.linears.end(), is_it))
      refuse_theory(name, "with target '" + target + "'");
  }
  const ModelState state = whole.state(0);
  theory.base_elements = state.parameter_elements;
  theory.base_bytes = state.parameters;
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  for (const LinearTheory& l : theory.linears) {
    if (l.is_adapted) theory.adapter_elements += lora.rank * (l.in + l.out);
    if (!code) continue;
    theory.base_bytes += static_cast<std::int64_t>(coded_bytes(*code, l.in * l.out)) - element * l.in * l.out;
    theory.decoded_bytes = std::max(theory.decoded_bytes, element * l.in * l.out);
  }
  TermList outside(whole.precision);
  outside.ids("ids", sizes.sequence);
  outside.statistics("final norm statistics", (is_gpt ? 2 : 1) * sizes.sequence);
  add_token_loss(outside, sizes);
  theory.outside = outside.terms;
  return theory;
}

}  // namespace thimble::models
