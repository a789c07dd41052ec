#pragma once
// Rows of neighbouring elements that a warp or a team processes together, 16 bytes per thread at a time.
//
// Glossary
// - word: the elements that fit in 16 bytes. Word w of a row begins at its element w * word_elements, for any alignment
//   of the row, so the assignment of sums to threads depends only on the row's length.
// - granule: 16 bytes of memory that begin at a multiple of 16. A word of an unaligned row spans two.
//
// Policy
// - A granule is read if any of its bytes belongs to the row; its other bytes are in the same block of memory.
// - The output may alias the input, element for element.

#include <cstdint>

#include <thimble/cuda/kernel/words.h>

namespace thimble::cuda_kernels {

template <class S>
class RowReader {
 public:
  static constexpr int count = word_elements<S>;
  THIMBLE_DEVICE RowReader(const S* row, std::int64_t length)
      : askew_(static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(row) % 16)),
        granules_(reinterpret_cast<const Granule*>(reinterpret_cast<const std::byte*>(row) - askew_)),
        end_(askew_ + length * static_cast<std::int64_t>(sizeof(S))) {}

  /// Word w in the compute type. Elements beyond the row's end are arbitrary.
  THIMBLE_DEVICE void read(std::int64_t w, Wide<S> (&values)[count]) const {
    const Granule held = word(w);
    if constexpr (sizeof(S) == 2) {
      THIMBLE_UNROLL
      for (int i = 0; i < 4; ++i) widen_pair<S>(held.word[i], values[2 * i], values[2 * i + 1]);
    } else {
      const auto elements = bit_cast<Words<S, count>>(held);
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) values[e] = widened(elements.values[e]);
    }
  }

 private:
  struct alignas(16) Granule {
    std::uint32_t word[4];
  };
  THIMBLE_DEVICE Granule word(std::int64_t w) const {
    const Granule low = granules_[w];
    if (askew_ == 0) return low;
    const Granule high = 16 * (w + 1) < end_ ? granules_[w + 1] : Granule{};
    std::uint32_t all[8] = {low.word[0],  low.word[1],  low.word[2],  low.word[3],
                            high.word[0], high.word[1], high.word[2], high.word[3]};
    move_down<2>(all, (askew_ & 8) != 0);
    move_down<1>(all, (askew_ & 4) != 0);
    Granule both;
    THIMBLE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t pair = static_cast<std::uint64_t>(all[i + 1]) << 32 | all[i];
      both.word[i] = static_cast<std::uint32_t>(pair >> (8 * (askew_ & 3)));
    }
    return both;
  }
  template <int places>
  THIMBLE_DEVICE static void move_down(std::uint32_t (&all)[8], bool moves) {
    THIMBLE_UNROLL
    for (int i = 0; i + places < 8; ++i) all[i] = moves ? all[i + places] : all[i];
  }
  unsigned askew_;
  const Granule* granules_;
  std::int64_t end_;
};

/// RowReader for strided elements.
template <class S>
class StridedReader {
 public:
  static constexpr int count = word_elements<S>;
  THIMBLE_DEVICE StridedReader(const S* row, std::int64_t length, std::int64_t step)
      : row_(row), length_(length), step_(step) {}
  THIMBLE_DEVICE void read(std::int64_t w, Wide<S> (&values)[count]) const {
    THIMBLE_UNROLL
    for (int e = 0; e < count; ++e) {
      values[e] = w * count + e < length_ ? widened(row_[(w * count + e) * step_]) : Wide<S>(0);
    }
  }

 private:
  const S* row_;
  std::int64_t length_, step_;
};

/// Writes words of results; element by element if the row is unaligned.
template <class S>
class RowWriter {
 public:
  static constexpr int count = word_elements<S>;
  THIMBLE_DEVICE explicit RowWriter(S* row) : row_(row), is_aligned_(reinterpret_cast<std::uintptr_t>(row) % 16 == 0) {}
  /// Writes the first n values.
  THIMBLE_DEVICE void write(std::int64_t w, const Wide<S> (&values)[count], int n) const {
    const Words<S, count> words = narrowed<S>(values);
    if (is_aligned_ && n == count) return put_words(row_, w * count, words);
    THIMBLE_UNROLL
    for (int e = 0; e < count; ++e) {
      if (e < n) row_[w * count + e] = words.values[e];
    }
  }

 private:
  S* row_;
  bool is_aligned_;
};

template <int count>
struct Whole {
  THIMBLE_DEVICE constexpr operator int() const { return count; }  // NOLINT(google-explicit-constructor)
};

/// f(w, n) for this thread's words of a row; n elements of word w exist, fewer than `count` only in the last.
template <int count, class Threads, class F>
THIMBLE_DEVICE inline void for_each_word(const Threads& threads, std::int64_t length, const F& f) {
  const std::int64_t whole = length / count;
  for (std::int64_t w = threads.rank(); w < whole; w += Threads::size) f(w, Whole<count>{});
  const int rest = static_cast<int>(length % count);
  if (rest > 0 && threads.rank() == whole % Threads::size) f(whole, rest);
}

/// for_each_word with one copy of f for all words: the compiler does not know n.
template <int count, class Threads, class F>
THIMBLE_DEVICE inline void for_each_part(const Threads& threads, std::int64_t length, const F& f) {
  std::int64_t w = threads.rank();
  THIMBLE_ROLLED
  for (std::int64_t rest = length - w * count; rest > 0; rest -= Threads::size * count, w += Threads::size) {
    f(w, rest < count ? static_cast<int>(rest) : count);
  }
}

