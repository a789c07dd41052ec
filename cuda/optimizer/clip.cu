// Norm and clipping of gradients on CUDA devices, with a launch for many gradients.

#include <algorithm>
#include <cmath>

#include <thimble/cuda/kernel/kernel.h>
#include <thimble/cuda/optimizer/parameter.h>

namespace thimble::kernels {
namespace clip_cuda_detail {

using namespace cuda_kernels;

// Sums of squares of ranges, and the factor of clipping. Kernels of one stream write and read them in order.
constexpr std::int64_t most_sums = 1 << 12;
THIMBLE_DEVICE_GLOBAL double stretch_sums[most_sums];
THIMBLE_DEVICE_GLOBAL double clip_factor;

THIMBLE_HD std::int64_t square_stretches_of(std::int64_t n) { return (n + square_stretch - 1) / square_stretch; }

struct SumStretches {
  static constexpr int threads = 256;
  DType dtype;
  UpdateTable table;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t index) const {
    const int at = table.index_of(index);
    const UpdateEntry entry = table.entries[at];
    const std::int64_t begin = table.unit_of(index, at) * square_stretch;
    const std::int64_t end = begin + square_stretch < entry.n ? begin + square_stretch : entry.n;
    double own = 0;
    for (std::int64_t i = begin + team.rank(); i < end; i += Team::size) {
      const double value = load_wide(entry.g, dtype, i);
      own += value * value;
    }
    const double sum = team.sum(own);
    if (team.rank() == 0) stretch_sums[index] = sum;
  }
};

// For gradients that begin at multiples of 16 bytes: loads words, and passes them through shared memory to the threads
// that square them.
template <class S>
struct SumStretchesOfWords {
  static constexpr int threads = 256, count = word_elements<S>;
  static constexpr std::size_t bytes = square_stretch * sizeof(float);
  UpdateTable table;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t index) const {
    const int at = table.index_of(index);
    const UpdateEntry entry = table.entries[at];
    const std::int64_t begin = table.unit_of(index, at) * square_stretch, left = entry.n - begin;
    const int n = static_cast<int>(left < square_stretch ? left : square_stretch);
    const Shared<Words<float, 4>> fours = team.template shared<Words<float, 4>>();
    const Shared<float> values = team.template shared<float>();
    for (int i = team.rank() * count; i < n; i += Team::size * count) {
      const Words<S, count> word = words_at<count>(static_cast<const S*>(entry.g), begin + i);
      THIMBLE_UNROLL
      for (int first = 0; first < count; first += 4) {
        Words<float, 4> four;
        THIMBLE_UNROLL
        for (int e = 0; e < 4; ++e) four.values[e] = widened(word.values[first + e]);
        fours[(i + first) / 4] = four;
      }
    }
    team.sync();
    double own = 0;
    for (int i = team.rank(); i < n; i += Team::size) {
      const double value = static_cast<double>(static_cast<float>(values[i]));
      own += value * value;
    }
    const double sum = team.sum(own);
    if (team.rank() == 0) stretch_sums[index] = sum;
  }
};

// Adds the sums of a gradient's ranges one after the other, as a rank with only some of the ranges does.
struct AddStretches {
  UpdateTable table;
  bool continues;  // starts from the value in the gradient's sum
  THIMBLE_DEVICE void operator()(std::int64_t index) const {
    constexpr std::int64_t ahead = 16;  // loads in flight ahead of the sums
    const UpdateEntry entry = table.entries[index];
    const std::int64_t end = table.begins[index] + square_stretches_of(entry.n);
    auto* const sum = static_cast<double*>(entry.p);
    double total = continues ? *sum : 0;
    for (std::int64_t first = table.begins[index]; first < end; first += ahead) {
      double sums[ahead];
      for (std::int64_t i = 0; i < ahead; ++i) sums[i] = first + i < end ? stretch_sums[first + i] : 0;
      for (std::int64_t i = 0; i < ahead; ++i) total += sums[i];
    }
    *sum = total;
  }
};

