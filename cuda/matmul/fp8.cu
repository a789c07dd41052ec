// FP8 operands on CUDA devices: scales, codes, codes turned, and their values. A magnitude is a maximum of integers and
// a code depends on its number and the scale alone, so all bits are those of the CPU, however the work is cut:
//
//   scale   parts of the tensor side by side, then a team for their maximum and the record; no word of it to the host
//   cast    eight numbers a thread
//   turn    tiles of 64 x 64 through shared memory, written along the rows both ways
//   scales  of blocks as products read them, both operands' at once

#include <algorithm>

#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/kernels/fp8.h>
#include <thimble/core/kernels/shared/fp8_code.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/launches_together.h>
#include <thimble/cuda/kernel/words.h>
#include <thimble/cuda/matmul/fp8_product.h>
#include <thimble/cuda/runtime/library.h>
#include <thimble/cuda/runtime/step_argument.h>

namespace thimble::kernels {
namespace fp8_cuda_detail {

using namespace cuda_kernels;

constexpr std::int64_t most_parts = 1024;
constexpr std::int64_t part_values = 1 << 14;                     // at least, where a tensor is cut in parts
THIMBLE_DEVICE_GLOBAL std::uint32_t part_magnitudes[most_parts];  // written and read in the order of one stream

/// What 16 bytes hold, read at once.
template <class S>
struct alignas(16) Pack {
  static constexpr int count = 16 / static_cast<int>(sizeof(S));
  S values[count];
};

bool is_aligned(const void* address, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

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

// The largest magnitude of a part; none is looked for where the scale is known and nothing is recorded.
template <class S>
struct PartMagnitude {
  static constexpr int threads = 256;
  const S* values;
  std::int64_t count, part;  // part: a multiple of Pack's count
  const float* known;
  bool records, aligned;

  THIMBLE_DEVICE static std::uint32_t magnitude(S value) {
    return bit_cast<std::uint32_t>(convert_value<float>(value)) & 0x7FFFFFFFu;
  }
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t number) const {
    if (known && *known != 0 && !records) return;
    constexpr int wide = Pack<S>::count;
    const std::int64_t first = number * part, end = first + part < count ? first + part : count;
    std::uint32_t own = 0;
    std::int64_t begin = first;
    if (aligned) {
      begin = first + (end - first) / wide * wide;
      for (std::int64_t i = first + team.rank() * wide; i < begin; i += Team::size * wide) {
        const Pack<S> pack = *reinterpret_cast<const Pack<S>*>(values + i);
        for (int v = 0; v < wide; ++v) own = larger_of(own, magnitude(pack.values[v]));
      }
    }
    for (std::int64_t i = begin + team.rank(); i < end; i += Team::size) own = larger_of(own, magnitude(values[i]));
    const std::uint32_t all = team.max(own);
    if (team.rank() == 0) part_magnitudes[number] = all;
  }
};

// The scale, and the record of the amax: fp8_cpu.cpp's rule.
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
                                          is_aligned(a.values, sizeof(Pack<S>))});
  });
  const auto step =
      a.history ? step_argument(a, [](const Fp8ScaleArgs& then) { return then.step; }) : StepArgument<std::int64_t>{};
  for_each_team(
      1, MakeScale{parts, a.code_dtype, a.margin, a.known, a.scale, a.history, a.length, a.next_scale, a.steps, step});
}

THIMBLE_DEVICE inline bool is_infinite(float value) {
  return (bit_cast<std::uint32_t>(value) & 0x7FFFFFFFu) == quant::infinity_bits;
}

// fp8_code of eight values. GPUs with FP8 units have an instruction, which differs in infinite values alone: it gives
// the largest finite code for them.
template <class Code>
THIMBLE_DEVICE inline void make_codes(const float (&values)[8], float inverse, std::uint8_t (&codes)[8]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  bool has_infinity = false;
  THIMBLE_UNROLL
  for (int v = 0; v < 8; v += 2) {
    const float low = values[v] * inverse, high = values[v + 1] * inverse;
    std::uint16_t pair;
    if constexpr (std::is_same_v<Code, quant::Float8Code<f8e4m3>>) {
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    }
    codes[v] = static_cast<std::uint8_t>(pair), codes[v + 1] = static_cast<std::uint8_t>(pair >> 8);
    has_infinity = has_infinity || is_infinite(values[v]) || is_infinite(values[v + 1]);
  }
  if (!has_infinity) return;
#endif
  THIMBLE_UNROLL
  for (int v = 0; v < 8; ++v) codes[v] = fp8_code<Code>(values[v], inverse);
}

