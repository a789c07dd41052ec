// Gathers and their gradients on CUDA devices. Does not check for bad indices, which would stall the device: their
// results are NaN (0 in integers), and nothing outside the operand is read. Sums have the CPU's order.

#include <thimble/core/kernels/gather.h>
#include <thimble/cuda/kernel/element.h>

namespace thimble::kernels {
namespace gather_cuda_detail {

using namespace cuda_kernels;

// The bits of a NaN of a floating dtype; 0 for others.
std::uint64_t bits_of_nothing(DType dtype) {
  std::uint64_t bits = 0;
  if (!is_floating(dtype)) return bits;
  visit(dtype, [&bits]<class T>() {
    const T nan = convert_value<T>(__builtin_nan(""));
    if constexpr (sizeof(T) == 8) {
      bits = bit_cast<std::uint64_t>(nan);
    } else if constexpr (sizeof(T) == 4) {
      bits = bit_cast<std::uint32_t>(nan);
    } else if constexpr (sizeof(T) == 2) {
      bits = bit_cast<std::uint16_t>(nan);
    } else {
      bits = bit_cast<std::uint8_t>(nan);
    }
  });
  return bits;
}

template <class F>
void with_word(std::size_t bytes, F&& f) {
  if (bytes == 1) return f(std::uint8_t{});
  if (bytes == 2) return f(std::uint16_t{});
  if (bytes == 4) return f(std::uint32_t{});
  f(std::uint64_t{});
}

template <class Word>
struct Embed {
  std::int64_t rows, columns, first, all;
  const Word* table;
  const void* ids;
  DType ids_dtype;
  Word nothing;
  Word* out;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t id = load_index(ids, ids_dtype, i / columns), row = id - first;
    const bool is_here = row >= 0 && row < rows;
    out[i] = id < 0 || id >= all ? nothing : is_here ? table[row * columns + i % columns] : Word{0};
  }
};

BadIndex embedding(const EmbeddingArgs& args) {
  with_word(size_of(args.dtype), [&](auto word) {
    using Word = decltype(word);
    for_each_item(
        args.positions * args.columns,
        Embed<Word>{args.rows, args.columns, args.first, args.all, static_cast<const Word*>(args.table), args.ids,
                    args.ids_dtype, static_cast<Word>(bits_of_nothing(args.dtype)), static_cast<Word*>(args.out)});
  });
  return {};
}

// The gradient sorts positions by id. `order` has (rows + 1) starts, then the positions.
struct ZeroStarts {
  std::int64_t* starts;
  THIMBLE_DEVICE void operator()(std::int64_t r) const { starts[r] = 0; }
};

struct CountIds {
  std::int64_t rows, first;
  const void* ids;
  DType ids_dtype;
  std::int64_t* starts;
  THIMBLE_DEVICE void operator()(std::int64_t p) const {
    const std::int64_t row = load_index(ids, ids_dtype, p) - first;
    if (row >= 0 && row < rows) atomic_add(starts + row, std::int64_t{1});
  }
};

// One team: starts[r] becomes one past the last place of row r.
struct SumCounts {
  static constexpr int threads = 1024;
  std::int64_t rows;
  std::int64_t* starts;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t) const {
    const Shared<std::int64_t> sums = team.template shared<std::int64_t>();
    const std::int64_t share = (rows + 1 + Team::size - 1) / Team::size;
    const std::int64_t begin = team.rank() * share, end = begin + share < rows + 1 ? begin + share : rows + 1;
    std::int64_t own = 0;
    for (std::int64_t r = begin; r < end; ++r) own += starts[r];
    sums[team.rank()] = own;
    team.sync();
    std::int64_t total = 0;
    for (int t = 0; t < team.rank(); ++t) total += sums[t];
    for (std::int64_t r = begin; r < end; ++r) {
      total += starts[r];
      starts[r] = total;
    }
  }
};

// Gives every position one of its row's places, in any order; afterwards starts[r] is the row's first place.
struct TakePlaces {
  std::int64_t rows, first;
  const void* ids;
  DType ids_dtype;
  std::int64_t* starts;
  std::int64_t* sorted;
  THIMBLE_DEVICE void operator()(std::int64_t p) const {
    const std::int64_t row = load_index(ids, ids_dtype, p) - first;
    if (row >= 0 && row < rows) sorted[atomic_fetch_add(starts + row, std::int64_t{-1}) - 1] = p;
  }
};

// Teams take rows with more places than this.
constexpr std::int64_t most_places = embedding_block;

