#include <thimble/models/planning/layouts.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/tensor/context.h>
#include <thimble/dist/pipeline/schedule.h>
#include <thimble/dist/sharding/operators.h>
#include <thimble/dist/sharding/sequence.h>
#include <thimble/memory/units.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/techniques/trained_parts.h>
#include <thimble/nn/step/dry_scope.h>

namespace thimble::models {
namespace {

template <class T>
bool goes_with(const std::optional<T>& given, T value) {
  return !given || *given == value;
}

/// Whether model and optimizer allow the layout. Throws ValueError for an unknown optimizer.
bool is_possible(const Setup& setup, const Model& model, const Layout& layout) {
  const ModelOptions& sizes = model.options();
  if (layout.tp > 1 && (model.hidden_layers().empty() || sizes.heads % layout.tp != 0 ||
                        (sizes.key_heads > 0 && sizes.key_heads % layout.tp != 0) ||
                        (sizes.hidden > 0 && sizes.hidden % layout.tp != 0) || sizes.head == Head::chunked ||
                        (model.is_text() && sizes.vocabulary < layout.tp))) {
    return false;
  }
  if (layout.cuts_sequence && (layout.tp == 1 || !model.can_cut_sequence() || sizes.sequence % layout.tp != 0)) {
    return false;
  }
  if (layout.recomputes_blocks && model.hidden_layers().empty()) return false;
  const std::string optimizer = optimizer_name(setup, model.is_text());
  return layout.zero < 3 || is_elementwise(optimizer);
}

/// The most stages that the model can be cut into, up to `ranks`.
int most_stages(const Setup& setup, const Model& model, int ranks) {
  if (!model.has_stages()) return 1;
  int most = 1;
  for (int pp = 2; pp <= ranks; ++pp) {
    try {
      ModelOptions sizes = setup.sizes;
      sizes.stage = {0, pp};
      make_model(setup.model, sizes, {dry(cpu)});
      most = pp;
    } catch (const ValueError&) {
      break;
    }
  }
  return most;
}

}  // namespace

std::string to_string(const Layout& layout) {
  std::string text = "dp " + std::to_string(layout.dp) + ", tp " + std::to_string(layout.tp) +
                     (layout.cuts_sequence ? ", sequence as well, pp " : ", pp ") + std::to_string(layout.pp) +
                     ", ZeRO " + std::to_string(layout.zero) + ", " + std::to_string(layout.micro_batches) +
                     (layout.micro_batches == 1 ? " micro-batch" : " micro-batches");
  if (layout.recomputes_blocks) text += ", blocks again";
  if (layout.read_ahead != 1) text += ", " + std::to_string(layout.read_ahead) + " read ahead";
  if (layout.dp > 1) text += ", buckets of " + std::to_string(layout.bucket_bytes >> 20) + " MiB";
  return text;
}

Setup setup_of(const Setup& setup, const Layout& layout, int rank) {
  Setup own = setup;
  own.layout.ranks = layout.dp * layout.tp * layout.pp;
  own.layout.rank = rank;
  own.layout.tp = layout.tp, own.layout.pp = layout.pp, own.layout.zero = layout.zero;
  own.layout.sequence_parallel = layout.cuts_sequence;
  own.micro_batches = layout.micro_batches;
  own.recomputes_blocks = layout.recomputes_blocks;
  own.layout.bucket_bytes = layout.bucket_bytes;
  own.offload.read_ahead = layout.read_ahead;
  return own;
}

std::vector<Layout> layouts_of(const Setup& setup, const Cluster& cluster, const FixedLayout& fixed) {
  const auto model = make_model(setup.model, setup.sizes, tensor_options(setup, dry(cpu)));
  const int n = cluster.ranks, stages = most_stages(setup, *model, n);
  const auto choices = [](const auto& given, auto some) {
    if (given) some = {*given};
    return some;
  };
  const auto buckets =
      choices(fixed.bucket_bytes, std::vector<std::size_t>{std::size_t{25} << 20, std::size_t{100} << 20});
  const auto depths = choices(fixed.read_ahead, std::vector<int>{1, 0});
  std::vector<Layout> list;
  const auto add = [&](const Layout& layout) {
    if ((fixed.bucket_bytes && layout.dp == 1) || (fixed.read_ahead && layout.zero < 3)) return;  // it has no effect
    if (goes_with(fixed.zero, layout.zero) && goes_with(fixed.micro_batches, layout.micro_batches) &&
        goes_with(fixed.recomputes_blocks, layout.recomputes_blocks) &&
        goes_with(fixed.cuts_sequence, layout.cuts_sequence) && is_possible(setup, *model, layout)) {
      list.push_back(layout);
    }
  };
  for (int tp = 1; tp <= n; ++tp) {
    const bool is_near = tp <= cluster.per_node && cluster.per_node % tp == 0;
    if (n % tp != 0 || !goes_with(fixed.tp, tp) || (!is_near && !fixed.tp)) continue;
    for (int pp = 1; pp <= n / tp; ++pp) {
      if (n / tp % pp != 0 || pp > stages || !goes_with(fixed.pp, pp)) continue;
      const int dp = n / tp / pp;
      if (!goes_with(fixed.dp, dp) || setup.batch % dp != 0) continue;
      const std::int64_t share = setup.batch / dp;
      for (std::int64_t samples = 1; samples <= share; samples *= 2) {
        if (share % samples != 0) continue;
        for (int zero = 0; zero <= (dp > 1 ? 3 : 0); ++zero) {
          for (const bool again : {false, true}) {
            for (const std::size_t bucket : buckets) {
              for (const bool cuts : {false, true}) {
                if (dp == 1 && bucket != buckets.front()) continue;
                for (const int ahead : zero == 3 ? depths : std::vector<int>{1}) {
                  add({dp, tp, pp, zero, share / samples, again, bucket, cuts, ahead});
                }
              }
            }
          }
        }
      }
    }
  }
  return list;
}

JudgedLayout judge(const RunOptions& options, const Cluster& cluster, const Layout& layout, const LayoutTime& time,
                   std::vector<RankPlan>* ranks) {
  JudgedLayout judged{layout, time, 0, true};
  Setup setup = setup_of(options.setup, layout);
  const bool is_proof = ranks != nullptr;
  if (!is_proof) {  // bytes do not grow with micro-batches beyond the ones in flight
    const std::int64_t samples = setup.batch / (layout.dp * layout.micro_batches);
    setup.micro_batches = std::min<std::int64_t>(layout.micro_batches, 2 * layout.pp + 2);
    setup.batch = samples * layout.dp * setup.micro_batches;
  }
  RunOptions own = options;
  own.setup = setup;
  const PlannedRuns runs(own);
  setup = own.setup;
  const auto run = [&](int rank) {
    setup.layout.rank = rank;
    const nn::MakeRun make = is_proof ? runs.of(setup) : zero_batch_run(setup);
    nn::MemoryProfile profile = nn::profile_training(dry(options.device), make);
    judged.peak_bytes = std::max(judged.peak_bytes, profile.peak_bytes);
    judged.fits = judged.peak_bytes <= cluster.memory_bytes;
    return profile;
  };
  if (!is_proof) {
    const int of_stage =
        setup.layout.ranks / setup.layout.pp;  // first stage, second, which needs most of the others, last
    for (const int rank : {0, setup.layout.pp > 2 ? of_stage : 0, setup.layout.ranks - of_stage}) {
      if (rank > 0 || judged.peak_bytes == 0) run(rank);
      if (!judged.fits) break;
    }
    return judged;
  }
  for (std::vector<int>& alike : alike_ranks(setup, options.device)) {
    const nn::MemoryProfile profile = run(alike.front());
    RankPlan& plan = ranks->emplace_back();
    plan.ranks = std::move(alike);
    plan.report.plan.peak_bytes = profile.peak_bytes;
    plan.report.plan.peak_by_category = profile.peak_by_category;
    if (!judged.fits) break;
  }
  return judged;
}

LayoutReport find_layout(const RunOptions& given, const Cluster& cluster, const FixedLayout& fixed) {
  check_tf32(given.allows_tf32, given.device);
  const Tf32Scope products(given.allows_tf32);
  RunOptions options = given;
  require_new_run(options);
  const PlannedRuns of_sizes(options);  // fills in sizes from the data
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto seconds_since = [&](std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(now() - begin).count();
  };
  const auto start = now();
  if (cluster.memory_bytes == 0) throw ValueError("layouts: no memory; the bytes of a rank are needed");
  if (options.setup.layout.cp != 1) {
    throw ValueError("layouts: `cp` " + std::to_string(options.setup.layout.cp) + "; expected 1, as no other is tried");
  }
  if (options.setup.layout.pipeline != "1f1b") {
    throw ValueError("layouts: `pipeline` " + options.setup.layout.pipeline + "; expected 1f1b, as no other is tried");
  }
  if (fixed.bucket_bytes == std::size_t{0}) {
    throw ValueError("layouts: `bucket_bytes` 0, buckets whose number is not counted; expected at least 1");
  }
  if (cluster.ranks < 1 || cluster.per_node < 1) {
    throw ValueError("layouts: " + std::to_string(cluster.ranks) + " ranks in nodes of " +
                     std::to_string(cluster.per_node) + "; expected at least 1");
  }
  const nn::CostModel costs(hardware_for(options.costs, options.device));
  LayoutTimes times(options.setup, cluster, costs, options.device);
  std::vector<JudgedLayout> all;
  for (const Layout& layout : layouts_of(options.setup, cluster, fixed)) all.push_back({layout, times.of(layout)});
  if (all.empty()) {
    throw ValueError("layouts: none of " + std::to_string(cluster.ranks) +
                     " ranks goes with what is given and a batch of " + std::to_string(options.setup.batch) +
                     "; expected other numbers, or fewer of them");
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const JudgedLayout& a, const JudgedLayout& b) { return a.time.step_s() < b.time.step_s(); });
  LayoutReport report;
  report.examined = all.size();
  std::size_t least = std::numeric_limits<std::size_t>::max();
  const auto found = std::find_if(all.begin(), all.end(), [&](JudgedLayout& each) {
    const std::size_t bound = times.least_bytes(each.layout);
    if (bound > cluster.memory_bytes) return false;
    ++report.run;
    each = judge(options, cluster, each.layout, each.time);
    if (!each.fits) {
      least = std::min(least, each.peak_bytes);
      return false;
    }
    report.ranks.clear();
    const auto begin = now();
    each = judge(options, cluster, each.layout, each.time, &report.ranks);
    report.proof_s += seconds_since(begin);
    return each.fits;
  });
  if (found == all.end()) {
    const bool was_run = least != std::numeric_limits<std::size_t>::max();
    if (!was_run) {
      for (const JudgedLayout& each : all) least = std::min(least, times.least_bytes(each.layout));
    }
    throw nn::BudgetError("layouts: none of " + std::to_string(all.size()) + " fits in " +
                              memory::exact_bytes(cluster.memory_bytes) + " a rank; one needs " +
                              (was_run ? "" : "at least ") + memory::exact_bytes(least),
                          cluster.memory_bytes, least);
  }
  report.best = *found;
  const Layout& best = report.best.layout;
  for (const JudgedLayout& other : all) {
    const Layout& l = other.layout;
    const bool has_shape = l.dp == best.dp && l.tp == best.tp && l.pp == best.pp;
    int changes = (has_shape ? 0 : 1) + (l.zero != best.zero ? 1 : 0) +
                  (l.recomputes_blocks != best.recomputes_blocks ? 1 : 0) +
                  (l.cuts_sequence != best.cuts_sequence && (has_shape || (l.tp > 1 && best.tp > 1)) ? 1 : 0) +
                  (l.bucket_bytes != best.bucket_bytes && best.dp > 1 ? 1 : 0) +
                  (l.zero == 3 && l.read_ahead != (best.zero == 3 ? best.read_ahead : 1) ? 1 : 0);
    const std::int64_t samples = options.setup.batch / (l.dp * l.micro_batches);
    const std::int64_t own = options.setup.batch / (best.dp * best.micro_batches);
    changes += samples != own ? 1 : 0;
    const bool is_near = has_shape || (l.dp <= 2 * best.dp && best.dp <= 2 * l.dp && l.tp <= 2 * best.tp &&
                                       best.tp <= 2 * l.tp && l.pp <= 2 * best.pp && best.pp <= 2 * l.pp);
    if (changes != 1 || !is_near) continue;
    if (samples > 2 * own || own > 2 * samples) continue;
    report.neighbours.push_back(other.peak_bytes > 0 ? other : judge(options, cluster, l, other.time));
  }
  report.search_s = seconds_since(start) - report.proof_s;
  return report;
}

