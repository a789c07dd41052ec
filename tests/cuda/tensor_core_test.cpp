// The building blocks of a warp's products on tensor cores, run by 32 lanes on the host: fragments against the tables
// of the PTX ISA, addresses in shared memory, loads, and the random words of a block.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <set>
#include <vector>

#include <thimble/cuda/attention/attention.h>
#include <thimble/cuda/kernel/tensor_core.h>

#include "emulated/as_team.h"
#include "support/catch.h"

using namespace thimble;
using namespace thimble::cuda_kernels;
using namespace thimble::cuda_kernels::attention_mma_detail;
using namespace thimble::testing;

namespace {

// Element e of a fragment, numbered as in lane_map.
template <class T, std::size_t N>
float element(const std::uint32_t (&words)[N], int e) {
  if constexpr (sizeof(T) == 4) {
    return bit_cast<float>(words[e]);
  } else {
    return static_cast<float>(T::from_bits(static_cast<std::uint16_t>(words[e / 2] >> (16 * (e % 2)))));
  }
}

// A value as an operand of a product.
template <class T>
float operand(float value) {
  return sizeof(T) == 4 ? to_tf32(value) : static_cast<float>(T(value));
}

// A tile of 32 rows of small whole numbers: exact in any type, and in sums.
template <class T, int W>
struct Filled {
  static constexpr int rows = 32;
  static constexpr std::size_t bytes = rows * SharedTile<T, W>::row_bytes;
  float values[rows][W];
  Filled() {
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < W; ++column) {
        values[row][column] = static_cast<float>((row * 37 + column * 11) % 61 - 30);
      }
    }
  }
  SharedTile<T, W> put(Team<32>& team) const {
    const auto shared = team.template shared<T>();
    const SharedTile<T, W> tile{shared_address(shared)};
    const int row = team.rank();
    for (int column = 0; column < W; ++column) shared[tile.at(row, column) / sizeof(T)] = T(values[row][column]);
    team.sync();
    return tile;
  }
};

}  // namespace

TEST_CASE("tensor core: lanes' shares are those of the instruction's tables", "[cuda]") {
  std::multiset<int> left, right, sums;
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 8; ++e) {
      const IsaPlace b = isa_b(lane, e % 4);
      CHECK(same(lane_map::right(lane, e), {b.row, b.column + 8 * (e / 4)}));
      left.insert(16 * isa_a(lane, e).row + isa_a(lane, e).column);
      right.insert(16 * lane_map::right(lane, e).row + lane_map::right(lane, e).column);
    }
    for (int e = 0; e < 4; ++e) {
      CHECK(same(lane_map::sums(lane, e), isa_c(lane, e)));
      sums.insert(8 * lane_map::sums(lane, e).row + lane_map::sums(lane, e).column);
    }
  }
  std::multiset<int> once;
  for (int i = 0; i < 128; ++i) once.insert(i);
  CHECK(sums == once);
  for (int i = 128; i < 256; ++i) once.insert(i);
  CHECK(left == once);
  CHECK(right == once);
}

TEST_CASE("tensor core: ldmatrix as it is defined", "[cuda]") {
  // Four 8 x 8 matrices with scattered rows: lane L names row L % 8 of matrix L / 8.
  std::uint16_t memory[32][8];
  for (int row = 0; row < 32; ++row) {
    for (int i = 0; i < 8; ++i) memory[row][i] = static_cast<std::uint16_t>(1000 * row + i);
  }
  const auto place = [](int lane) { return (lane * 13 + 5) % 32; };
  std::uint32_t plain[32][4], turned[32][4];
  as_team<32>(sizeof memory, [&](Team<32>& team) {
    const auto shared = team.template shared<std::uint16_t>();
    for (int i = 0; i < 8; ++i) shared[8 * team.rank() + i] = memory[team.rank()][i];
    team.sync();
    const SharedAddress row = shared_address(shared + 8 * place(team.rank()));
    load_matrices<false>(plain[team.rank()], row);
    load_matrices<true>(turned[team.rank()], row);
  });
  for (int thread = 0; thread < 32; ++thread) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      for (int i = 0; i < 2; ++i) {
        const int row = thread / 4, column = 2 * (thread % 4) + i;
        CHECK((plain[thread][matrix] >> (16 * i) & 0xFFFF) == memory[place(8 * matrix + row)][column]);
        CHECK((turned[thread][matrix] >> (16 * i) & 0xFFFF) == memory[place(8 * matrix + column)][row]);
      }
    }
  }
}

