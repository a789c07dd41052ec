// Gathers and their gradients on the CPU.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include <thimble/core/kernels/cpu/base/compute.h>
#include <thimble/core/kernels/gather.h>
#include <thimble/core/kernels/shared/strided.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace gather_detail {

constexpr std::int64_t grain_elements = 1 << 14;
constexpr std::int64_t tile = 256;

std::int64_t index_at(const void* data, DType dtype, std::int64_t element) {
  if (dtype == DType::i32) return static_cast<const std::int32_t*>(data)[element];
  return static_cast<const std::int64_t*>(data)[element];
}

// The smallest bad position that any thread finds.
class FirstBad {
 public:
  void note(std::int64_t position) noexcept {
    std::int64_t before = first_.load(std::memory_order_relaxed);
    while (position < before && !first_.compare_exchange_weak(before, position, std::memory_order_relaxed)) {
    }
  }
  bool found() const noexcept { return first_.load() != none; }
  std::int64_t position() const noexcept { return first_.load(); }

 private:
  static constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> first_{none};
};

BadIndex embedding(const EmbeddingArgs& args) {
  FirstBad bad;
  const std::size_t row_bytes = static_cast<std::size_t>(args.columns) * size_of(args.dtype);
  const std::int64_t grain = std::max<std::int64_t>(1, grain_elements / std::max<std::int64_t>(1, args.columns));
  parallel_for(args.positions, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int64_t id = index_at(args.ids, args.ids_dtype, p), row = id - args.first;
      if (id < 0 || id >= args.all) {
        bad.note(p);
      } else if (row_bytes > 0 && (row < 0 || row >= args.rows)) {
        std::memset(element_at(args.out, args.dtype, p * args.columns), 0, row_bytes);
      } else if (row_bytes > 0) {
        std::memcpy(element_at(args.out, args.dtype, p * args.columns),
                    element_at(args.table, args.dtype, row * args.columns), row_bytes);
      }
    }
  });
  if (!bad.found()) return {};
  return {bad.position(), index_at(args.ids, args.ids_dtype, bad.position())};
}

// Sorts positions by their id, ascending for each id (counting sort). Row r's are order[rows + 1 + starts[r]] and
// following, where starts is the front of `order`.
void sort_positions(const EmbeddingGradArgs& args) {
  std::int64_t* const starts = args.order;
  std::int64_t* const sorted = args.order + args.rows + 1;
  std::fill(starts, starts + args.rows + 1, 0);
  const auto row_at = [&](std::int64_t p) { return index_at(args.ids, args.ids_dtype, p) - args.first; };
  const auto is_here = [&](std::int64_t row) { return row >= 0 && row < args.rows; };
  for (std::int64_t p = 0; p < args.positions; ++p) {
    if (is_here(row_at(p))) ++starts[row_at(p)];
  }
  std::int64_t sum = 0;
  for (std::int64_t r = 0; r <= args.rows; ++r) {
    sum += starts[r];
    starts[r] = sum;  // one past the row's last place
  }
  for (std::int64_t p = args.positions; p-- > 0;) {
    if (is_here(row_at(p))) sorted[--starts[row_at(p)]] = p;
  }
}

// One row's columns [column, column + n).
template <class T>
void sum_rows(const EmbeddingGradArgs& args, std::int64_t row, std::int64_t column, std::int64_t n) {
  const std::int64_t* const sorted = args.order + args.rows + 1;
  const std::int64_t begin = args.order[row], end = args.order[row + 1];
  alignas(64) T sum[tile], buffer[tile];
  double total[tile] = {};
  for (std::int64_t at = begin; at < end; at += embedding_block) {
    std::fill(sum, sum + n, T(0));
    for (std::int64_t i = at; i < std::min(end, at + embedding_block); ++i) {
      const T* const dy = read_elements(args.dy, args.dtype, sorted[i] * args.columns + column, n, buffer);
      for (std::int64_t c = 0; c < n; ++c) sum[c] += dy[c];
    }
    for (std::int64_t c = 0; c < n; ++c) total[c] += static_cast<double>(sum[c]);
  }
  store_elements(total, args.dtable, args.dtype, row * args.columns + column, n);
}

void embedding_backward(const EmbeddingGradArgs& args) {
  sort_positions(args);
  const std::int64_t tiles = (args.columns + tile - 1) / tile;
  parallel_for(args.rows * tiles, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      const std::int64_t row = at / tiles, column = at % tiles * tile, n = std::min(tile, args.columns - column);
      if (args.order[row] == args.order[row + 1]) {
        std::memset(element_at(args.dtable, args.dtype, row * args.columns + column), 0,
                    static_cast<std::size_t>(n) * size_of(args.dtype));
      } else if (args.dtype == DType::f64) {
        sum_rows<double>(args, row, column, n);
      } else {
        sum_rows<float>(args, row, column, n);
      }
    }
  });
}