// ---- Modelled time and least bytes of a layout, from recordings of a block and of the layers around the blocks.

namespace layout_times_detail {

/// Consecutive layers, for one micro-batch.
struct Piece {
  double forward_s = 0, backward_s = 0;
  // Bytes that each rank of a tensor-parallel group sends, except for its own shard, and in how many turns. An
  // all-reduce takes two: a reduce-scatter and an all-gather.
  double forward_sent = 0, backward_sent = 0;
  int forward_turns = 0, backward_turns = 0;
  double kept_bytes = 0;   // for backward
  double given_bytes = 0;  // to the next layers
  double parameter_bytes = 0, state_bytes = 0;

  void add(const Piece& other, double times = 1) {
    forward_s += times * other.forward_s, backward_s += times * other.backward_s;
    forward_sent += times * other.forward_sent, backward_sent += times * other.backward_sent;
    forward_turns += static_cast<int>(times) * other.forward_turns;
    backward_turns += static_cast<int>(times) * other.backward_turns;
    kept_bytes += times * other.kept_bytes;
    given_bytes = other.given_bytes;
    parameter_bytes += times * other.parameter_bytes, state_bytes += times * other.state_bytes;
  }
};

/// The layers before the blocks, one block, and the layers after the blocks.
struct ChainPieces {
  Piece before, block, behind;
};

double bytes_of(const TapeGraph& graph, std::uint32_t value) {
  const TapeGraph::Value& v = graph.values[value];
  return static_cast<double>(v.shape.elements()) * static_cast<double>(size_of(v.dtype));
}

/// Adds node `n`, whose work is in `parts` shards, to its piece. `seen` marks storages already counted.
void add_node(const TapeGraph& graph, std::size_t n, const nn::NodeTimes& times, int parts, std::vector<char>& seen,
              Piece& piece) {
  const TapeGraph::Node& node = graph.nodes[n];
  piece.forward_s += times.forward;
  piece.backward_s += times.backward;
  const double result = bytes_of(graph, node.output);
  const auto send = [&](int forward, int backward, double bytes) {
    piece.forward_sent += forward * bytes, piece.forward_turns += forward;
    piece.backward_sent += backward * bytes, piece.backward_turns += backward;
  };
  if (node.is<dist::AllReduce>()) send(2, 0, result);
  if (node.is<dist::CopyToGroup>()) send(0, 2, result);
  if (node.is<dist::AllGather>()) send(1, 2, result);  // backward gathers again, and adds up
  if (node.is<dist::ReduceScatter>()) send(1, 1, parts * result);
  piece.given_bytes = result;
  for (const std::uint32_t value : node.saved) {
    if (value == TapeGraph::none || graph.values[value].is_leaf) continue;
    const std::uint32_t storage = graph.values[value].storage;
    if (storage == TapeGraph::none || std::exchange(seen[storage], 1) != 0) continue;
    if (graph.storages[storage].category != memory::Category::input &&
        graph.storages[storage].category != memory::Category::parameter)
      piece.kept_bytes += static_cast<double>(graph.storages[storage].bytes);
  }
}

/// The link that connects `span` consecutive ranks: inside a node if they fit there.
const dist::Link& link_over(const Cluster& cluster, int span) {
  return span <= cluster.per_node ? cluster.inside : cluster.between;
}

double seconds_sent(const dist::Link& link, int parts, double bytes, int turns) {
  if (parts == 1) return 0;
  return (parts - 1.0) / parts * bytes / link.bytes_per_s + turns * link.message_s;
}

}  // namespace layout_times_detail