TEMPLATE_TEST_CASE("tensor core: blocks of tiles become shares, and their product is the product", "[cuda]", bf16, f16,
                   float) {
  using T = TestType;
  const Filled<T, 48> x;
  Left<T> a[32];
  Right<T> b[32];
  Right<T, Order::paired> c[32];
  as_team<32>(x.bytes, [&](Team<32>& team) {
    const auto tile = x.put(team);
    const Warp warp(team);
    a[warp.lane] = load_left(warp, tile, 16, 32);
    b[warp.lane] = load_right(warp, tile, 8, 16);
    c[warp.lane] = load_right_transposed(warp, tile, 16, 24);
  });
  // The left operand of c: in TF32 it has the layout of a product's results.
  Left<T, Order::paired> results[32];
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 8; ++e) {
      IsaPlace of_a = isa_a(lane, e), of_b = isa_b(lane, e % 4);
      CHECK(element<T>(c[lane].word, e) == x.values[16 + of_b.row][24 + of_b.column + 8 * (e / 4)]);
      if (sizeof(T) == 4) {  // two blocks of the instruction along the sum
        of_a = isa_tf32_a(lane, e % 4 / 2 + 2 * (e % 2)), of_a.column += 8 * (e / 4);
        of_b = isa_tf32_b(lane, e % 2), of_b.row += 8 * (e / 2 % 2);
      }
      const int column = of_b.column + 8 * (e / 4);
      CHECK(element<T>(a[lane].word, e) == x.values[16 + of_a.row][32 + of_a.column]);
      CHECK(element<T>(b[lane].word, e) == x.values[8 + column][16 + of_b.row]);
    }
    for (std::uint32_t& word : results[lane].word) word = 0;
    for (int e = 0; e < 8; ++e) {
      const IsaPlace at = isa_a(lane, e);
      const float value = x.values[16 + at.row][32 + at.column];
      if constexpr (sizeof(T) == 4) {
        results[lane].word[e] = bit_cast<std::uint32_t>(value);
      } else {
        results[lane].word[e / 2] |= static_cast<std::uint32_t>(T(value).bits) << (16 * (e % 2));
      }
    }
  }
  Sums sums[32][4];
  as_team<32>(0, [&](Team<32>& team) {
    auto& own = sums[team.rank()];
    clear(own);
    for (Sums& part : own) part.value[1] = 0.5f;  // products are added to it
    multiply<T>(own[0], own[1], a[team.rank()], b[team.rank()]);
    multiply<T>(own[2], own[3], results[team.rank()], c[team.rank()]);
  });
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 4; ++e) {
      const IsaPlace at = isa_c(lane, e);
      for (int n = 0; n < 2; ++n) {
        float plain = e == 1 ? 0.5f : 0.0f, turned = plain;
        for (int k = 0; k < 16; ++k) {
          plain += x.values[16 + at.row][32 + k] * x.values[8 + 8 * n + at.column][16 + k];
          turned += x.values[16 + at.row][32 + k] * x.values[16 + k][24 + 8 * n + at.column];
        }
        CHECK(sums[lane][n].value[e] == plain);
        CHECK(sums[lane][2 + n].value[e] == turned);
      }
    }
  }
  // Results next to each other are the left operand of the next product.
  for (auto& own : sums) {
    for (Sums& part : own) {
      for (float& value : part.value) value = value / 7 + 0.001f;
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto next = rounded<T>(sums[lane][0], sums[lane][1]);
    for (int e = 0; e < 8; ++e) {
      const IsaPlace at = isa_a(lane, e);
      for (int other = 0; other < 32; ++other) {
        for (int i = 0; i < 4; ++i) {
          if (same(isa_c(other, i), {at.row, at.column % 8})) {
            CHECK(element<T>(next.word, e) == operand<T>(sums[other][at.column / 8].value[i]));
          }
        }
      }
    }
  }
}

TEST_CASE("tensor core: the four lanes of a row combine their values", "[cuda]") {
  float value[32];
  for (int lane = 0; lane < 32; ++lane) value[lane] = static_cast<float>(lane * lane);
  as_team<32>(0, [&](Team<32>& team) {
    value[team.rank()] = combine_rows(value[team.rank()], [](float a, float b) { return a + b; });
  });
  for (int lane = 0; lane < 32; ++lane) {
    float sum = 0;
    for (int other = 0; other < 32; ++other) {
      if (isa_c(other, 0).row == isa_c(lane, 0).row) sum += static_cast<float>(other * other);
    }
    CHECK(value[lane] == sum);
  }
}

