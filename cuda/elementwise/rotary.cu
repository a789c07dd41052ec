// Rotary positions on CUDA devices: a team takes one position of one sample, whose heads share sines and cosines.

#include <cmath>

#include <thimble/core/kernels/rotary.h>
#include <thimble/cuda/kernel/element.h>

namespace thimble::kernels {
namespace rotary_cuda_detail {

using namespace cuda_kernels;

template <class T>
struct Turn {
  static constexpr int threads = 128;
  RotaryArgs args;

  /// Cosines and sines of all pairs.
  std::size_t shared_bytes() const { return static_cast<std::size_t>(args.width) * sizeof(T); }

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t row) const {
    const std::int64_t pairs = args.width / 2;
    const Shared<T> cosines = team.template shared<T>(), sines = cosines + pairs;
    const double position = static_cast<double>(args.first_position + row % args.length);
    for (std::int64_t i = team.rank(); i < pairs; i += Team::size) {
      const double angle = position * args.frequencies[i];
      cosines[i] = static_cast<T>(args.scale * std::cos(angle));
      sines[i] = static_cast<T>(args.scale * std::sin(angle));
    }
    team.sync();
    for (std::int64_t e = team.rank(); e < args.heads * pairs; e += Team::size) {
      const std::int64_t i = e % pairs, first = (row * args.heads + e / pairs) * args.width + i;
      const T a = load<T>(args.x, args.dtype, first), b = load<T>(args.x, args.dtype, first + pairs);
      store<T>(args.y, args.dtype, first, a * cosines[i] - b * sines[i]);
      store<T>(args.y, args.dtype, first + pairs, b * cosines[i] + a * sines[i]);
    }
  }
};

void turn(const RotaryArgs& args) {
  with_compute_type(args.dtype, [&]<class T>() {
    const Turn<T> body{args};
    for_each_team(args.batch * args.length, body, body.shared_bytes());
  });
}

constexpr RotaryKernels table{turn};

}  // namespace rotary_cuda_detail

const RotaryKernels* const rotary_cuda = &rotary_cuda_detail::table;

}  // namespace thimble::kernels
