#pragma once
// A technique is one row: its flag, exclusions and needs, its data in checkpoints and ranks, its levers and its
// documentation. The rows generate everything else: help, refusals, the identity of a run, levers, the table in
// docs/less-memory.md, the tests of every pair (docs/add-a-technique.md). The code that makes models and steps applies
// the techniques (models/techniques/setup.h).

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <thimble/memory/units.h>
#include <thimble/models/techniques/setup.h>

namespace thimble::models {

/// Commands take flags in these sets.
enum class FlagSet : std::uint8_t { sizes, dtypes, step, plans, ranks };

/// Reads and prints a value. `set` throws ValueError that begins with `name`.
struct Field {
  void (*set)(Setup& setup, const std::string& name, const std::string& text);
  std::string (*value)(const Setup& setup);
};

struct Flag {
  std::string_view option;    ///< the technique's key, as errors name it in backticks
  std::string_view spelling;  ///< "--tp N"; "--x NAME," takes a list, the switch "--x{D}" may have a value after "="
  std::string_view help;
  Field field;
  std::string_view group = {};           ///< in help (bench/commands/flag_groups.h); defaults to the family's
  std::optional<FlagSet> commands = {};  ///< defaults to the family's

  std::string_view name() const { return spelling.substr(0, spelling.find_first_of(" {")); }
  std::string_view type() const {  ///< of the value, in help; empty for a switch
    const std::size_t blank = spelling.find(' ');
    return blank == std::string_view::npos ? std::string_view() : spelling.substr(blank + 1);
  }
};

/// A value that switches the technique on, for the tests of every pair. An exact one leaves all bits as they are.
struct Example {
  std::string_view text;
  bool is_exact = false;
};

/// Another technique that excludes this one: if `when` holds, by default if both are on.
struct Exclusion {
  std::string_view other;
  const char* why;
  bool (*when)(const Setup&) = nullptr;
};

/// A technique that this one needs: `is_met`, by default that it is on.
struct Need {
  std::string_view other;
  const char* words;
  bool (*is_met)(const Setup&) = nullptr;
};

/// A value in a checkpoint, written unless it is `usual`, which a missing key means. With OnResume::told and an empty
/// `usual`, files without the key are not compared.
struct Saved {
  std::string value, usual;
};
/// The value of all numbers of stages from 2 on, which give the same bits.
inline constexpr const char* several_stages = "several";
/// Whether ranks must agree on it. each: also on the value per rank; with_plans: only if they follow one plan.
enum class OnRanks : std::uint8_t { free, alike, each, with_plans };
/// Whether a resumed run may change it: freely, with a message, or not at all.
enum class OnResume : std::uint8_t { free, told, same };
struct Identity {
  OnRanks on_ranks = OnRanks::free;
  OnResume on_resume = OnResume::free;
  std::string_view key = {};  ///< in checkpoints
  /// Replaces the value and its default; nullopt where the technique does not apply to the model.
  std::optional<Saved> (*saved)(const Setup& setup, const Model& model) = nullptr;
};

/// Bytes of a setup's parameters, gradients and optimizer state.
struct StateBytes {
  double parameters = 0, gradients = 0, optimizer = 0;
};
/// The facts that levers are found from.
struct LeverFacts {
  const Setup& setup;
  memory::Device device;
  const Model& model;       ///< the setup's, whole and dry
  const TapeGraph* graph;   ///< of its step; null if no plan is searched
  const StateBytes* bytes;  ///< null if nothing goes to a tier
};
/// One way to switch a technique on, or a step further.
struct Variant {
  std::string text;
  std::string note = {};          ///< side effects
  double transfer_bytes = 0;      ///< to and from a tier in a step, beyond the plan's
  std::string_view besides = {};  ///< another technique that it switches off
};

/// Its row in docs/less-memory.md, if it has one.
struct Document {
  std::string_view what = {}, bits = {};
};

struct Technique {
  Flag flag;
  std::string_view detail_of = {};  ///< the technique that this is only an option of
  Example example = {};
  bool is_about_training = true;                              ///< false if inference has it, too
  void (*check)(const Setup& setup, bool is_text) = nullptr;  ///< throws ValueError
  std::vector<Exclusion> excludes = {};
  std::vector<Need> needs = {};
  const char* why_not_captured = nullptr;  ///< in a CUDA graph; null if it can be
  Identity identity = {};
  std::vector<Variant> (*variants)(const LeverFacts& facts) = nullptr;  ///< null if it is no lever
  std::string (*words)(const Setup& setup) = nullptr;                   ///< in a plan's report: ", chunked head"
  Document document = {};

