#include <thimble/core/numbers/integers.h>
#include <thimble/models/llama/llama.h>
#include <thimble/models/transformer/theory.h>

namespace thimble::models {
namespace {

struct Widths {
  std::int64_t s, h, keys, f, a;
  explicit Widths(const ModelOptions& n)
      : s(n.sequence), h(n.width), keys(n.width / n.heads * n.key_heads), f(n.hidden), a(n.heads) {}
};

/// Products that read one tensor of `in` elements per position, and the tensors that they keep of it.
class Readers {
 public:
  Readers(std::int64_t in, std::initializer_list<std::int64_t> outs) : in_(in), count_(0), in_fp8_(0) {
    for (const std::int64_t out : outs) ++count_, in_fp8_ += in % fp8_multiple == 0 && out % fp8_multiple == 0 ? 1 : 0;
  }
  std::int64_t in_fp8(const nn::Precision& precision) const { return precision.fp8 ? in_fp8_ : 0; }

  /// `is_held`: its producer keeps the tensor, which is counted there.
  void add(TermList& kept, const char* name, std::int64_t s, const nn::Precision& precision, bool is_held) const {
    const std::int64_t codes = in_fp8(precision);
    if (!is_held && codes < count_) kept.values(name, s * in_);
    if (codes == 0) return;
    kept.values((std::string(name) + " codes").c_str(), codes * s * in_, precision.fp8->format().forward);
    if (precision.fp8->kind == Fp8Scaling::block) {
      kept.values("scales of codes", codes * s * ceil_div(in_, fp8_block), DType::u8);
    } else {
      kept.terms.push_back({"scales of codes", memory::Category::activation, DType::f32, 0, codes});
    }
  }

 private:
  std::int64_t in_, count_, in_fp8_;
};

std::vector<Term> layer_kept(const ModelOptions& sizes, const nn::Precision& precision) {
  const bool is_textbook = sizes.build == Build::textbook;
  const Widths n(sizes);
  const std::int64_t sh = n.s * n.h, sf = n.s * n.f;
  const auto own = [&](std::int64_t all) { return sizes.group.own(all); };
  const std::int64_t tokens = own_stream(sizes.group, n.s);  // positions of tensors between sharded layers
  TermList kept(precision);
  kept.statistics("norm statistics", 2 * tokens);
  Readers(n.h, {n.h, n.keys, n.keys}).add(kept, "norm 1 output", tokens, precision, false);
  kept.values("queries", own(sh));
  kept.values("keys, values", own(2 * n.s * (is_textbook ? n.h : n.keys)));
  if (is_textbook) kept.values("probabilities", own(n.a * n.s * n.s));
  if (!is_textbook) kept.values("attention output", own(sh));
  Readers(own(n.h), {n.h}).add(kept, "attention output", n.s, precision, !is_textbook);
  if (!is_textbook) kept.statistics("attention logsumexp", own(n.a * n.s));
  kept.values("residual", tokens * n.h, precision.parameters);
  Readers(n.h, {n.f, n.f}).add(kept, "norm 2 output", tokens, precision, false);
  if (sizes.feed_forward == FeedForward::full) {
    kept.values("gate, up", own(2 * sf));
    if (is_textbook) kept.values("silu of the gate", own(sf));
    Readers(own(n.f), {n.h}).add(kept, "gated", n.s, precision, false);
  }
  kept.values("layer output", tokens * n.h, precision.parameters);
  kept.casts("weight casts", own(2 * n.h * n.h + 2 * n.keys * n.h + 3 * n.f * n.h));
  return kept.terms;
}

// The state of delayed scaling in one layer (models/transformer/theory.h).
std::int64_t fp8_state_bytes(const ModelOptions& sizes, const nn::Precision& precision) {
  if (!precision.fp8 || precision.fp8->kind != Fp8Scaling::delayed) return 0;
  const Widths n(sizes);
  std::int64_t products = 0;
  for (const Readers& readers :
       {Readers(n.h, {n.h, n.keys, n.keys}), Readers(n.h, {n.h}), Readers(n.h, {n.f, n.f}), Readers(n.f, {n.h})}) {
    products += readers.in_fp8(precision);
  }
  return products * delayed_fp8_state_bytes(*precision.fp8);
}

}  // namespace

Theory llama_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision) {
  const LlamaConfig config = llama_config(name, options);
  const ModelOptions& sizes = config.sizes;
  const Widths n(sizes);
  Theory theory(precision);
  if (sizes.head == Head::chunked) theory.unknown = "Llama keeps with a chunked head";
  for (int k = 0; k < (config.is_tied ? 1 : 2); ++k) add_token_rows(theory, sizes, n.h);
  const std::int64_t t = sizes.group.shards, of_parts = sizes.layers * sizes.group.count();
  theory.weight({n.h / t, n.h}, of_parts);  // query
  theory.weight({n.h, n.h / t}, of_parts);
  theory.weight({n.keys / t, n.h}, 2 * of_parts);
  theory.weight({n.f / t, n.h}, 2 * of_parts);
  theory.weight({n.h, n.f / t}, of_parts);
  if (config.has_bias) theory.weight({n.h / t}, of_parts), theory.weight({n.keys / t}, 2 * of_parts);
  theory.parameters.push_back({{n.h}, true, 2 * sizes.layers + 1});  // gains
  theory.buffers = sizes.layers * fp8_state_bytes(sizes, precision);
  if (!theory.unknown.empty()) return theory;
  for (std::int64_t i = 0; i < sizes.layers; ++i) {
    theory.layers.push_back({"llama.model.layers." + std::to_string(i), layer_kept(sizes, precision)});
  }
  TermList kept(precision);
  kept.ids("ids", n.s);
  kept.values("embedding output", own_stream(sizes.group, n.s * n.h), precision.parameters);
  kept.statistics("final norm statistics", own_stream(sizes.group, n.s));
  kept.values("head input", own_stream(sizes.group, n.s * n.h));
  add_token_loss(kept, sizes);
  kept.casts("head cast", sizes.group.own(sizes.vocabulary) * n.h);
  theory.outside = kept.terms;
  return theory;
}

}  // namespace thimble::models
