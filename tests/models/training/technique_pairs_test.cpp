// Every pair of techniques: a run with both needs the predicted bytes and, if either is exact, matches a run with the
// other bit for bit; or a message that names both refuses the pair.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/file.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/training/training.h>

#include "dist/by_rank.h"
#include "support/catch.h"
#include "support/files.h"
#include "support/offload_data.h"

using namespace thimble;
using files_test::contains;

namespace {

using models::Technique;

/// Techniques that are not a detail of another.
std::vector<const Technique*> all_techniques() {
  std::vector<const Technique*> list;
  for (const Technique& one : models::techniques()) {
    if (one.detail_of.empty()) list.push_back(&one);
  }
  return list;
}

/// Switches on a technique with everything it needs.
void apply(const Technique& one, models::Setup& setup, const std::string& folder) {
  for (const models::Need& need : one.needs) {
    if (!models::technique(need.other).is_on(setup)) apply(models::technique(need.other), setup, folder);
  }
  one.apply(setup, one.example.text == "FOLDER" ? folder : std::string(one.example.text));
}

/// Whether a refusal names the technique, a detail of it, or a technique that it needs.
bool is_named_by(const std::string& refusal, const Technique& one) {
  const auto names = [&](const models::Need& need) { return is_named_by(refusal, models::technique(need.other)); };
  return std::ranges::any_of(one.needs, names) || std::ranges::any_of(models::techniques(), [&](const Technique& t) {
           return (&t == &one || t.detail_of == one.flag.option) && contains(refusal, t.name());
         });
}

/// Such as "--offload FOLDER --offload-gradients".
std::string usage_of(const Technique& one) {
  std::string text;
  for (const models::Need& need : one.needs) text += usage_of(models::technique(need.other)) + " ";
  text += one.flag.name();
  const std::string_view type = one.flag.type(), example = one.example.text;
  if (type.empty()) return text;
  const bool is_number = example.find_first_not_of("0123456789.") == std::string_view::npos;
  return text + " " + std::string(is_number ? type.substr(0, type.find('|')) : example);
}

/// The flags of techniques that exclude this one or that it excludes.
std::string others_of(const Technique& one) {
  std::string text;
  for (const Technique& other : models::techniques()) {
    const auto names = [](const Technique& from, const Technique& to) {
      return std::ranges::any_of(from.excludes, [&](const models::Exclusion& e) { return e.other == to.flag.option; });
    };
    if (!names(one, other) && !names(other, one)) continue;
    text += (text.empty() ? "`" : ", `") + std::string(other.flag.name()) + "`";
  }
  return text.empty() ? "none" : text;
}

/// The table of docs/less-memory.md, including its head.
std::string table_of_techniques() {
  std::string text = "| technique | flag | bits | not with |\n|---|---|---|---|\n";
  for (const Technique& one : models::techniques()) {
    if (one.document.what.empty()) continue;
    text += "| " + std::string(one.document.what) + " | `" + usage_of(one) + "` | " + std::string(one.document.bits) +
            " | " + others_of(one) + " |\n";
  }
  return text;
}

constexpr const char* table_path = "docs/less-memory.md";

/// The document with a fresh table.
std::string with_table(const std::string& document) {
  const std::size_t begin = document.find("| technique | flag |"), end = document.find("\n\n", begin);
  REQUIRE(end != std::string::npos);
  return document.substr(0, begin) + table_of_techniques() + document.substr(end + 1);
}

models::Setup pairs_setup() {
  models::Setup setup;
  setup.model = "char-gpt";
  setup.sizes.layers = 2, setup.sizes.width = 24, setup.sizes.heads = 2, setup.sizes.sequence = 10;
  setup.sizes.vocabulary = 29, setup.sizes.dropout = 0;
  setup.batch = 4;
  setup.optimizer.clip_norm = 0;
  return setup;
}

/// The losses of three steps and of a final evaluation, on rank 0.
std::vector<double> run_pair(const models::Setup& setup, dist::Communicator* ranks = nullptr) {
  if (setup.layout.ranks > 1 && ranks == nullptr) {
    return testing::by_rank(setup.layout.ranks, [&](dist::Communicator& c) { return run_pair(setup, &c); }).front();
  }
  models::RunOptions options;
  options.setup = setup;
  options.ranks = ranks;
  if (ranks != nullptr) options.setup.layout.rank = ranks->rank();
  options.data = "synthetic";
  options.steps = 3;
  options.eval_batches = 1;
  std::vector<double> losses;
  const models::TrainReport report =
      models::Engine(options).run([&](const nn::Progress& p) { losses.push_back(p.loss); });
  if (report.differences() != "" || !report.is_finite()) throw std::runtime_error("differs: " + report.differences());
  losses.push_back(report.evaluation->loss);
  return losses;
}

}  // namespace

TEST_CASE("techniques: each pair has its bytes, or is refused by a message that names both", "[technique_pairs]") {
  const std::string folder = offload_test::disk_folder();
  if (folder.empty()) return;
  const std::vector<const Technique*> all = all_techniques();
  std::vector<std::vector<double>> alone;
  for (const Technique* one : all) {
    models::Setup setup = pairs_setup();
    INFO(one->flag.option << " alone");
    REQUIRE(!one->example.text.empty());
    apply(*one, setup, folder);
    CHECK(one->is_on(setup));
    alone.push_back(run_pair(setup));
  }
  int runs = 0, refusals = 0;
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      INFO(all[a]->flag.option << " with " << all[b]->flag.option);
      models::Setup setup = pairs_setup();
      apply(*all[a], setup, folder);
      apply(*all[b], setup, folder);
      std::string refusal;
      try {
        const std::vector<double> losses = run_pair(setup);
        ++runs;
        if (all[a]->example.is_exact) CHECK(losses == alone[b]);
        if (all[b]->example.is_exact) CHECK(losses == alone[a]);
      } catch (const ValueError& error) {
        refusal = error.what();
      } catch (const PlanError& error) {
        refusal = error.what();
      }
      if (refusal.empty()) continue;
      INFO(refusal);
      ++refusals;
      CHECK(is_named_by(refusal, *all[a]));
      CHECK(is_named_by(refusal, *all[b]));
    }
  }
  INFO(runs << " pairs run, " << refusals << " refused");
  CHECK(runs > 150);
  CHECK(refusals > 20);
}

TEST_CASE("techniques: a row is one by itself or a detail, and names others that there are", "[technique_pairs]") {
  for (const Technique& one : models::techniques()) {
    INFO(one.flag.option);
    CHECK(&models::technique(one.flag.option) == &one);
    CHECK(one.example.text.empty() == !one.detail_of.empty());
    if (!one.detail_of.empty()) CHECK(models::technique(one.detail_of).detail_of.empty());
    for (const models::Exclusion& exclusion : one.excludes) CHECK_NOTHROW(models::technique(exclusion.other));
    for (const models::Need& need : one.needs) CHECK_NOTHROW(models::technique(need.other));
    CHECK((one.identity.on_resume == models::OnResume::free) == one.identity.key.empty());
    CHECK(one.document.what.empty() == one.document.bits.empty());
  }
  CHECK_THROWS_AS(models::technique("no_such_technique"), ValueError);
}

TEST_CASE("techniques: the table of docs/less-memory.md follows from the rows", "[technique_pairs]") {
  const std::string document = files_test::read_text_file(table_path);
  INFO("write it anew: thimble_tests '[.write_techniques]'");
  CHECK(with_table(document) == document);
}

TEST_CASE("techniques: write the table of docs/less-memory.md", "[.write_techniques]") {
  write_file_atomically(table_path, with_table(files_test::read_text_file(table_path)));
}
