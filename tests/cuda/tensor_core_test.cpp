// What the products of warps on tensor cores are made of, lane by lane on the host: the shares of a warp's lanes
// against the tables of the PTX ISA, places in shared memory, loads, and the random words of a block.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <vector>

#include <thimble/cuda/attention/attention_mma.h>

#include "support/catch.h"
#include "tensor_core_isa.h"

using namespace thimble;
using namespace thimble::cuda_kernels;
using namespace thimble::cuda_kernels::attention_mma_detail;
using namespace thimble::testing;

namespace {

// Element e of a share, as lane_map counts them.
template <class T, std::size_t N>
float element(const std::uint32_t (&words)[N], int e) {
  if constexpr (sizeof(T) == 4) {
    return bit_cast<float>(words[e]);
  } else {
    return static_cast<float>(T::from_bits(static_cast<std::uint16_t>(words[e / 2] >> (16 * (e % 2)))));
  }
}

// What a value becomes on its way into a product.
template <class T>
float operand(float value) {
  return sizeof(T) == 4 ? to_tf32(value) : static_cast<float>(T(value));
}

Warp any_warp() {
  static TeamState<4> state;
  return Warp(Team<128>(state, 0));
}

// A tile of 32 rows with a small whole number everywhere: exact in any type, in sums too.
template <class T, int W>
struct Filled {
  static constexpr int rows = 32;
  alignas(16) std::byte bytes[rows * SharedTile<T, W>::row_bytes];
  float values[rows][W];
  Filled() {
    std::memset(bytes, 0xFF, sizeof bytes);
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < W; ++column) {
        values[row][column] = static_cast<float>((row * 37 + column * 11) % 61 - 30);
        const T value(values[row][column]);
        std::memcpy(tile().at(row, column), &value, sizeof value);
      }
    }
  }
  SharedTile<T, W> tile() { return {shared_address(bytes)}; }
};

}  // namespace

