// FP8 operands on CUDA devices: scales, codes, transposed codes, and decoded values. A magnitude is a maximum of
// integers and a code depends only on its number and the scale, so all bits equal the CPU's for any division of work:
//
//   scale   teams take parts of the tensor, then one team their maximum and the record; the host reads nothing
//   cast    eight numbers per thread
//   turn    tiles of 64 x 64 through shared memory, written along the rows both ways
//   scales  places both operands' block scales as products read them

#include <algorithm>
#include <cmath>

#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/kernels/fp8.h>
#include <thimble/core/numbers/quant_code.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/kernel.h>
#include <thimble/cuda/kernel/step_argument.h>
#include <thimble/cuda/kernel/words.h>
#include <thimble/cuda/matmul/product.h>
#include <thimble/cuda/runtime/library.h>

namespace thimble::cuda_kernels {

// ---- Products of FP8 codes: by cuBLASLt on devices with FP8 units if it supports the product, else by tiles that
// decode their input, in the order of the CPU's chains. Also the operations that cuBLASLt lacks: activation functions,
// storing their inputs, and the bias of an f32 result.

namespace fp8_product_detail {

using kernels::Activation;
using kernels::Fp8GemmArgs;

// Element (row, p) of an operand whose rows run along the sum; a right operand is indexed (p, row).
template <class F, bool is_right>
struct Codes {
  const F* codes;
  std::int64_t row_stride;
  template <class T>
  THIMBLE_DEVICE T at(std::int64_t, std::int64_t i, std::int64_t j) const {
    return convert_value<T>(is_right ? codes[j * row_stride + i] : codes[i * row_stride + j]);
  }
};

// Codes with block scales: their scaled values, exact in f32.
template <class F, bool is_right>
struct BlockCodes {
  const F* codes;
  std::int64_t row_stride;
  const float* scales;
  std::int64_t scale_stride;
  template <class T>
  THIMBLE_DEVICE T at(std::int64_t, std::int64_t i, std::int64_t j) const {
    constexpr std::int64_t side = kernels::fp8_block_side;
    return is_right ? convert_value<T>(codes[j * row_stride + i]) * scales[j / side * scale_stride + i / side]
                    : convert_value<T>(codes[i * row_stride + j]) * scales[j / side * scale_stride + i];
  }
};

// Stores act(v), and v if requested.
struct Finish {
  void* c;
  std::int64_t row_stride;
  DType dtype;
  const void* bias;
  Activation activation;
  void* pre_activation;
  THIMBLE_DEVICE void store(std::int64_t i, std::int64_t j, float value) const {
    const std::int64_t at = i * row_stride + j;
    if (bias) value += load_any<float>(bias, dtype, j);
    if (pre_activation) store_any<float>(pre_activation, dtype, at, value);
    store_any<float>(c, dtype, at, activate(activation, value, dtype));
  }
};

struct Result {
  Finish finish;
  const float* a_scale;  // null with block scales, which are already applied
  const float* b_scale;
  THIMBLE_DEVICE void store(std::int64_t, std::int64_t i, std::int64_t j, float sum) const {
    if (a_scale) sum *= static_cast<float>(static_cast<double>(*a_scale) * static_cast<double>(*b_scale));
    finish.store(i, j, sum);
  }
};

// Finishes the library's stored result.
struct FinishStored {
  Finish finish;
  const void* stored;
  std::int64_t columns;
  THIMBLE_DEVICE void operator()(std::int64_t e) const {
    const std::int64_t i = e / columns, j = e % columns;
    finish.store(i, j, load_any<float>(stored, finish.dtype, i * finish.row_stride + j));
  }
};

bool by_library(const Fp8GemmArgs& args, const Finish& all, void* workspace) {
  if (!kernels::is_library_fp8_gemm(args)) return false;
  Fp8GemmArgs plain = args;
  plain.activation = Activation::none;
  plain.pre_activation = nullptr;
  if (args.pre_activation) plain.c = args.pre_activation;
  if (args.c_dtype == DType::f32) plain.bias = nullptr;
  const std::size_t bytes = kernels::cuda_fp8_gemm_workspace_bytes(args);
  if (!gpu::booked(&kernels::LibraryUse::cublaslt, args, gpu::library_fp8_gemm(plain, workspace, bytes))) return false;
  Finish rest = all;
  if (plain.bias) rest.bias = nullptr;
  if (!rest.bias && args.activation != Activation::none && args.c_row_stride == args.n &&
      activate_words(args.activation, plain.c, args.c, args.c_dtype, args.m * args.n)) {
    return true;
  }
  if (rest.bias || args.pre_activation || args.activation != Activation::none) {
    for_each_item(args.m * args.n, FinishStored{rest, plain.c, args.n});
  }
  return true;
}

template <class A, class B>
void by_tiles(const Fp8GemmArgs& args, const Finish& finish) {
  const auto* const a = static_cast<const A*>(static_cast<const void*>(args.a));
  const auto* const b = static_cast<const B*>(static_cast<const void*>(args.b));
  if (args.in_blocks) {
    return multiply<float>(1, args.m, args.n, args.k, BlockCodes<A, false>{a, args.a_row_stride, args.a_scale, args.m},
                           BlockCodes<B, true>{b, args.b_row_stride, args.b_scale, kernels::fp8_square_stride(args.k)},
                           Result{finish, nullptr, nullptr});
  }
  multiply<float>(1, args.m, args.n, args.k, Codes<A, false>{a, args.a_row_stride},
                  Codes<B, true>{b, args.b_row_stride}, Result{finish, args.a_scale, args.b_scale});
}

}  // namespace fp8_product_detail

void fp8_gemm(const kernels::Fp8GemmArgs& args, void* workspace) {
  using namespace fp8_product_detail;
  const Finish finish{args.c, args.c_row_stride, args.c_dtype, args.bias, args.activation, args.pre_activation};
  if (by_library(args, finish, workspace)) return;
  const bool a_is_e4m3 = args.a_dtype == DType::f8e4m3, b_is_e4m3 = args.b_dtype == DType::f8e4m3;
  if (a_is_e4m3) {
    b_is_e4m3 ? by_tiles<f8e4m3, f8e4m3>(args, finish) : by_tiles<f8e4m3, f8e5m2>(args, finish);
  } else {
    b_is_e4m3 ? by_tiles<f8e5m2, f8e4m3>(args, finish) : by_tiles<f8e5m2, f8e5m2>(args, finish);
  }
}

}  // namespace thimble::cuda_kernels