template <class Code, class S>
struct Cast {
  static constexpr int wide = 8;
  const S* values;
  std::int64_t count;
  const float* scale;
  std::uint8_t* codes;     // may be null
  std::uint16_t* decoded;  // may be null, and where the values are
  bool aligned;
  struct alignas(8) Codes {
    std::uint8_t values[wide];
  };
  struct alignas(16) Decoded {
    std::uint16_t values[wide];
  };
  struct alignas(16) Values {
    S values[wide];
  };
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const float inverse = 1.0f / *scale;
    const std::int64_t begin = i * wide;
    if (aligned && begin + wide <= count) {
      const Values from = *reinterpret_cast<const Values*>(values + begin);
      Codes made;
      float wider[wide];
      THIMBLE_UNROLL
      for (int v = 0; v < wide; ++v) wider[v] = widened(from.values[v]);
      make_codes<Code>(wider, inverse, made.values);
      if (codes) *reinterpret_cast<Codes*>(codes + begin) = made;
      if (!decoded) return;
      Decoded bits;
      THIMBLE_UNROLL
      for (int v = 0; v < wide; ++v) bits.values[v] = fp8_value_bits<Code>(made.values[v]);
      *reinterpret_cast<Decoded*>(decoded + begin) = bits;
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

// Where the codes that are turned come from.
template <class Code, class S>
struct MadeCodes {
  const S* values;
  const float* scale;
  THIMBLE_DEVICE float prepare() const { return 1.0f / *scale; }
  THIMBLE_DEVICE std::uint8_t at(std::int64_t i, float inverse) const {
    return fp8_code<Code>(convert_value<float>(values[i]), inverse);
  }
};
struct GivenCodes {
  const std::uint8_t* codes;
  THIMBLE_DEVICE float prepare() const { return 0.0f; }
  THIMBLE_DEVICE std::uint8_t at(std::int64_t i, float) const { return codes[i]; }
};

template <class Source>
struct Turn {
  static constexpr int threads = 256, tile = 64, pitch = tile + 4;  // threads of a warp meet 32 banks
  static constexpr std::size_t shared_bytes = tile * pitch;
  Source source;
  std::int64_t rows, columns, row_stride;
  std::uint8_t* codes;  // may be null
  std::uint8_t* turned;
  std::int64_t turned_stride;

  std::int64_t teams() const { return ((columns + tile - 1) / tile) * ((turned_stride + tile - 1) / tile); }

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const std::int64_t across = (columns + tile - 1) / tile;
    const std::int64_t r0 = job / across * tile, c0 = job % across * tile;
    const auto held = team.template shared<std::uint8_t>();  // (tile columns, pitch)
    const float prepared = source.prepare();
    for (int e = team.rank(); e < tile * tile; e += Team::size) {
      const std::int64_t r = r0 + e / tile, c = c0 + e % tile;
      std::uint8_t code = 0;
      if (r < rows && c < columns) {
        code = source.at(r * row_stride + c, prepared);
        if (codes) codes[r * columns + c] = code;
      }
      held[e % tile * pitch + e / tile] = code;
    }
    team.sync();
    for (int e = team.rank(); e < tile * tile / 4; e += Team::size) {
      const std::int64_t c = c0 + e / (tile / 4), r = r0 + e % (tile / 4) * 4;
      if (c >= columns || r >= turned_stride) continue;
      *reinterpret_cast<std::uint32_t*>(turned + c * turned_stride + r) =
          load_as<std::uint32_t>(held + (e / (tile / 4) * pitch + e % (tile / 4) * 4));
    }
  }
};

template <class Source>
void turn_from(const Fp8TurnArgs& a, const Source& source) {
  const Turn<Source> body{source, a.rows, a.columns, a.row_stride, a.codes, a.turned, a.turned_stride};
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
  struct alignas(8) Codes {
    std::uint8_t values[wide];
  };
  struct alignas(16) Decoded {
    std::uint16_t values[wide];
  };
  THIMBLE_DEVICE float factor(std::int64_t row, std::int64_t column) const {
    if (!a.scales) return 1.0f;
    return quant::load_scale(a.scales, DType::u8, row / a.block_rows * a.blocks_across + column / a.block_columns);
  }
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t across = (a.columns + wide - 1) / wide, r = i / across, c = i % across * wide;
    const std::uint8_t* const codes = a.codes + (a.row + r) * a.row_stride + a.column + c;
    auto* const to = reinterpret_cast<std::uint16_t*>(a.decoded) + r * a.columns + c;
    if (aligned && c + wide <= a.columns) {  // one block holds all eight
      const float f = factor(a.row + r, a.column + c);
      const Codes from = *reinterpret_cast<const Codes*>(codes);
      Decoded bits;
      for (int v = 0; v < wide; ++v) bits.values[v] = fp8_value_bits<Code>(from.values[v], f);
      *reinterpret_cast<Decoded*>(to) = bits;
      return;
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

// A byte read and four written for each block: its order matters little.
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