// Lines that are copied to the room together, or 0. Lines side by side whose elements are a row apart share few sets of
// the caches.
std::int64_t lines_in_room(const GatherArgs& args, const MergedStrides<3>& walk, std::size_t element_bytes) {
  constexpr std::int64_t least = 64, most_bytes = std::int64_t{1} << 19;  // a line of the cache; a quarter of its level
  const auto bytes = static_cast<std::int64_t>(element_bytes);
  const bool is_across = walk.rank == 1 && walk.stride(0, 0) == 1 && walk.stride(1, 0) != 0 && walk.stride(2, 0) == 1;
  const bool is_far = args.x_length * args.x_step * bytes > most_bytes && args.x_length * least <= most_bytes;
  if (!is_across || !is_far || args.out_length < args.x_length / 8 || args.index_step == 0) return 0;
  return std::min<std::int64_t>(4, most_bytes / (args.x_length * least)) * least / bytes;
}

// n elements of out and index that are visited together, their steps, and the beginnings of their lines of x.
struct Run {
  std::int64_t x, index, out, x_step, index_step, out_step, n;
};

// Calls body_on(x, step)(run) for all elements of the lines, in parallel over lines; a line's elements in ascending
// order, `step` apart from x on. Runs go across the lines where these are contiguous, else along them.
template <bool is_written, class Word, class F>
void for_each_run(const GatherArgs& args, Word* x, F&& body_on) {
  if (args.out_length == 0 || args.lines.elements() == 0) return;
  const MergedStrides<3> walk(args.lines, {&args.x_strides, &args.index_strides, &args.out_strides});
  const std::int64_t x_step = walk.stride(0, walk.rank - 1), index_step = walk.stride(1, walk.rank - 1),
                     out_step = walk.stride(2, walk.rank - 1), in_room = lines_in_room(args, walk, sizeof(Word));
  const std::int64_t grain = std::max<std::int64_t>(1, grain_elements / args.out_length), all = args.lines.elements();
  if (in_room > 0) {
    constexpr std::int64_t ahead = 16;  // rows, which lie too far apart for the processor's prefetcher
    const auto ask = [](const void* row, std::int64_t n, std::size_t bytes) {
      for (std::int64_t at = 0; at < n * static_cast<std::int64_t>(bytes); at += 64)
        __builtin_prefetch(static_cast<const std::byte*>(row) + at);
    };
    const auto threads = std::min<std::int64_t>(thread_count(), all);
    return parallel_threads(static_cast<int>(threads), [&](int thread) {
      Word* const room = static_cast<Word*>(args.room) + thread * in_room * args.x_length;
      const auto body = body_on(room, in_room);
      const std::int64_t end = all * (thread + 1) / threads;
      for (std::int64_t at = all * thread / threads, n = 0; at < end; at += n) {
        n = std::min(in_room, end - at);
        const auto for_each_row = [&](auto&& copy) {
          for (std::int64_t r = 0; r < args.x_length; ++r) {
            ask(x + at + (r + ahead) * args.x_step, n, sizeof(Word));
            copy(x + at + r * args.x_step, room + r * in_room);
          }
        };
        for_each_row([n](const Word* from, Word* to) { std::copy_n(from, n, to); });
        for (std::int64_t j = 0; j < args.out_length; ++j) {
          const std::int64_t index = at * index_step + j * args.index_step, out = at + j * args.out_step;
          ask(element_at(args.index, args.index_dtype, index + ahead * args.index_step), n, size_of(args.index_dtype));
          ask(element_at(args.out, args.dtype, out + ahead * args.out_step), n, size_of(args.dtype));
          body(Run{0, index, out, 1, index_step, 1, n});
        }
        if (is_written) for_each_row([n](Word* to, const Word* from) { std::copy_n(from, n, to); });
      }
    });
  }
  const auto body = body_on(x, args.x_step);
  parallel_for(all, grain, [&](std::int64_t begin, std::int64_t end) {
    walk.for_each_run(begin, end, [&](const std::array<std::int64_t, 3>& at, std::int64_t lines) {
      if (out_step == 1 && lines > 1) {
        for (std::int64_t j = 0; j < args.out_length; ++j)
          body(Run{at[0], at[1] + j * args.index_step, at[2] + j * args.out_step, x_step, index_step, out_step, lines});
      } else {
        for (std::int64_t i = 0; i < lines; ++i) {
          body(Run{at[0] + i * x_step, at[1] + i * index_step, at[2] + i * out_step, 0, args.index_step, args.out_step,
                   args.out_length});
        }
      }
    });
  });
}

// The index at element `position` of out.
BadIndex bad_of(const GatherArgs& args, const FirstBad& bad) {
  if (!bad.found()) return {};
  const std::int64_t j = bad.position() / args.out_step % args.out_length;
  std::int64_t at = j * args.index_step;
  for (int axis = 0; axis < args.lines.rank(); ++axis) {
    at += bad.position() / args.out_strides[axis] % args.lines[axis] * args.index_strides[axis];
  }
  return {bad.position(), index_at(args.index, args.index_dtype, at)};
}

// Whether the n indices from `first` on, `step` apart, are in [0, length). Without a branch, and so without one in the
// loops that then use them.
template <class Index>
bool are_within(const Index* first, std::int64_t step, std::int64_t n, std::int64_t length) {
  const auto last = static_cast<std::uint64_t>(length) - 1;
  std::uint64_t signs = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto place = static_cast<std::uint64_t>(std::int64_t{first[i * step]});
    signs |= place | (last - place);
  }
  return signs >> 63 == 0;
}