THIMBLE_DEVICE inline std::int64_t places_of(const std::int64_t* starts, std::int64_t row) {
  return starts[row + 1] - starts[row];
}

// Heap-sorts the places of one row in ascending order.
struct SortPlaces {
  const std::int64_t* starts;
  std::int64_t* sorted;
  THIMBLE_DEVICE static void sift(std::int64_t* heap, std::int64_t at, std::int64_t n) {
    for (std::int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
      if (child + 1 < n && heap[child + 1] > heap[child]) ++child;
      if (heap[at] >= heap[child]) return;
      const std::int64_t moved = heap[at];
      heap[at] = heap[child];
      heap[child] = moved;
      at = child;
    }
  }
  THIMBLE_DEVICE void operator()(std::int64_t r) const {
    std::int64_t* const heap = sorted + starts[r];
    const std::int64_t n = places_of(starts, r);
    if (n > most_places) return;
    for (std::int64_t at = n / 2; at-- > 0;) sift(heap, at, n);
    for (std::int64_t last = n - 1; last > 0; --last) {
      const std::int64_t largest = heap[0];
      heap[0] = heap[last];
      heap[last] = largest;
      sift(heap, 0, last);
    }
  }
};

// Places of a row with many of them: the team walks over all positions once and keeps the row's in order.
struct FindPlaces {
  static constexpr int threads = 256;
  static constexpr std::int64_t together = 16;  // neighbouring positions per thread
  std::int64_t positions, first;
  const void* ids;
  DType ids_dtype;
  const std::int64_t* starts;
  std::int64_t* sorted;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t row) const {
    if (places_of(starts, row) <= most_places) return;
    const Shared<std::int64_t> counts = team.template shared<std::int64_t>();
    std::int64_t to = starts[row];
    for (std::int64_t round = 0; round < positions; round += Team::size * together) {
      const std::int64_t left = positions - round;
      const std::int64_t begin = team.rank() * together < left ? team.rank() * together : left;
      const std::int64_t end = begin + together < left ? begin + together : left;
      std::int64_t own = 0, before = 0, all = 0;
      for (std::int64_t p = begin; p < end; ++p) own += load_index(ids, ids_dtype, round + p) == first + row;
      counts[team.rank()] = own;
      team.sync();
      for (int t = 0; t < Team::size; ++t) {
        if (t == team.rank()) before = all;
        all += counts[t];
      }
      for (std::int64_t p = begin, at = to + before; p < end; ++p) {
        if (load_index(ids, ids_dtype, round + p) == first + row) sorted[at++] = round + p;
      }
      to += all;
      team.sync();
    }
  }
};

// Sums elements of a row's gradient over its places, block by block.
template <class T>
struct SumRow {
  std::int64_t columns;
  DType dtype;
  const void* dy;
  void* dtable;
  const std::int64_t* starts;
  const std::int64_t* sorted;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t row = i / columns, column = i % columns;
    if (places_of(starts, row) > most_places) return;
    double total = 0;
    for (std::int64_t at = starts[row]; at < starts[row + 1]; at += embedding_block) total += block(row, at, column);
    store_total(dtable, dtype, i, total);
  }

  THIMBLE_DEVICE double block(std::int64_t row, std::int64_t at, std::int64_t column) const {
    const std::int64_t end = starts[row + 1], stop = at + embedding_block < end ? at + embedding_block : end;
    T sum = 0;
    for (std::int64_t k = at; k < stop; ++k) sum += load<T>(dy, dtype, sorted[k] * columns + column);
    return static_cast<double>(sum);
  }
};

// For a row with many places: lanes sum its blocks, and the first lane adds the blocks' sums in order.
template <class T>
struct SumLongRow {
  static constexpr int threads = 256;
  SumRow<T> sums;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t row) const {
    if (places_of(sums.starts, row) <= most_places) return;
    constexpr int columns = 32, lanes = Team::size / columns;
    const Shared<double> shared = team.template shared<double>();  // (lanes, columns)
    const int column = team.rank() % columns, lane = team.rank() / columns;
    const std::int64_t end = sums.starts[row + 1];
    for (std::int64_t group = 0; group < sums.columns; group += columns) {
      const bool is_there = group + column < sums.columns;
      double total = 0;
      for (std::int64_t round = sums.starts[row]; round < end; round += lanes * embedding_block) {
        const std::int64_t at = round + lane * embedding_block;
        if (is_there && at < end) shared[lane * columns + column] = sums.block(row, at, group + column);
        team.sync();
        for (int l = 0; lane == 0 && is_there && l < lanes && round + l * embedding_block < end; ++l) {
          total += shared[l * columns + column];
        }
        team.sync();
      }
      if (lane == 0 && is_there) {
        store_total(sums.dtable, sums.dtype, row * sums.columns + group + column, total);
      }
    }
  }
};

