#pragma once
// The maps of cuda/kernel/tensor_core.h for kernels. A test can swap two lanes in one of them: a kernel with unchanged
// results does not depend on the map.

#include <string_view>

namespace thimble::emulated {

struct LaneSwap {
  std::string_view map;  ///< empty for no swap
  int lane = 0, with = 0;
  int operator()(std::string_view name, int of) const {
    if (name != map) return of;
    return of == lane ? with : of == with ? lane : of;
  }
};
inline LaneSwap lane_swap;
inline constexpr std::string_view lane_maps[] = {
    "sums", "right", "left_source", "right_source", "transposed_source", "tf32_left_source", "tf32_right_source"};

}  // namespace thimble::emulated

namespace thimble::cuda_kernels::lane_map {

inline Place sums(int lane, int e) { return instruction_map::sums(emulated::lane_swap("sums", lane), e); }
inline Place right(int lane, int e) { return instruction_map::right(emulated::lane_swap("right", lane), e); }
inline Place left_source(int lane) { return instruction_map::left_source(emulated::lane_swap("left_source", lane)); }
inline Place right_source(int lane) { return instruction_map::right_source(emulated::lane_swap("right_source", lane)); }
inline Place transposed_source(int lane) {
  return instruction_map::transposed_source(emulated::lane_swap("transposed_source", lane));
}
inline Place tf32_left_source(int lane, int half) {
  return instruction_map::tf32_left_source(emulated::lane_swap("tf32_left_source", lane), half);
}
inline Place tf32_right_source(int lane, int half) {
  return instruction_map::tf32_right_source(emulated::lane_swap("tf32_right_source", lane), half);
}

}  // namespace thimble::cuda_kernels::lane_map