using layout_times_detail::ChainPieces;
using layout_times_detail::Piece;

struct LayoutTimes::Known {
  Setup setup;
  Cluster cluster;
  nn::CostModel costs;
  memory::Device device;
  std::string hidden;  // the prefix of blocks' names; empty if blocks differ
  std::int64_t layers = 0;
  double shared_bytes = 0;  // of parameters in both the first and the last stage
  std::map<std::tuple<int, bool, std::int64_t>, ChainPieces> by_parts;   // tp, is the sequence sharded, samples
  std::map<std::pair<int, std::int64_t>, std::vector<Piece>> by_stages;  // if blocks differ: stages, samples

  Setup plain(int tp, bool cuts_sequence, int pp, std::int64_t samples) const {
    Setup s = setup;
    s.layout.tp = tp, s.layout.pp = pp, s.layout.ranks = tp * pp, s.layout.rank = 0;
    s.layout.zero = 0, s.micro_batches = 1, s.batch = samples;
    s.recomputes_blocks = false;
    s.layout.sequence_parallel = cuts_sequence;
    return s;
  }
  template <class PieceOf>
  void record(const Setup& s, const PieceOf& piece_of) const;
  const ChainPieces& pieces(int tp, bool cuts_sequence, std::int64_t samples);
  const std::vector<Piece>& stages(int pp, std::int64_t samples);
  std::vector<Piece> of(const Layout& layout);
  std::int64_t samples(const Layout& layout) const { return setup.batch / (layout.dp * layout.micro_batches); }
};