template <class Word, class Index>
BadIndex gather_words(const GatherArgs& args) {
  FirstBad bad;
  const auto* const indices = static_cast<const Index*>(args.index);
  auto* const out = static_cast<Word*>(args.out);
  const std::int64_t length = args.x_length;
  const auto move = [&, indices, out, length](const Word* x, std::int64_t step) {
    return [&bad, x, indices, out, length, step](const Run run) {
      const bool is_row = run.index_step == 0 && run.x_step == 1 && run.out_step == 1;
      const std::int64_t count = is_row ? 1 : run.n, together = is_row ? run.n : 1;
      for (std::int64_t at = 0; at < count; at += tile) {
        const std::int64_t n = std::min(tile, count - at);
        const Index* const index = indices + run.index + at * run.index_step;
        const Word* const from = x + run.x + at * run.x_step;
        const std::int64_t to = run.out + at * run.out_step;
        if (!is_row && are_within(index, run.index_step, n, length)) {
          for (std::int64_t i = 0; i < n; ++i)
            out[to + i * run.out_step] = from[i * run.x_step + std::int64_t{index[i * run.index_step]} * step];
          continue;
        }
        for (std::int64_t i = 0; i < n; ++i) {
          const std::int64_t place = index[i * run.index_step];
          if (place < 0 || place >= length) {
            bad.note(to + i * run.out_step);
          } else {
            std::copy_n(from + i * run.x_step + place * step, together, out + to + i * run.out_step);
          }
        }
      }
    };
  };
  for_each_run<false>(args, static_cast<Word*>(args.x), move);
  return bad_of(args, bad);
}

template <class Word>
BadIndex gather_by(const GatherArgs& args) {
  return args.index_dtype == DType::i32 ? gather_words<Word, std::int32_t>(args)
                                        : gather_words<Word, std::int64_t>(args);
}

BadIndex gather(const GatherArgs& args) {
  const std::size_t size = size_of(args.dtype);
  if (size <= 2) return size == 1 ? gather_by<std::uint8_t>(args) : gather_by<std::uint16_t>(args);
  return size == 4 ? gather_by<std::uint32_t>(args) : gather_by<std::uint64_t>(args);
}

template <class T, class Index>
BadIndex add_all(const GatherArgs& args) {
  FirstBad bad;
  const auto* const indices = static_cast<const Index*>(args.index);
  const std::int64_t length = args.x_length;
  const auto add = [&, indices, length](T* sums, std::int64_t step) {
    return [&, sums, indices, length, step](const Run run) {
      alignas(64) T dy[tile];
      const bool is_row = run.index_step == 0 && run.x_step == 1;
      for (std::int64_t at = 0; at < run.n; at += tile) {
        const std::int64_t n = std::min(tile, run.n - at);
        load_elements(args.out, args.dtype, run.out + at * run.out_step, run.out_step, dy, n);
        const Index* const index = indices + run.index + at * run.index_step;
        T* const to = sums + run.x + at * run.x_step;
        if (!is_row && are_within(index, run.index_step, n, length)) {
          for (std::int64_t i = 0; i < n; ++i)
            to[i * run.x_step + std::int64_t{index[i * run.index_step]} * step] += dy[i];
          continue;
        }
        for (std::int64_t i = 0; i < (is_row ? 1 : n); ++i) {
          const std::int64_t place = index[i * run.index_step];
          if (place < 0 || place >= length) {
            bad.note(run.out + (at + i) * run.out_step);
          } else {
            for (std::int64_t k = 0; k < (is_row ? n : 1); ++k) to[i * run.x_step + place * step + k] += dy[i + k];
          }
        }
      }
    };
  };
  for_each_run<true>(args, static_cast<T*>(args.x), add);
  return bad_of(args, bad);
}

template <class T>
BadIndex add_by(const GatherArgs& args) {
  return args.index_dtype == DType::i32 ? add_all<T, std::int32_t>(args) : add_all<T, std::int64_t>(args);
}

BadIndex scatter_add(const GatherArgs& args) {
  if (!is_floating(args.dtype)) return add_by<std::int64_t>(args);
  return args.dtype == DType::f64 ? add_by<double>(args) : add_by<float>(args);
}

}  // namespace gather_detail

std::int64_t gather_room_elements(const GatherArgs& args, std::size_t element_bytes) noexcept {
  const MergedStrides<3> walk(args.lines, {&args.x_strides, &args.index_strides, &args.out_strides});
  return gather_detail::lines_in_room(args, walk, element_bytes) * args.x_length * thread_count();
}

const GatherKernels gather_cpu{
    .embedding = gather_detail::embedding,
    .embedding_backward = gather_detail::embedding_backward,
    .gather = gather_detail::gather,
    .scatter_add = gather_detail::scatter_add,
};

const GatherKernels& gather_kernels(memory::Device device) {
  return table_for(device, "gather", gather_cpu, gather_cuda);
}

}  // namespace thimble::kernels