namespace {

// Whether eight rows of one ldmatrix, or eight chunks of neighbouring threads, cover all 32 banks once.
bool in_all_banks(const std::vector<std::ptrdiff_t>& chunks) {
  std::set<std::ptrdiff_t> banks;
  for (const std::ptrdiff_t at : chunks) {
    for (int word = 0; word < 4; ++word) banks.insert((at / 4 + word) % 32);
  }
  return chunks.size() == 8 && banks.size() == 32;
}

template <class T, int W>
void check_tile() {
  INFO("width " << W << " of " << sizeof(T) << " bytes");
  constexpr int in_chunk = chunk_elements<T>, chunks = SharedTile<T, W>::chunks;
  constexpr std::ptrdiff_t bytes = 64 * SharedTile<T, W>::row_bytes;
  const SharedTile<T, W> tile{0};
  const auto offset = [&](int row, int column) { return static_cast<std::ptrdiff_t>(tile.at(row, column)); };
  std::set<std::ptrdiff_t> places;
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column <= W; column += in_chunk) {  // with the chunk after the row
      CHECK(offset(row, column) % 16 == 0);
      places.insert(offset(row, column));
    }
  }
  CHECK(places.size() == 64 * (chunks + 1));
  CHECK(*places.rbegin() + 16 == bytes);
  for (int column = 0; column + 16 <= W; column += 16) {
    std::vector<std::function<Place(int)>> sources{lane_map::left_source, lane_map::right_source,
                                                   lane_map::transposed_source};
    if (sizeof(T) == 4) {
      sources.clear();
      for (const int half : {0, 1}) {
        sources.push_back([half](int lane) { return lane_map::tf32_left_source(lane, half); });
        sources.push_back([half](int lane) { return lane_map::tf32_right_source(lane, half); });
      }
      for (int e = 0; e < 8; ++e) {  // ldmatrix cannot transpose it: a word per lane
        std::set<std::ptrdiff_t> banks;
        for (int lane = 0; lane < 32; ++lane) {
          const Place at = lane_map::right(lane, e);
          banks.insert(offset(16 + at.row, column + at.column) / 4 % 32);
        }
        CHECK(banks.size() == 32);
      }
    }
    for (const auto& source : sources) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        std::vector<std::ptrdiff_t> chunks;
        for (int lane = 8 * matrix; lane < 8 * matrix + 8; ++lane) {
          chunks.push_back(offset(16 + source(lane).row, column + source(lane).column));
        }
        CHECK(in_all_banks(chunks));
      }
    }
  }
  // Loads bring every chunk once.
  using Map = ChunkMap<128, chunks>;
  std::multiset<int> brought;
  for (int thread = 0; thread < 128; ++thread) {
    const Map map(thread);
    for (int row = map.first_row; map.is_busy && row < 64; row += Map::rows_at_once) {
      brought.insert(row * chunks + map.chunk);
    }
  }
  CHECK(brought.size() == 64 * chunks);
  CHECK(std::set<int>(brought.begin(), brought.end()).size() == brought.size());
  CHECK(Map::rows_at_once * chunks > 64);  // more than half of the threads load something
}

}  // namespace

TEST_CASE("tensor core: rows of a tile lie apart, and in different banks", "[cuda]") {
  check_tile<f16, 32>();
  check_tile<f16, 48>();
  check_tile<f16, 64>();
  check_tile<f16, 80>();
  check_tile<f16, 96>();
  check_tile<f16, 128>();
  check_tile<f16, 256>();
  check_tile<float, 32>();
  check_tile<float, 64>();
  check_tile<float, 96>();
  check_tile<float, 128>();
}

TEST_CASE("tensor core: loads are there when they have been waited for", "[cuda]") {
  alignas(16) std::uint16_t from[16];
  for (int i = 0; i < 16; ++i) from[i] = static_cast<std::uint16_t>(i + 1);
  as_team<32>(32, [&](Team<32>& team) {
    if (team.rank() != 7) return;
    const auto to = team.template shared<std::uint16_t>();
    AsyncLoads loads;
    loads.load<16>(shared_address(to), from, true);
    loads.load<16>(shared_address(to + 8), from, false);
    from[0] = 77;
    loads.wait();
    for (int i = 0; i < 16; ++i) CHECK(to[i] == (i < 8 ? from[i] : 0));
    loads.load<4>(shared_address(to), from + 2, true);
    loads.wait();
    CHECK(to[0] == 3);
    CHECK(to[1] == 4);
    CHECK(to[2] == from[2]);
  });
}