void square_sums(std::span<const SquareSumArgs> list) {
  const std::lock_guard together(launches_together);
  static_assert(sizeof(SumStretches) <= most_argument_bytes);
  const auto sum = [](std::span<const SquareSumArgs> some, bool continues) {
    for_each_table(
        some, [](const SquareSumArgs& a) { return square_stretches_of(a.n); },
        [&](const SquareSumArgs& a, const UpdateTable& table) {
          const bool is_done =
              all_of(table, [](const UpdateEntry& e) { return are_aligned({e.g}); }) &&
              with_word_dtype(a.dtype, [&]<class S>() {
                for_each_team(table.teams, SumStretchesOfWords<S>{table}, SumStretchesOfWords<S>::bytes);
              });
          if (!is_done) for_each_team(table.teams, SumStretches{a.dtype, table});
          for_each_item(table.count, AddStretches{table, continues});
        },
        most_sums);
  };
  constexpr std::int64_t most = most_sums * square_stretch;
  for (auto at = list.begin(); at != list.end();) {
    const auto large = std::find_if(at, list.end(), [](const SquareSumArgs& a) { return a.n > most; });
    sum(std::span(at, large), false);
    at = large;
    if (at == list.end()) break;
    for (std::int64_t done = 0; done < at->n; done += most) {
      const auto* const from =
          static_cast<const std::byte*>(at->gradient) + done * static_cast<std::int64_t>(size_of(at->dtype));
      const SquareSumArgs part{std::min(most, at->n - done), from, at->dtype, at->sum};
      sum({&part, 1}, done > 0);
    }
    ++at;
  }
}

struct FindFactor {
  ClipNorm norm;
  THIMBLE_DEVICE void operator()(std::int64_t) const {
    double sum = 0;
    for (std::int64_t i = 0; i < norm.count; ++i) sum += norm.sums[i];
    const double factor = norm.max_norm / (std::sqrt(sum) + 1e-6);
    clip_factor = factor < 1 ? factor : 1.0;
  }
};

template <class T>
struct Scale {
  static constexpr int threads = 256;
  DType dtype;
  UpdateTable table;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t index) const {
    const int at = table.index_of(index);
    const UpdateEntry entry = table.entries[at];
    const Array g{entry.p, dtype};
    const std::int64_t begin = table.unit_of(index, at) * update_stretch;
    const std::int64_t end = begin + update_stretch < entry.n ? begin + update_stretch : entry.n;
    const T factor = static_cast<T>(clip_factor);
    for (std::int64_t i = begin + team.rank(); i < end; i += Team::size) g.set<T>(i, g.get<T>(i) * factor);
  }
};

// For gradients that begin at multiples of 16 bytes.
struct ScaleEights {
  static constexpr int threads = 256;
  DType dtype;
  UpdateTable table;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t index) const {
    const int at = table.index_of(index);
    const UpdateEntry entry = table.entries[at];
    const std::int64_t begin = table.unit_of(index, at) * update_stretch;
    const std::int64_t end = begin + update_stretch < entry.n ? begin + update_stretch : entry.n;
    const float factor = static_cast<float>(clip_factor);
    for (std::int64_t i = begin + 8 * team.rank(); i < end; i += 8 * Team::size) {
      Eights g;
      read_eights(entry.p, dtype, i, entry.n, g);
      THIMBLE_UNROLL
      for (int e = 0; e < 8; ++e) g[e] *= factor;
      write_eights(entry.p, dtype, i, entry.n, g);
    }
  }
};

void clip(const ClipNorm& norm, std::span<const ClipArgs> list) {
  const std::lock_guard together(launches_together);
  for_each_item(1, FindFactor{norm});
  for_each_table(
      list, [](const ClipArgs& a) { return update_stretches(a.n); },
      [](const ClipArgs& a, const UpdateTable& table) {
        if (all_of(table, [](const UpdateEntry& e) { return are_aligned({e.p}); }) && is_word_dtype(a.dtype)) {
          return for_each_team(table.teams, ScaleEights{a.dtype, table});
        }
        with_compute_type(a.dtype, [&]<class T>() { for_each_team(table.teams, Scale<T>{a.dtype, table}); });
      });
}

}  // namespace clip_cuda_detail

void square_sums_on_cuda(std::span<const SquareSumArgs> list) { clip_cuda_detail::square_sums(list); }
void clip_on_cuda(const ClipNorm& norm, std::span<const ClipArgs> list) { clip_cuda_detail::clip(norm, list); }

}  // namespace thimble::kernels
