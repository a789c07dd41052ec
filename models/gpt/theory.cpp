#include <thimble/models/gpt/gpt.h>
#include <thimble/models/transformer/theory.h>

namespace thimble::models {

Theory gpt_theory(std::string_view name, const ModelOptions& options, const nn::Precision& precision) {
  const ModelOptions sizes = gpt_options(name, options);
  const std::int64_t s = sizes.sequence, h = sizes.width, sh = s * h;
  Theory theory(precision);
  if (sizes.head == Head::chunked) theory.unknown = "GPT keeps with a chunked head";
  add_token_rows(theory, sizes, h);
  theory.weight({s, h});
  add_layers(theory, token_layers("gpt.h.", sizes, NormPlace::pre));
  theory.norm(h);
  if (!theory.unknown.empty()) return theory;
  TermList kept(precision);
  kept.ids("ids", s);
  if (sizes.build == Build::textbook && sizes.dropout > 0) kept.mask("embedding mask", own_stream(sizes.group, sh));
  kept.values("embedding output", own_stream(sizes.group, sh), precision.parameters);
  kept.statistics("final norm statistics", own_stream(sizes.group, 2 * s));
  kept.values("head input", own_stream(sizes.group, sh));
  add_token_loss(kept, sizes);
  kept.casts("token table cast", sizes.group.own(sizes.vocabulary) * h);
  theory.outside = kept.terms;
  return theory;
}

}  // namespace thimble::models
