#include <thimble/models/planning/layouts.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/launch/tf32.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/bytes.h>
#include <thimble/models/planning/planned_run.h>

namespace thimble::models {
namespace layouts_detail {

template <class T>
bool goes_with(const std::optional<T>& given, T value) {
  return !given || *given == value;
}

/// A setup that throws says that the layout is none.
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

/// Blocks that stages can be made of.
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

}  // namespace layouts_detail

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
  own.ranks = layout.dp * layout.tp * layout.pp;
  own.rank = rank;
  own.tp = layout.tp, own.pp = layout.pp, own.zero = layout.zero;
  own.sequence_parallel = layout.cuts_sequence;
  own.micro_batches = layout.micro_batches;
  own.recomputes_blocks = layout.recomputes_blocks;
  own.bucket_bytes = layout.bucket_bytes;
  own.read_ahead = layout.read_ahead;
  return own;
}

std::vector<Layout> layouts_of(const Setup& setup, const Cluster& cluster, const FixedLayout& fixed) {
  using layouts_detail::goes_with;
  const auto model = make_model(setup.model, setup.sizes, tensor_options(setup, dry(cpu)));
  const int n = cluster.ranks, stages = layouts_detail::most_stages(setup, *model, n);
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
        goes_with(fixed.cuts_sequence, layout.cuts_sequence) && layouts_detail::is_possible(setup, *model, layout)) {
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

JudgedLayout judge(const PlanOptions& options, const Cluster& cluster, const Layout& layout, const LayoutTime& time,
                   std::vector<RankPlan>* ranks) {
  JudgedLayout judged{layout, time, 0, true};
  Setup setup = setup_of(options.setup, layout);
  const bool is_proof = ranks != nullptr;
  if (!is_proof) {  // bytes do not grow with micro-batches beyond those that are under way
    const std::int64_t samples = setup.batch / (layout.dp * layout.micro_batches);
    setup.micro_batches = std::min<std::int64_t>(layout.micro_batches, 2 * layout.pp + 2);
    setup.batch = samples * layout.dp * setup.micro_batches;
  }
  PlannedRuns runs(setup, options.device, options.data);
  const auto run = [&](int rank) {
    setup.rank = rank;
    const nn::MakeRun make = is_proof ? runs.of(setup) : zero_batch_run(setup);
    nn::MemoryProfile profile = nn::profile_training(dry(options.device), make);
    judged.peak_bytes = std::max(judged.peak_bytes, profile.peak_bytes);
    judged.fits = judged.peak_bytes <= cluster.memory_bytes;
    return profile;
  };
  if (!is_proof) {
    const int of_stage =
        setup.ranks / setup.pp;  // the first stage, the next one, which holds most of the others, the last
    for (const int rank : {0, setup.pp > 2 ? of_stage : 0, setup.ranks - of_stage}) {
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

LayoutReport find_layout(const PlanOptions& given, const Cluster& cluster, const FixedLayout& fixed) {
  check_tf32(given.allows_tf32, given.device);
  const Tf32Scope products(given.allows_tf32);
  PlanOptions options = given;
  const PlannedRuns of_sizes(options.setup, options.device, options.data);  // fills in the sizes of the data
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto seconds_since = [&](std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(now() - begin).count();
  };
  const auto start = now();
  if (cluster.memory_bytes == 0) throw ValueError("layouts: no memory; the bytes of a rank are needed");
  if (options.setup.cp != 1) {
    throw ValueError("layouts: `cp` " + std::to_string(options.setup.cp) + "; expected 1, as no other is tried");
  }
  if (options.setup.pipeline != "1f1b") {
    throw ValueError("layouts: `pipeline` " + options.setup.pipeline + "; expected 1f1b, as no other is tried");
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

}  // namespace thimble::models