namespace thimble::kernels {

namespace fp8_cuda_detail {

using namespace cuda_kernels;

constexpr std::int64_t most_parts = 1024;
constexpr std::int64_t part_values = 1 << 14;                     // minimum per part of a split tensor
THIMBLE_DEVICE_GLOBAL std::uint32_t part_magnitudes[most_parts];  // one stream orders writes and reads

// f.template operator()<S>() for the dtypes that become FP8.
template <class F>
void with_source(DType dtype, F&& f) {
  if (dtype == DType::f32) return f.template operator()<float>();
  dtype == DType::f16 ? f.template operator()<f16>() : f.template operator()<bf16>();
}

template <class F>
void with_code(DType dtype, F&& f) {
  if (dtype == DType::f8e4m3) return f.template operator()<quant::Float8Code<f8e4m3>>();
  f.template operator()<quant::Float8Code<f8e5m2>>();
}

// Finds the largest magnitude of a part; skipped if the scale is known and nothing is recorded.
template <class S>
struct PartMagnitude {
  static constexpr int threads = 256;
  const S* values;
  std::int64_t count, part;  // part: a multiple of a word's elements
  const float* known;
  bool records, aligned;

  THIMBLE_DEVICE static std::uint32_t magnitude(S value) {
    return bit_cast<std::uint32_t>(widened(value)) & 0x7FFFFFFFu;
  }
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t number) const {
    if (known && *known != 0 && !records) return;
    constexpr int wide = word_elements<S>;
    const std::int64_t first = number * part, end = first + part < count ? first + part : count;
    std::uint32_t own = 0;
    std::int64_t begin = first;
    if (aligned) {
      begin = first + (end - first) / wide * wide;
      for (std::int64_t i = first + team.rank() * wide; i < begin; i += Team::size * wide) {
        const auto pack = words_at<wide>(values, i);
        for (int v = 0; v < wide; ++v) own = larger_of(own, magnitude(pack.values[v]));
      }
    }
    for (std::int64_t i = begin + team.rank(); i < end; i += Team::size) own = larger_of(own, magnitude(values[i]));
    const std::uint32_t all = team.max(own);
    if (team.rank() == 0) part_magnitudes[number] = all;
  }
};

// Computes the scale and records the amax, by the rule of fp8_cpu.cpp.
struct MakeScale {
  static constexpr int threads = 256;
  std::int64_t parts;
  DType code_dtype;
  int margin;
  const float* known;
  float* scale;
  float* history;
  std::int64_t length;
  float* next_scale;
  std::int64_t* steps;
  StepArgument<std::int64_t> step;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t) const {
    const float given = known ? *known : 0.0f;
    if (given != 0 && team.rank() == 0) *scale = given;
    if (given != 0 && !history) return;
    std::uint32_t own = 0;
    for (std::int64_t i = team.rank(); i < parts; i += Team::size) own = larger_of(own, part_magnitudes[i]);
    const float amax = bit_cast<float>(team.max(own));
    if (given == 0 && team.rank() == 0) *scale = fp8_scale_from(amax, code_dtype, margin);
    if (!history || !fp8_is_finite(amax)) return;
    if (team.rank() == 0) {
      const Fp8Place place = fp8_place(steps, step.get(), length);
      float& kept = history[place.index];
      kept = place.is_new ? amax : larger_of(kept, amax);
    }
    team.sync();
    float most = 0;
    for (std::int64_t i = team.rank(); i < length; i += Team::size) most = larger_of(most, history[i]);
    most = team.max(most);
    if (team.rank() == 0) *next_scale = most > 0 ? fp8_scale_from(most, code_dtype, margin) : 0.0f;
  }
};