TEST_CASE("tensor core: the random words of a block are those of its elements", "[cuda]") {
  for (const std::int64_t keys : {64, 70, 71, 132}) {
    kernels::AttentionProblem problem;
    problem.heads = 3, problem.queries = 50, problem.keys = keys, problem.has_dropout = true;
    problem.site = {11, 3, 5, 0x5eed5eedu};
    const Problem p(problem);
    std::uint32_t plain[32][4], turned[32][4];
    const std::int64_t b = 2, h = 1, t0 = 16, s0 = 24;
    as_team<32>(0, [&](Team<32>& team) {
      const Warp warp(team);
      draw_words<false>(warp, p, site_of(p), b, h, t0, s0, plain[warp.lane]);
      draw_words<true>(warp, p, site_of(p), b, h, t0, s0, turned[warp.lane]);
    });
    const auto word = [&](std::int64_t t, std::int64_t s) {
      const std::int64_t i = (h * 50 + t) * keys + s;
      return kernels::random_block(problem.site, static_cast<std::uint32_t>(i / 4), 7).word[i % 4];
    };
    for (int lane = 0; lane < 32; ++lane) {
      for (int e = 0; e < 4; ++e) {
        INFO(keys << " keys, lane " << lane << " element " << e);
        const IsaPlace at = isa_c(lane, e);
        CHECK(plain[lane][e] == word(t0 + at.row, s0 + at.column));
        CHECK(turned[lane][e] == word(t0 + at.column, s0 + at.row));
      }
    }
  }
}

// ---- TF32 products by the tables of the PTX ISA, and the rounding of their operands, on the host.

using namespace thimble::cuda_kernels;
using namespace thimble::testing;

TEST_CASE("tensor core: words of TF32 are those of its instruction's tables", "[cuda]") {
  // One nonzero element of A times one of B, at any place, goes to one element of D.
  for (int k = 0; k < 8; ++k) {
    std::uint32_t a[32][4] = {}, b[32][2] = {};
    const int row = (5 * k + 3) % 16, column = (3 * k + 1) % 8;
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        if (same(isa_tf32_a(lane, i), {row, k})) a[lane][i] = bit_cast<std::uint32_t>(3.0f);
      }
      for (int i = 0; i < 2; ++i) {
        if (same(isa_tf32_b(lane, i), {k, column})) b[lane][i] = bit_cast<std::uint32_t>(-7.0f);
      }
    }
    float d[32][4] = {};
    as_team<32>(0, [&](Team<32>& team) { multiply_tf32(d[team.rank()], a[team.rank()], b[team.rank()]); });
    for (int lane = 0; lane < 32; ++lane) {
      for (int e = 0; e < 4; ++e) CHECK(d[lane][e] == (same(isa_c(lane, e), {row, column}) ? -21 : 0));
    }
  }
}

TEST_CASE("tensor core: to TF32 a value is rounded to nearest, halves away from zero", "[cuda]") {
  const auto rounded_value = [](float value) { return bit_cast<float>(tf32_word(value)); };
  CHECK(rounded_value(1 + 0x1p-11f) == 1 + 0x1p-10f);
  CHECK(rounded_value(-1 - 0x1p-11f) == -1 - 0x1p-10f);
  CHECK(rounded_value(1 + 0x1p-11f - 0x1p-23f) == 1);
  CHECK(rounded_value(0x1.fffp0f) == 2);
  CHECK(std::isinf(rounded_value(std::numeric_limits<float>::max())));
  CHECK(rounded_value(-INFINITY) == -INFINITY);
  CHECK(std::isnan(rounded_value(std::nanf(""))));
  std::uint32_t bits = 12345;
  for (int i = 0; i < 20000; ++i) {
    bits = bits * 1664525u + 1013904223u;
    const float value = bit_cast<float>(bits);
    if (!std::isfinite(value) || std::fabs(value) > 0x1p127f) continue;
    REQUIRE(rounded_value(value) == to_tf32(value));
    REQUIRE((tf32_word(value) & 0x1fffu) == 0);
    if (std::fabs(value) < 0x1p-126f) continue;
    REQUIRE(std::abs(static_cast<double>(rounded_value(value)) - value) <=
            0x1p-11 * std::abs(static_cast<double>(value)));
  }
}

TEST_CASE("tensor core: an operand that was not rounded to TF32 is found on the host", "[cuda]") {
  const std::uint32_t one = bit_cast<std::uint32_t>(1.0f), fine = bit_cast<std::uint32_t>(1 + 0x1p-11f);
  for (const bool is_left : {true, false}) {
    std::uint32_t a[32][4], b[32][2];
    for (int lane = 0; lane < 32; ++lane) {
      for (std::uint32_t& word : a[lane]) word = one;
      for (std::uint32_t& word : b[lane]) word = one;
    }
    (is_left ? a[9][2] : b[9][1]) = fine;
    float d[32][4] = {};
    as_team<32>(0, [&](Team<32>& team) { multiply_tf32(d[team.rank()], a[team.rank()], b[team.rank()]); });
    int found = 0;
    for (const auto& values : d) {
      for (const float value : values) found += std::isnan(value) ? 1 : 0;
    }
    CHECK(found == (is_left ? 8 : 16));  // a row of D, a column of D
  }
}