template <class PieceOf>
void LayoutTimes::Known::record(const Setup& s, const PieceOf& piece_of) const {
  const memory::Device on = dry(device);
  const TapeGraph graph = nn::record_step(on, zero_batch_run(s));
  const std::vector<nn::NodeTimes> times = nn::node_times(graph, costs);
  std::vector<char> seen(graph.storages.size(), 0);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    layout_times_detail::add_node(graph, n, times[n], s.layout.tp, seen,
                                  piece_of(std::string(path_name(graph.nodes[n].path)), true));
  }
  const nn::DryScope scope(on);
  const TrainedParts parts(s, on);
  double trained = 0;
  for (const nn::Named& p : parts.model->trainable()) trained += static_cast<double>(p.tensor.elements());
  const double state_each = static_cast<double>(parts.optimizer->state_bytes()) / trained;
  for (const nn::Named& p : parts.model->trainable()) {
    Piece& piece = piece_of(p.name, false);
    piece.parameter_bytes += static_cast<double>(p.tensor.bytes());
    piece.state_bytes += state_each * static_cast<double>(p.tensor.elements());
  }
}

const ChainPieces& LayoutTimes::Known::pieces(int tp, bool cuts_sequence, std::int64_t samples) {
  const auto [found, is_new] = by_parts.try_emplace({tp, cuts_sequence, samples});
  if (!is_new) return found->second;
  Setup s = plain(tp, cuts_sequence, 1, samples);
  s.sizes.layers = 1;
  ChainPieces& pieces = found->second;
  // Nodes and parameters are both in the order of the chain.
  bool nodes_are_behind = false, parameters_are_behind = false;
  record(s, [&](const std::string& name, bool is_node) -> Piece& {
    bool& is_behind = is_node ? nodes_are_behind : parameters_are_behind;
    if (name.find(hidden) != std::string::npos) {
      is_behind = true;
      return pieces.block;
    }
    return is_behind ? pieces.behind : pieces.before;
  });
  return pieces;
}

