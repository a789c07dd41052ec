#pragma once
// The PTX ISA's layouts of the operands of products on tensor cores: the host's instructions follow them, and tests
// compare the kernels' maps with them.

#include <algorithm>
#include <cmath>

namespace thimble::testing {

struct IsaPlace {
  int row, column;
};

// PTX ISA 8.x, "Matrix Fragments for mma.m16n8k16 with floating point type", .f16 and .bf16: groupID = lane >> 2,
// threadID_in_group = lane % 4.
inline IsaPlace isa_a(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  const int row = (0 <= i && i < 2) || (4 <= i && i < 6) ? group : group + 8;
  const int column = i < 4 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8;
  return {row, column};
}
inline IsaPlace isa_b(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  return {i < 2 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8, group};
}
inline IsaPlace isa_c(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  return {i < 2 ? group : group + 8, thread * 2 + (i & 1)};
}

// "Matrix Fragments for mma.m16n8k8", .tf32: A (16, 8), B (8, 8); its C is isa_c.
inline IsaPlace isa_tf32_a(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  return {i == 0 || i == 2 ? group : group + 8, i < 2 ? thread : thread + 4};
}
inline IsaPlace isa_tf32_b(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  return {i == 0 ? thread : thread + 4, group};
}

template <class A>
bool same(const A& a, const IsaPlace& b) {
  return a.row == b.row && a.column == b.column;
}

// To 11 significant bits, halves away from zero, by definition.
inline float to_tf32(float value) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent;
  std::frexp(value, &exponent);
  const int last = std::max(exponent - 11, -126 - 10);  // exponent of the last bit kept
  return static_cast<float>(std::ldexp(std::round(std::ldexp(static_cast<double>(value), -last)), last));
}

}  // namespace thimble::testing