void scale(const Fp8ScaleArgs& a) {
  const std::lock_guard together(launches_together);
  const std::int64_t least = (a.count + most_parts - 1) / most_parts;
  const std::int64_t part = (std::max(part_values, least) + 7) / 8 * 8, parts = (a.count + part - 1) / part;
  with_source(a.dtype, [&]<class S>() {
    for_each_team(parts, PartMagnitude<S>{static_cast<const S*>(a.values), a.count, part, a.known, a.history != nullptr,
                                          is_aligned(a.values, 16)});
  });
  const auto step =
      a.history ? step_argument(a, [](const Fp8ScaleArgs& then) { return then.step; }) : StepArgument<std::int64_t>{};
  for_each_team(
      1, MakeScale{parts, a.code_dtype, a.margin, a.known, a.scale, a.history, a.length, a.next_scale, a.steps, step});
}

// fp8_code of eight values.
template <class Code, class S>
THIMBLE_DEVICE inline Words<std::uint8_t, 8> make_codes(const Words<S, 8>& from, float inverse) {
  float values[8], scaled[8], largest = 0;
  THIMBLE_UNROLL
  for (int v = 0; v < 8; ++v) {
    values[v] = widened(from.values[v]);
    scaled[v] = values[v] * inverse;
    largest = std::fmax(largest, std::fabs(values[v]));
  }
  auto codes = encode_eight(Code{}, scaled);
  if (!is_infinite(largest)) return codes;
  THIMBLE_UNROLL
  for (int v = 0; v < 8; ++v) {
    const std::uint32_t sign = bit_cast<std::uint32_t>(values[v]) >> 31 << 7;
    const std::uint32_t code = inverse > 0 ? fp8_infinity_code<Code>() | sign : 0x7Fu;
    if (is_infinite(values[v])) codes.values[v] = static_cast<std::uint8_t>(code);
  }
  return codes;
}

// fp8_value_bits of eight codes; NaN may have other bits.
template <class Code>
THIMBLE_DEVICE inline Words<std::uint16_t, 8> values_of_codes(const Words<std::uint8_t, 8>& codes, float factor) {
  float values[8];
  decode_eight(Code{}, codes, values);
  Words<std::uint16_t, 8> bits;
  THIMBLE_UNROLL
  for (int v = 0; v < 8; ++v) {
    bits.values[v] = static_cast<std::uint16_t>(bit_cast<std::uint32_t>(values[v] * factor) >> 16);
  }
  return bits;
}