const std::vector<Piece>& LayoutTimes::Known::stages(int pp, std::int64_t samples) {
  const auto [found, is_new] = by_stages.try_emplace({pp, samples});
  if (!is_new) return found->second;
  for (int stage = 0; stage < pp; ++stage) {
    Setup s = plain(1, false, pp, samples);
    s.layout.rank = stage;
    Piece& piece = found->second.emplace_back();
    record(s, [&](const std::string&, bool) -> Piece& { return piece; });
  }
  return found->second;
}

/// One piece per stage.
std::vector<Piece> LayoutTimes::Known::of(const Layout& layout) {
  if (hidden.empty()) return stages(layout.pp, samples(layout));
  const ChainPieces& all = pieces(layout.tp, layout.cuts_sequence, samples(layout));
  std::vector<Piece> list;
  for (int stage = 0; stage < layout.pp; ++stage) {
    const dist::StagePlace place{stage, layout.pp};
    const dist::StagePlace::Units units = place.units(layers);
    Piece piece;
    if (place.is_first()) piece.add(all.before);
    piece.add(all.block, static_cast<double>(units.end - units.first));
    if (place.is_last()) piece.add(all.behind);
    if (place.is_last() && layout.pp > 1) piece.parameter_bytes += shared_bytes / layout.tp;  // without state
    list.push_back(piece);
  }
  return list;
}

