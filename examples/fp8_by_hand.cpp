// FP8 by hand: the 256 codes of E4M3, rounding to the nearest number, and the scale that makes a tensor fit. Read in
// chapter 12 of the book (docs/book). Needs only C++20: g++ -std=c++20 fp8_by_hand.cpp

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

const float largest = 448;  // code 0x7E; the code after it, 0x7F, is not a number

// The value of a code: a sign, four bits of exponent, three bits of fraction.
float decode(std::uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)  // subnormal: steps of 2^-9
                              : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  if ((code & 0x7F) == 0x7F) value = NAN;
  return code & 0x80 ? -value : value;
}

// The nearest code, ties to even; numbers beyond the largest become the largest ("saturating").
std::uint8_t encode(float x) {
  const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::min(std::abs(x), largest);
  if (std::isnan(x)) return sign | 0x7F;
  // Numbers between 2^e and 2^(e+1) stand 2^(e-3) apart; below 2^-6 the steps stop shrinking.
  const int e = magnitude < std::ldexp(1.0f, -6) ? -6 : std::ilogb(magnitude);
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - e)));  // ties to even; up to 16
  return static_cast<std::uint8_t>(sign | ((e + 6) * 8 + steps));  // the carry of 16 steps runs into the exponent
}

// The value of an IEEE half, for the test below: one sign, five bits of exponent, ten of fraction.
float half(int bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                              : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  if (exponent == 31) value = fraction == 0 ? INFINITY : NAN;
  return bits & 0x8000 ? -value : value;
}

// Rounds a tensor to E4M3 under one scale and gives the largest error relative to the tensor's largest number.
float error_under(float scale, const std::vector<float>& x, float amax) {
  float worst = 0;
  for (const float v : x) worst = std::max(worst, std::abs(decode(encode(v / scale)) * scale - v));
  return worst / amax;
}

int main() {
  std::printf("exponent  code 0        1        2        3        4        5        6        7\n");
  for (int e = 0; e < 16; ++e) {
    std::printf("%8d ", e);
    for (int f = 0; f < 8; ++f)
      std::printf(" %8.4g", static_cast<double>(decode(static_cast<std::uint8_t>(e * 8 + f))));
    std::printf("\n");
  }
  bool is_right = true;
  for (int code = 0; code < 256; ++code) {  // every number encodes to its code
    const float value = decode(static_cast<std::uint8_t>(code));
    is_right &= encode(value) == code || std::isnan(value);
  }
  int nans = 0, zeros = 0, tops = 0;  // of all 65,536 halves
  for (int bits = 0; bits < 65536; ++bits) {
    const int code = encode(half(bits)) & 0x7F;
    nans += code == 0x7F, zeros += code == 0, tops += code == 0x7E;
  }
  std::printf("of all halves %d become NaN, %d zero, %d the largest number\n", nans, zeros, tops);
  is_right &= nans == 2046 && zeros == 10242 && tops == 14978;

  std::vector<float> gradients;  // small, like real gradients: most of them vanish without a scale
  for (int i = 0; i < 1000; ++i) gradients.push_back(1e-4f * std::sin(static_cast<float>(i)));
  const float amax = *std::max_element(gradients.begin(), gradients.end());
  const float plain = error_under(1, gradients, amax), scaled = error_under(amax / largest, gradients, amax);
  std::printf("error without a scale %.1f %%, with scale amax / 448 = %.4g: %.1f %%\n",
              100 * static_cast<double>(plain), static_cast<double>(amax / largest), 100 * static_cast<double>(scaled));
  is_right &= plain > 0.9f && scaled <= 16.0f / 448.0f;  // half of the widest step
  return is_right ? 0 : 1;
}