  std::string name() const { return "`" + std::string(flag.option) + "`"; }
  bool is_on(const Setup& setup) const;
  /// Throws ValueError.
  void apply(Setup& setup, const std::string& text) const { flag.field.set(setup, name(), text); }
  /// "`head` chunked", "`fuses_optimizer`", "`allows_lossy`=i8": the option with that value, or with the setup's.
  std::string said(const std::string& text) const;
  std::string said(const Setup& setup) const { return said(flag.field.value(setup)); }
  /// Its value in files and among ranks, if it has one.
  std::optional<Saved> saved(const Setup& setup, const Model& model) const;
};

/// All techniques, in the order of flags, levers and words.
std::span<const Technique> techniques();
/// Throws ValueError for an unknown option.
const Technique& technique(std::string_view option);
// The families.
std::span<const Technique> of_gradients(), of_layers(), of_precision(), of_adapters(), of_optimizers(), of_tiers(),
    of_ranks();

/// Throws ValueError if a technique is on without another that it needs.
void require_needs(const Setup& setup, const Technique& technique);
/// Throws ValueError if a value is wrong, or if a technique lacks another that it needs or excludes: the message names
/// both.
void check_techniques(const Setup& setup, bool is_text);
/// Throws ValueError that begins with `option` and names a technique of the setup that is about training.
void refuse_training(const Setup& setup, const std::string& option);
/// Throws ValueError that begins with `option` and names a technique of the setup that no captured step can have.
void refuse_uncaptured(const Setup& setup, const std::string& option);

// Values. A wrong one throws ValueError that begins with `name`: "`head`: expected full or chunked, got 'half'".
[[noreturn]] void refuse_value(std::string_view name, std::string_view expected, const std::string& text);
/// The whole number in `text`, within low .. high; `or_else` follows the numbers in the error, as in " or auto".
std::int64_t parse_integer(std::string_view name, const std::string& text, std::int64_t low, std::int64_t high,
                           std::string_view or_else = "");
/// The finite number in `text`, within low .. high.
double parse_number(std::string_view name, const std::string& text, double low, double high,
                    std::string_view or_else = "");
/// The bytes of a SIZE (memory/units.h).
std::size_t parse_bytes(std::string_view name, const std::string& text);
/// Whether `text` is `yes`; the only other valid text is `no`.
bool parse_choice(std::string_view name, const std::string& text, std::string_view yes, std::string_view no);
/// One of the dtypes in `names`, separated by ", ".
DType parse_dtype_of(std::string_view name, const std::string& text, const std::string& names);

// Fields of a setup that are read and printed without conversion. `Member` is &Setup::batch, &LoraSetup::rank, ...
namespace fields {

inline constexpr double any = std::numeric_limits<double>::max();
inline constexpr std::int64_t max_size = 1 << 24;  ///< larger sizes are typos

std::vector<std::string> split(const std::string& text);  ///< at commas
inline std::string in_words(const std::string& text) { return text; }
std::string in_words(const std::vector<std::string>& texts);  ///< "a,b"
template <class T>
std::string in_words(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "on" : "off";
  } else if constexpr (std::is_floating_point_v<T>) {
    return format_real(value);
  } else if constexpr (std::is_same_v<T, DType>) {
    return std::string(to_string(value));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else {
    return value ? in_words(*value) : std::string();  // std::optional
  }
}
/// The field that a pointer to a member of Setup, or of one of its parts, names.
template <class Value, class Part>
auto& field_of(auto& setup, Value Part::*member) {
  if constexpr (std::is_same_v<Part, OptimizerSetup>) {
    return setup.optimizer.*member;
  } else if constexpr (std::is_same_v<Part, PrecisionSetup>) {
    return setup.precision.*member;
  } else if constexpr (std::is_same_v<Part, LoraSetup>) {
    return setup.lora.*member;
  } else if constexpr (std::is_same_v<Part, OffloadSetup>) {
    return setup.offload.*member;
  } else if constexpr (std::is_same_v<Part, LayoutSetup>) {
    return setup.layout.*member;
  } else {
    return setup.*member;
  }
}

template <auto Member>
std::string value_of(const Setup& setup) {
  return in_words(field_of(setup, Member));
}

template <auto Member>
constexpr Field toggle{[](Setup& s, const std::string& name, const std::string& text) {
                         field_of(s, Member) = parse_choice(name, text, "on", "off");
                       },
                       value_of<Member>};
template <auto Member>
constexpr Field plain_text{[](Setup& s, const std::string&, const std::string& text) { field_of(s, Member) = text; },
                           value_of<Member>};
template <auto Member>
constexpr Field list{[](Setup& s, const std::string&, const std::string& text) { field_of(s, Member) = split(text); },
                     value_of<Member>};
template <auto Member, std::int64_t low, std::int64_t high = max_size>
constexpr Field number{[](Setup& s, const std::string& name, const std::string& text) {
                         const std::int64_t value = parse_integer(name, text, low, high);
                         if constexpr (std::is_same_v<std::remove_reference_t<decltype(field_of(s, Member))>, int>) {
                           field_of(s, Member) = static_cast<int>(value);
                         } else {
                           field_of(s, Member) = value;
                         }
                       },
                       value_of<Member>};
/// A finite number >= 0.
template <auto Member>
constexpr Field real{[](Setup& s, const std::string& name, const std::string& text) {
                       field_of(s, Member) = parse_number(name, text, 0, any);
                     },
                     value_of<Member>};

}  // namespace fields
}  // namespace thimble::models
