#include <thimble/models/bert/bert.h>
#include <thimble/models/transformer/theory.h>

namespace thimble::models {

Theory bert_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision) {
  const ModelOptions sizes = bert_options(name, options);
  const std::int64_t s = sizes.sequence, h = sizes.width, sh = s * h;
  Theory theory(precision);
  if (sizes.head == Head::chunked) theory.unknown = "BERT keeps with a chunked head";
  add_token_rows(theory, sizes, h);
  for (const std::int64_t rows : {s, std::int64_t{2}}) theory.weight({rows, h});
  theory.norm(h);
  TransformerLayers layers = token_layers("bert.bert.encoder.layer.", sizes, NormPlace::post);
  layers.readers = 3;  // query, key and value
  add_layers(theory, layers);
  theory.linear(h, h);
  theory.norm(h);
  add_token_rows(theory, sizes);
  if (!theory.unknown.empty()) return theory;
  TermList kept(precision);
  const auto stream = [&](std::int64_t all) { return own_stream(sizes.group, all); };
  kept.ids("ids", s);
  kept.values("embedding sum", stream(sh), precision.parameters);
  kept.statistics("embedding norm statistics", stream(2 * s));
  if (sizes.build == Build::textbook && sizes.dropout > 0) kept.mask("embedding mask", stream(sh));
  if (has_fp8_layers(precision, h)) {
    // Every layer keeps its input as codes, even the first; the head keeps the last layer's result whole.
    theory.layers.back().kept.push_back({"encoder output", memory::Category::activation, precision.parameters, sh, 0});
  } else {
    // If products cast, too, but then the head keeps a separate copy.
    kept.values(precision.compute ? "encoder output" : "embedding output", stream(sh));
  }
  kept.values("gelu input", stream(sh));
  kept.values("gelu output", stream(sh));
  kept.statistics("head norm statistics", stream(2 * s));
  kept.values("head input", stream(sh));
  add_token_loss(kept, sizes);
  const std::int64_t transforms = sizes.group.cuts_sequence ? sizes.group.count() : 1;  // each shard has its cast
  kept.casts("weight casts", transforms * h * h + sizes.group.own(sizes.vocabulary) * h);
  theory.outside = kept.terms;
  return theory;
}

}  // namespace thimble::models