void embedding_backward(const EmbeddingGradArgs& args) {
  std::int64_t* const starts = args.order;
  std::int64_t* const sorted = args.order + args.rows + 1;
  for_each_item(args.rows + 1, ZeroStarts{starts});
  for_each_item(args.positions, CountIds{args.rows, args.first, args.ids, args.ids_dtype, starts});
  for_each_team(1, SumCounts{args.rows, starts}, SumCounts::threads * sizeof(std::int64_t));
  for_each_item(args.positions, TakePlaces{args.rows, args.first, args.ids, args.ids_dtype, starts, sorted});
  for_each_item(args.rows, SortPlaces{starts, sorted});
  const bool may_be_long = args.positions > most_places;
  if (may_be_long) {
    for_each_team(args.rows, FindPlaces{args.positions, args.first, args.ids, args.ids_dtype, starts, sorted},
                  FindPlaces::threads * sizeof(std::int64_t));
  }
  with_compute_type(args.dtype, [&]<class T>() {
    const SumRow<T> sums{args.columns, args.dtype, args.dy, args.dtable, starts, sorted};
    for_each_item(args.rows * args.columns, sums);
    if (may_be_long) for_each_team(args.rows, SumLongRow<T>{sums}, SumLongRow<T>::threads * sizeof(double));
  });
}

struct Lines {
  Walk<3> walk;
  std::int64_t x_length, out_length, x_step, index_step, out_step;
  const void* index;
  DType index_dtype;
  explicit Lines(const GatherArgs& args)
      : walk(args.lines, {&args.x_strides, &args.index_strides, &args.out_strides}),
        x_length(args.x_length),
        out_length(args.out_length),
        x_step(args.x_step),
        index_step(args.index_step),
        out_step(args.out_step),
        index(args.index),
        index_dtype(args.index_dtype) {}
};

template <class Word>
struct Gather {
  Lines lines;
  const Word* x;
  Word nothing;
  Word* out;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    std::int64_t at[3];
    lines.walk.locate(i / lines.out_length, at);
    const std::int64_t j = i % lines.out_length, to = at[2] + j * lines.out_step;
    const std::int64_t from = load_index(lines.index, lines.index_dtype, at[1] + j * lines.index_step);
    out[to] = from < 0 || from >= lines.x_length ? nothing : x[at[0] + from * lines.x_step];
  }
};

BadIndex gather(const GatherArgs& args) {
  if (args.out_length == 0) return {};
  with_word(size_of(args.dtype), [&](auto word) {
    using Word = decltype(word);
    for_each_item(args.lines.elements() * args.out_length,
                  Gather<Word>{Lines(args), static_cast<const Word*>(args.x),
                               static_cast<Word>(bits_of_nothing(args.dtype)), static_cast<Word*>(args.out)});
  });
  return {};
}

// A thread takes a line, so its sums have one order.
template <class T>
struct ScatterAdd {
  Lines lines;
  T* sums;
  const void* dy;
  DType dtype;
  THIMBLE_DEVICE void operator()(std::int64_t line) const {
    std::int64_t at[3];
    lines.walk.locate(line, at);
    for (std::int64_t j = 0; j < lines.out_length; ++j) {
      const std::int64_t from = at[2] + j * lines.out_step;
      const std::int64_t to = load_index(lines.index, lines.index_dtype, at[1] + j * lines.index_step);
      if (to >= 0 && to < lines.x_length) sums[at[0] + to * lines.x_step] += load<T>(dy, dtype, from);
    }
  }
};

BadIndex scatter_add(const GatherArgs& args) {
  const auto add = [&]<class T>() {
    for_each_item(args.lines.elements(), ScatterAdd<T>{Lines(args), static_cast<T*>(args.x), args.out, args.dtype});
  };
  is_floating(args.dtype) ? with_compute_type(args.dtype, add) : add.template operator()<std::int64_t>();
  return {};
}

constexpr GatherKernels table{embedding, embedding_backward, gather, scatter_add};

}  // namespace gather_cuda_detail

const GatherKernels* const gather_cuda = &gather_cuda_detail::table;

}  // namespace thimble::kernels