TEST_CASE("tensor core: lanes' shares are those of the instruction's tables", "[cuda]") {
  std::multiset<int> left, right, sums;
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 8; ++e) {
      CHECK(same(lane_map::left(lane, e), isa_a(lane, e)));
      const Place b = isa_b(lane, e % 4);
      CHECK(same(lane_map::right(lane, e), {b.row, b.column + 8 * (e / 4)}));
      left.insert(16 * lane_map::left(lane, e).row + lane_map::left(lane, e).column);
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
  // Four 8 x 8 matrices, every row at a place of its own: lane L names row L % 8 of matrix L / 8.
  std::uint16_t memory[32][8];
  for (int row = 0; row < 32; ++row) {
    for (int i = 0; i < 8; ++i) memory[row][i] = static_cast<std::uint16_t>(1000 * row + i);
  }
  SharedAddress rows[32];
  const auto place = [](int lane) { return (lane * 13 + 5) % 32; };
  for (int lane = 0; lane < 32; ++lane) rows[lane] = shared_address(memory[place(lane)]);
  std::uint32_t plain[32][4], turned[32][4];
  load_matrices<false>(plain, rows);
  load_matrices<true>(turned, rows);
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
  const Warp warp = any_warp();
  Filled<T, 48> x;
  const auto tile = x.tile();
  const auto a = load_left(warp, tile, 16, 32);
  const auto b = load_right(warp, tile, 8, 16);
  const auto c = load_right_transposed(warp, tile, 16, 24);
  // The left operand of c: in TF32 it is that of a product's results.
  Left<T, Order::paired> results;
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 8; ++e) {
      Place of_a = isa_a(lane, e), of_b = isa_b(lane, e % 4);
      CHECK(element<T>(c.word[lane], e) == x.values[16 + of_b.row][24 + of_b.column + 8 * (e / 4)]);
      if (sizeof(T) == 4) {  // two of the instruction's blocks along the sum
        of_a = isa_tf32_a(lane, e % 4 / 2 + 2 * (e % 2)), of_a.column += 8 * (e / 4);
        of_b = isa_tf32_b(lane, e % 2), of_b.row += 8 * (e / 2 % 2);
      }
      const int column = of_b.column + 8 * (e / 4);
      CHECK(element<T>(a.word[lane], e) == x.values[16 + of_a.row][32 + of_a.column]);
      CHECK(element<T>(b.word[lane], e) == x.values[8 + column][16 + of_b.row]);
    }
    for (std::uint32_t& word : results.word[lane]) word = 0;
    for (int e = 0; e < 8; ++e) {
      const Place at = isa_a(lane, e);
      const float value = x.values[16 + at.row][32 + at.column];
      if constexpr (sizeof(T) == 4) {
        results.word[lane][e] = bit_cast<std::uint32_t>(value);
      } else {
        results.word[lane][e / 2] |= static_cast<std::uint32_t>(T(value).bits) << (16 * (e % 2));
      }
    }
  }
  Sums sums[4];
  clear(sums);
  for (Sums& part : sums) {
    for (auto& values : part.value) values[1] = 0.5f;  // what is there is added to
  }
  multiply<T>(sums[0], sums[1], a, b);
  multiply<T>(sums[2], sums[3], results, c);
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 4; ++e) {
      const Place at = isa_c(lane, e);
      for (int n = 0; n < 2; ++n) {
        float plain = e == 1 ? 0.5f : 0.0f, turned = plain;
        for (int k = 0; k < 16; ++k) {
          plain += x.values[16 + at.row][32 + k] * x.values[8 + 8 * n + at.column][16 + k];
          turned += x.values[16 + at.row][32 + k] * x.values[16 + k][24 + 8 * n + at.column];
        }
        CHECK(sums[n].value[lane][e] == plain);
        CHECK(sums[2 + n].value[lane][e] == turned);
      }
    }
  }
  // Results side by side as the left operand of the next product.
  for (Sums& part : sums) {
    for (auto& values : part.value) {
      for (float& value : values) value = value / 7 + 0.001f;
    }
  }
  const auto next = rounded<T>(sums[0], sums[1]);
  for (int lane = 0; lane < 32; ++lane) {
    for (int e = 0; e < 8; ++e) {
      const Place at = isa_a(lane, e);
      for (int other = 0; other < 32; ++other) {
        for (int i = 0; i < 4; ++i) {
          if (same(isa_c(other, i), {at.row, at.column % 8})) {
            CHECK(element<T>(next.word[lane], e) == operand<T>(sums[at.column / 8].value[other][i]));
          }
        }
      }
    }
  }
}

TEST_CASE("tensor core: the four lanes of a row combine their values", "[cuda]") {
  float value[32];
  for (int lane = 0; lane < 32; ++lane) value[lane] = static_cast<float>(lane * lane);
  combine_rows(value, [](float a, float b) { return a + b; });
  for (int lane = 0; lane < 32; ++lane) {
    float sum = 0;
    for (int other = 0; other < 32; ++other) {
      if (isa_c(other, 0).row == isa_c(lane, 0).row) sum += static_cast<float>(other * other);
    }
    CHECK(value[lane] == sum);
  }
}