LayoutTimes::LayoutTimes(const Setup& setup, const Cluster& cluster, nn::CostModel costs, memory::Device device)
    : known_(std::make_unique<Known>(Known{setup, cluster, std::move(costs), device, {}, 0, 0, {}, {}})) {
  const std::unique_ptr<Model> model = make_model(setup.model, setup.sizes, tensor_options(setup, dry(device)));
  known_->hidden = model->hidden_layers();
  known_->layers = model->options().layers;
  if (!model->is_tied() || known_->layers < 2) return;  // a single block is in one stage
  ModelOptions sizes = setup.sizes;
  sizes.stage = {0, 2};
  const auto first = make_model(setup.model, sizes, tensor_options(setup, dry(device)));
  for (const Tensor& shared : first->shared_by_stages().first) {
    known_->shared_bytes += static_cast<double>(shared.bytes());
  }
}

LayoutTimes::~LayoutTimes() = default;

LayoutTime LayoutTimes::of(const Layout& layout) {
  using namespace layout_times_detail;
  const Cluster& cluster = known_->cluster;
  std::vector<Piece> pieces = known_->of(layout);
  const dist::Link& group = link_over(cluster, layout.tp);
  const dist::Link& alike = link_over(cluster, layout.tp * layout.dp);
  const dist::Link& next = link_over(cluster, cluster.ranks);
  dist::PipelineCosts costs;
  LayoutTime time;
  double largest = 0, state = 0, busy = 0, slowest = 0, backward = 0;
  const auto micro_batches = static_cast<double>(layout.micro_batches);
  for (std::size_t s = 0; s < pieces.size(); ++s) {
    const Piece& piece = pieces[s];
    const double forward_sums = seconds_sent(group, layout.tp, piece.forward_sent, piece.forward_turns);
    const double sums = (layout.recomputes_blocks ? 2 : 1) * forward_sums +
                        seconds_sent(group, layout.tp, piece.backward_sent, piece.backward_turns);
    costs.forward_s.push_back(piece.forward_s + forward_sums);
    double again = 0;
    if (layout.recomputes_blocks) {
      const ChainPieces& all = known_->pieces(layout.tp, layout.cuts_sequence, known_->samples(layout));
      const dist::StagePlace::Units units = dist::StagePlace{static_cast<int>(s), layout.pp}.units(known_->layers);
      again = all.block.forward_s * static_cast<double>(units.end - units.first);
    }
    costs.backward_s.push_back(piece.backward_s + again + sums - forward_sums);
    const double both = costs.forward_s.back() + costs.backward_s.back();
    busy += both;
    slowest = std::max(slowest, both);
    backward = std::max(backward, costs.backward_s.back());
    time.parts_s = std::max(time.parts_s, micro_batches * sums);
    largest = std::max(largest, piece.parameter_bytes);
    state = std::max(state, piece.state_bytes);
    if (s + 1 < pieces.size()) {
      costs.link_s = std::max(costs.link_s, piece.given_bytes / next.bytes_per_s + next.message_s);
    }
  }
  // Beyond a few micro-batches, each adds the slowest stage's time.
  const auto most = static_cast<int>(std::min<std::int64_t>(layout.micro_batches, 2 * layout.pp));
  const dist::Schedule schedule = dist::one_forward_one_backward(layout.pp, most);
  time.pipeline_s = dist::simulate(schedule, costs).step_s + (micro_batches - most) * slowest;
  time.idle_s = time.pipeline_s - micro_batches * busy / static_cast<double>(layout.pp);
  const double d = layout.dp, others = (d - 1) / d;
  if (layout.dp > 1) {
    const auto bucket = static_cast<double>(layout.bucket_bytes);
    const double buckets = std::ceil(largest / bucket);
    const double sent = others * largest / alike.bytes_per_s + buckets * (d - 1) * alike.message_s;
    const double gathered = others * largest / alike.bytes_per_s;
    time.shares_s = micro_batches * std::max(0.0, sent - backward) +
                    others * std::min(bucket, largest) / alike.bytes_per_s + gathered;
    if (layout.zero == 3) {  // gathers parameters for each forward and backward, read ahead or not
      const double hidden = layout.read_ahead > 0 ? slowest : 0;
      time.shares_s += micro_batches * std::max(0.0, 2 * gathered - hidden) - gathered;
    }
  }
  if (layout.pp > 1) {  // a tied table's gradient goes to the first stage, its values come back
    time.shares_s += 2 * (known_->shared_bytes / layout.tp / next.bytes_per_s + next.message_s);
  }
  const double own = layout.zero > 0 ? d : 1;
  time.update_s = (3 * largest + 2 * state) / own / known_->costs.hardware.bytes_per_s;
  return time;
}

std::size_t LayoutTimes::least_bytes(const Layout& layout) {
  double most = 0;
  const std::vector<Piece> pieces = known_->of(layout);
  const double d = layout.dp;
  for (std::size_t s = 0; s < pieces.size(); ++s) {
    const Piece& piece = pieces[s];
    const double parameters = piece.parameter_bytes / (layout.zero > 2 ? d : 1);
    const double gradients = piece.parameter_bytes / (layout.zero > 1 ? d : 1);
    const double under_way =
        static_cast<double>(std::min<std::int64_t>(layout.pp - static_cast<std::int64_t>(s), layout.micro_batches));
    const double kept = layout.recomputes_blocks ? 0 : under_way * piece.kept_bytes;
    // A lower bound: activations go while gradients come, and shards are rounded to whole grains.
    most =
        std::max(most, 0.95 * (parameters + piece.state_bytes / (layout.zero > 0 ? d : 1) + std::max(gradients, kept)));
  }
  return static_cast<std::size_t>(most);
}

}  // namespace thimble::models