/// Sets values from index `there` on to `filler`.
template <class T, int count>
THIMBLE_DEVICE inline void fill_behind(std::int64_t there, T filler, T (&values)[count]) {
  if (there >= count) return;
  const int n = there < 0 ? 0 : static_cast<int>(there);
  THIMBLE_UNROLL
  for (int e = 0; e < count; ++e) values[e] = e < n ? values[e] : filler;
}

/// Maps dense rows: f(begin, values) leaves its results in values[0], which become elements begin .. of `to`. Words
/// begin at granules if all operands have the same alignment. A null operand is not read.
template <int operands, class S, class Threads, class F>
THIMBLE_DEVICE inline void map_row(const Threads& threads, const S* const (&from)[operands], S* to, std::int64_t length,
                                   const F& f) {
  constexpr int count = word_elements<S>;
  const auto askew = [](const S* row) { return reinterpret_cast<std::uintptr_t>(row) % 16; };
  bool are_alike = askew(to) % sizeof(S) == 0;
  for (int k = 0; k < operands; ++k) are_alike = are_alike && (!from[k] || askew(from[k]) == askew(to));
  if (!are_alike) {
    const RowWriter<S> writer(to);
    return for_each_part<count>(threads, length, [&](std::int64_t w, int n) {
      Wide<S> values[operands][count];
      THIMBLE_UNROLL
      for (int k = 0; k < operands; ++k) {
        if (from[k]) RowReader<S>(from[k], length).read(w, values[k]);
      }
      f(w * count, values);
      writer.write(w, values[0], n);
    });
  }
  const auto before = static_cast<int>(askew(to) / sizeof(S));  // elements of the first granule outside the row
  for (std::int64_t begin = std::int64_t{threads.rank()} * count - before; begin < length;
       begin += Threads::size * count) {
    Wide<S> values[operands][count];
    THIMBLE_UNROLL
    for (int k = 0; k < operands; ++k) {
      if (!from[k]) continue;
      const Words<S, count> held = words_at<count>(from[k], begin);
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) values[k][e] = widened(held.values[e]);
    }
    f(begin, values);
    const Words<S, count> words = narrowed<S>(values[0]);
    if (begin >= 0 && begin + count <= length) {
      put_words(to, begin, words);
    } else {
      THIMBLE_UNROLL
      for (int e = 0; e < count; ++e) {
        if (begin + e >= 0 && begin + e < length) to[begin + e] = words.values[e];
      }
    }
  }
}

/// map_row for strided elements, with a step per operand; the last step is `to`'s.
template <int operands, class S, class Threads, class F>
THIMBLE_DEVICE inline void map_strided_row(const Threads& threads, const S* const (&from)[operands], S* to,
                                           const std::int64_t (&steps)[operands + 1], std::int64_t length, const F& f) {
  constexpr int count = word_elements<S>;
  for_each_part<count>(threads, length, [&](std::int64_t w, int n) {
    Wide<S> values[operands][count];
    for (int k = 0; k < operands; ++k) {
      if (from[k]) StridedReader<S>(from[k], length, steps[k]).read(w, values[k]);
    }
    f(w * count, values);
    const Words<S, count> words = narrowed<S>(values[0]);
    THIMBLE_UNROLL
    for (int e = 0; e < count; ++e) {
      if (e < n) to[(w * count + e) * steps[operands]] = words.values[e];
    }
  });
}

/// A row's threads: the lanes of a warp.
class WarpThreads {
 public:
  static constexpr int size = 32;
  THIMBLE_DEVICE explicit WarpThreads(int lane) : lane_(lane) {}
  THIMBLE_DEVICE int rank() const { return lane_; }
  template <class T>
  THIMBLE_DEVICE T sum(T value) const {
    return combine_warp(value, [](T a, T b) { return a + b; });
  }
  template <class T>
  THIMBLE_DEVICE T max(T value) const {
    return combine_warp(value, [](T a, T b) { return larger_of(a, b); });
  }

 private:
  int lane_;
};

/// body(threads, row) with a row for each warp.
template <class Body>
struct WarpRows {
  static constexpr int threads = 128;
  std::int64_t rows;
  Body body;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const std::int64_t row = job * (Team::size / 32) + team.rank() / 32;
    if (row >= rows) return;
    WarpThreads lanes(team.rank() % 32);
    body(lanes, row);
  }
};

/// body(threads, row) with a row for each team.
template <class Body>
struct TeamRows {
  static constexpr int threads = 256;
  Body body;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t row) const {
    body(team, row);
  }
};

/// body(threads, row) for all rows; a warp or a team takes a row, depending on the length.
template <class S, class Body>
void for_each_row_in_words(std::int64_t rows, std::int64_t length, const Body& body) {
  constexpr std::int64_t most_of_a_warp = 256;  // words
  if (length <= most_of_a_warp * word_elements<S>) {
    constexpr std::int64_t together = WarpRows<Body>::threads / 32;
    for_each_team((rows + together - 1) / together, WarpRows<Body>{rows, body});
  } else {
    for_each_team(rows, TeamRows<Body>{body});
  }
}

/// f.template operator()<S>() for a floating dtype.
template <class F>
void with_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f.template operator()<double>();
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::f16:
      return f.template operator()<f16>();
    case DType::f8e4m3:
      return f.template operator()<f8e4m3>();
    case DType::f8e5m2:
      return f.template operator()<f8e5m2>();
    default:
      return f.template operator()<float>();
  }
}

/// f.template operator()<S, is_dense>() for rows of a floating dtype. Elements of 8 bits are read one by one.
template <class F>
void with_rows(DType dtype, bool is_dense, F&& f) {
  with_floating(dtype, [&]<class S>() {
    if constexpr (sizeof(S) > 1) {
      if (is_dense) return f.template operator()<S, true>();
    }
    f.template operator()<S, false>();
  });
}

}  // namespace thimble::cuda_kernels