namespace {

// Eight rows that ldmatrix reads at once, and eight chunks that neighbouring threads write, lie in all 32 banks once.
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
  static std::byte memory[64 * SharedTile<T, W>::row_bytes];
  const SharedTile<T, W> tile{shared_address(memory)};
  const auto offset = [&](int row, int column) { return tile.at(row, column) - shared_address(memory); };
  std::set<std::ptrdiff_t> places;
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column <= W; column += in_chunk) {  // with the chunk behind the row
      CHECK(offset(row, column) % 16 == 0);
      places.insert(offset(row, column));
    }
  }
  CHECK(places.size() == 64 * (chunks + 1));
  CHECK(*places.rbegin() + 16 == static_cast<std::ptrdiff_t>(sizeof memory));
  for (int column = 0; column + 16 <= W; column += 16) {
    std::vector<std::function<Place(int)>> sources{lane_map::left_source, lane_map::right_source,
                                                   lane_map::transposed_source};
    if (sizeof(T) == 4) {
      sources.clear();
      for (const int half : {0, 1}) {
        sources.push_back([half](int lane) { return lane_map::tf32_left_source(lane, half); });
        sources.push_back([half](int lane) { return lane_map::tf32_right_source(lane, half); });
      }
      for (int e = 0; e < 8; ++e) {  // what ldmatrix cannot transpose: a word for each lane
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
  // Loads: every chunk once, by the threads of a GPU and by the contexts of the host.
  const auto covers = [](auto map_of, int size, int at_once, int rows_at_once) {
    std::multiset<int> brought;
    for (int thread = 0; thread < size; ++thread) {
      const auto map = map_of(thread);
      for (int row = map.first_row; map.is_busy && row < 64; row += rows_at_once) {
        for (int chunk = map.first; chunk < chunks; chunk += at_once) brought.insert(row * chunks + chunk);
      }
    }
    return brought.size() == 64 * chunks && std::set<int>(brought.begin(), brought.end()).size() == brought.size();
  };
  using Gpu = ChunkMap<128, chunks>;
  using Host = ChunkMap<4, chunks>;
  CHECK(covers([](int thread) { return Gpu(thread); }, 128, Gpu::at_once, Gpu::rows_at_once));
  CHECK(covers([](int thread) { return Host(thread); }, 4, Host::at_once, Host::rows_at_once));
  CHECK(Gpu::at_once == chunks);
  CHECK(Gpu::rows_at_once * Gpu::at_once > 64);  // more than half of the threads have something to bring
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
  alignas(16) std::uint16_t to[16] = {}, from[16];
  for (int i = 0; i < 16; ++i) from[i] = static_cast<std::uint16_t>(i + 1);
  AsyncLoads loads;
  loads.load<16>(shared_address(to), from, true);
  loads.load<16>(shared_address(to + 8), from, false);
  for (const std::uint16_t bits : to) CHECK(bits == 0xFFFF);
  from[0] = 77;
  loads.wait();
  for (int i = 0; i < 16; ++i) CHECK(to[i] == (i < 8 ? from[i] : 0));
  loads.load<4>(shared_address(to), from + 2, true);
  CHECK(std::isnan(load_shared(shared_address(to))));
  loads.wait();
  CHECK((to[0] == 3 && to[1] == 4 && to[2] == from[2]));
}

TEST_CASE("tensor core: the random words of a block are those of its elements", "[cuda]") {
  const Warp warp = any_warp();
  for (const std::int64_t keys : {64, 70, 71, 132}) {
    kernels::AttentionProblem problem;
    problem.heads = 3, problem.queries = 50, problem.keys = keys, problem.has_dropout = true;
    problem.site = {11, 3, 5, 0x5eed5eedu};
    const Problem p(problem);
    std::uint32_t plain[32][4], turned[32][4];
    const std::int64_t b = 2, h = 1, t0 = 16, s0 = 24;
    draw_words<false>(warp, p, site_of(p), b, h, t0, s0, plain);
    draw_words<true>(warp, p, site_of(p), b, h, t0, s0, turned);
    const auto word = [&](std::int64_t t, std::int64_t s) {
      const std::int64_t i = (h * 50 + t) * keys + s;
      return kernels::random_block(problem.site, static_cast<std::uint32_t>(i / 4), 7).word[i % 4];
    };
    for (int lane = 0; lane < 32; ++lane) {
      for (int e = 0; e < 4; ++e) {
        INFO(keys << " keys, lane " << lane << " element " << e);
        const Place at = isa_c(lane, e);
        CHECK(plain[lane][e] == word(t0 + at.row, s0 + at.column));
        CHECK(turned[lane][e] == word(t0 + at.column, s0 + at.row));
      }
    }
  }
}