template <class Code, class S>
struct Cast {
  static constexpr int wide = 8;
  const S* values;
  std::int64_t count;
  const float* scale;
  std::uint8_t* codes;     // may be null
  std::uint16_t* decoded;  // may be null, or alias the values
  bool aligned;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const float inverse = 1.0f / *scale;
    const std::int64_t begin = i * wide;
    if (aligned && begin + wide <= count) {
      const Words<std::uint8_t, wide> made = make_codes<Code>(words_at<wide>(values, begin), inverse);
      if (codes) put_words(codes, begin, made);
      if (decoded) put_words(decoded, begin, values_of_codes<Code>(made, 1));
      return;
    }
    for (std::int64_t at = begin; at < count && at < begin + wide; ++at) {
      const std::uint8_t code = fp8_code<Code>(convert_value<float>(values[at]), inverse);
      if (codes) codes[at] = code;
      if (decoded) decoded[at] = fp8_value_bits<Code>(code);
    }
  }
};

void cast(const Fp8CastArgs& a) {
  const bool aligned = is_aligned(a.values, 16) && is_aligned(a.codes, 8) && is_aligned(a.decoded, 16);
  with_code(a.code_dtype, [&]<class Code>() {
    with_source(a.dtype, [&]<class S>() {
      for_each_item((a.count + 7) / 8, Cast<Code, S>{static_cast<const S*>(a.values), a.count, a.scale, a.codes,
                                                     reinterpret_cast<std::uint16_t*>(a.decoded), aligned});
    });
  });
}

// The source of transposed codes, eight at a time.
template <class Code, class S>
struct MadeCodes {
  using Value = S;
  const S* values;
  const float* scale;
  THIMBLE_DEVICE float prepare() const { return 1.0f / *scale; }
  THIMBLE_DEVICE static Words<std::uint8_t, 8> code(const Words<S, 8>& from, float inverse) {
    return make_codes<Code>(from, inverse);
  }
};
struct GivenCodes {
  using Value = std::uint8_t;
  const std::uint8_t* values;
  THIMBLE_DEVICE float prepare() const { return 0.0f; }
  THIMBLE_DEVICE static Words<std::uint8_t, 8> code(const Words<std::uint8_t, 8>& given, float) { return given; }
};

// A thread takes four rows of eight columns and stores each column as a word of shared memory.
template <class Source>
struct Turn {
  static constexpr int threads = 128, tile = 64, wide = 8, quads = tile / 4, across = tile / wide;
  static constexpr int pitch = quads + 1;  // words of a column; padded so that a warp writes to 32 banks
  static constexpr std::size_t shared_bytes = tile * pitch * sizeof(std::uint32_t);
  Source source;
  std::int64_t rows, columns, row_stride;
  std::uint8_t* codes;  // may be null
  std::uint8_t* turned;
  std::int64_t turned_stride;
  bool aligned;  // a row's eights are aligned for reading and writing

  std::int64_t teams() const { return ((columns + tile - 1) / tile) * ((turned_stride + tile - 1) / tile); }

  using Code = Words<std::uint8_t, wide>;
  // Eight columns from c on of rows r .. r + 3; missing elements are 0.
  template <bool is_whole>
  THIMBLE_DEVICE void make(std::int64_t r, std::int64_t c, float prepared, Code (&made)[4]) const {
    Words<typename Source::Value, wide> from[4] = {};
    THIMBLE_UNROLL
    for (int q = 0; q < 4; ++q) {
      if (r + q >= rows) continue;
      const auto* const row = source.values + (r + q) * row_stride + c;
      if constexpr (is_whole) {
        from[q] = words_at<wide>(row, 0);
      } else {
        THIMBLE_UNROLL
        for (int v = 0; v < wide; ++v) {
          if (c + v < columns) from[q].values[v] = row[v];
        }
      }
    }
    THIMBLE_UNROLL
    for (int q = 0; q < 4; ++q) {
      made[q] = source.code(from[q], prepared);
      if (!codes || r + q >= rows) continue;
      std::uint8_t* const row = codes + (r + q) * columns + c;
      if constexpr (is_whole) {
        put_words(row, 0, made[q]);
      } else {
        THIMBLE_UNROLL
        for (int v = 0; v < wide; ++v) {
          if (c + v < columns) row[v] = made[q].values[v];
        }
      }
    }
  }

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const std::int64_t tiles = (columns + tile - 1) / tile, r0 = job / tiles * tile, c0 = job % tiles * tile;
    const auto held = team.template shared<std::uint32_t>();  // (tile columns, pitch)
    const float prepared = source.prepare();
    for (int e = team.rank(); e < quads * across; e += Team::size) {
      // A warp has four eights of eight quads.
      const int eight = e % 4 + e / 32 % 2 * 4, quad = e / 4 % 8 + e / 64 * 8;
      const std::int64_t r = r0 + quad * 4, c = c0 + eight * wide;
      Code made[4];
      const bool is_whole = aligned && c + wide <= columns;
      is_whole ? make<true>(r, c, prepared, made) : make<false>(r, c, prepared, made);
      THIMBLE_UNROLL
      for (int v = 0; v < wide; ++v) {
        const Words<std::uint8_t, 4> column{made[0].values[v], made[1].values[v], made[2].values[v], made[3].values[v]};
        held[(eight * wide + v) * pitch + quad] = bit_cast<std::uint32_t>(column);
      }
    }
    team.sync();
    for (int e = team.rank(); e < tile * quads; e += Team::size) {
      const std::int64_t c = c0 + e / quads, r = r0 + e % quads * 4;
      if (c >= columns || r >= turned_stride) continue;
      *reinterpret_cast<std::uint32_t*>(turned + c * turned_stride + r) = held[e / quads * pitch + e % quads];
    }
  }
};

template <class Source>
void turn_from(const Fp8TurnArgs& a, const Source& source) {
  const bool aligned = is_aligned(a.values, alignof(Words<typename Source::Value, 8>)) && a.row_stride % 8 == 0 &&
                       (!a.codes || (is_aligned(a.codes, 8) && a.columns % 8 == 0));
  const Turn<Source> body{source, a.rows, a.columns, a.row_stride, a.codes, a.turned, a.turned_stride, aligned};
  for_each_team(body.teams(), body, body.shared_bytes);
}

void turn(const Fp8TurnArgs& a) {
  if (a.dtype == a.code_dtype) return turn_from(a, GivenCodes{static_cast<const std::uint8_t*>(a.values)});
  with_code(a.code_dtype, [&]<class Code>() {
    with_source(a.dtype, [&]<class S>() {
      turn_from(a, MadeCodes<Code, S>{static_cast<const S*>(a.values), a.scale});
    });
  });
}

// Eight neighbours of a row of the window.
template <class Code>
struct Decode {
  static constexpr int wide = 8;
  Fp8DecodeArgs a;
  bool aligned;
  THIMBLE_DEVICE float factor(std::int64_t row, std::int64_t column) const {
    if (!a.scales) return 1.0f;
    const std::int64_t down = quotient(row, a.block_rows), right = quotient(column, a.block_columns);
    return quant::load_scale(a.scales, DType::u8, down * a.blocks_across + right);
  }
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t across = (a.columns + wide - 1) / wide, r = quotient(i, across), c = (i - r * across) * wide;
    const std::uint8_t* const codes = a.codes + (a.row + r) * a.row_stride + a.column + c;
    auto* const to = reinterpret_cast<std::uint16_t*>(a.decoded) + r * a.columns + c;
    if (aligned && c + wide <= a.columns) {  // one block holds all eight
      const float f = factor(a.row + r, a.column + c);
      return put_words(to, 0, values_of_codes<Code>(words_at<wide>(codes, 0), f));
    }
    for (int v = 0; v < wide && c + v < a.columns; ++v) {
      to[v] = fp8_value_bits<Code>(codes[v], factor(a.row + r, a.column + c + v));
    }
  }
};

void decode(const Fp8DecodeArgs& a) {
  const bool aligned = is_aligned(a.codes, 8) && is_aligned(a.decoded, 16) && a.row_stride % 8 == 0 &&
                       a.column % 8 == 0 && a.columns % 8 == 0 && (!a.scales || a.block_columns % 8 == 0);
  with_code(a.code_dtype, [&]<class Code>() {
    for_each_item(a.rows * ((a.columns + 7) / 8), Decode<Code>{a, aligned});
  });
}

// Reads a byte and writes four per block, so its access order matters little.
struct PlaceScales {
  PlaceFp8Scales scales;
  THIMBLE_DEVICE void operator()(std::int64_t i) const { scales(i); }
};

void place_scales(const Fp8ScalesArgs& a) {
  const PlaceFp8Scales scales{a};
  for_each_item(scales.elements(), PlaceScales{scales});
}

constexpr Fp8Kernels table{
    scale, cast, decode, turn, place_scales, cuda_fp8_gemm_workspace_bytes, fp8_gemm, gpu::library_has_fp8_blocks};

}  // namespace fp8_cuda_detail

const Fp8Kernels* const fp8_cuda = &fp8_cuda_detail::table;

}  // namespace thimble::kernels
