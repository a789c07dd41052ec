// Random words in bulk. Philox needs products of 32-bit words with 64-bit results, for which compilers choose slow
// 64-bit multiplications; the vector variants name the right instruction. All give the same words.

#include <thimble/core/kernels/shared/random_bits.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <thimble/core/kernels/cpu/base/isa.h>

namespace thimble::kernels {
namespace random_bits_detail {

void words_generic(const RandomSite& site, std::uint32_t first_block, std::uint32_t sample, std::int64_t blocks,
                   std::uint32_t* words) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    const PhiloxBlock block = random_block(site, first_block + static_cast<std::uint32_t>(b), sample);
    for (int w = 0; w < 4; ++w) words[4 * b + w] = block.word[w];
  }
}

#if defined(__x86_64__)
// A word of eight (four) blocks in the low halves of 64-bit lanes. The high halves hold the rest of products, which the
// multiplication ignores. The steps are philox4x32's (core/numbers/philox.h). Each waits for the one before, so two
// groups of blocks run side by side. (Masked forms with all lanes set, because the plain ones make g++ 12 warn about
// its header.)
constexpr int groups = 2;

THIMBLE_TARGET_AVX512 void sixteen_blocks(const RandomSite& site, std::uint32_t first_block, std::uint32_t sample,
                                          std::uint32_t* words) {
  const __m512i lane = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i low_half = _mm512_set1_epi64(0xffffffff);
  __m512i left0[groups], right0[groups], left1[groups], right1[groups];
#pragma GCC unroll 2
  for (std::uint32_t g = 0; g < groups; ++g) {
    left0[g] = _mm512_and_si512(_mm512_add_epi64(_mm512_set1_epi64(first_block + 8 * g), lane), low_half);
    right0[g] = _mm512_set1_epi64(sample);
    left1[g] = _mm512_set1_epi64(site.site);
    right1[g] = _mm512_set1_epi64(static_cast<std::uint32_t>(site.step));
  }
  auto key0 = static_cast<std::uint32_t>(site.seed), key1 = static_cast<std::uint32_t>(site.seed >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 2
    for (int g = 0; g < groups; ++g) {
      const __m512i product0 = _mm512_maskz_mul_epu32(0xff, left0[g], _mm512_set1_epi64(0xD2511F53));
      const __m512i product1 = _mm512_maskz_mul_epu32(0xff, left1[g], _mm512_set1_epi64(0xCD9E8D57));
      left0[g] = _mm512_xor_si512(_mm512_xor_si512(_mm512_maskz_srli_epi64(0xff, product1, 32), right0[g]),
                                  _mm512_set1_epi64(key0));
      left1[g] = _mm512_xor_si512(_mm512_xor_si512(_mm512_maskz_srli_epi64(0xff, product0, 32), right1[g]),
                                  _mm512_set1_epi64(key1));
      right0[g] = product1;
      right1[g] = product0;
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const __m512i low = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0), high = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
#pragma GCC unroll 2
  for (int g = 0; g < groups; ++g) {
    const __m512i first =
        _mm512_or_si512(_mm512_and_si512(left0[g], low_half), _mm512_maskz_slli_epi64(0xff, right0[g], 32));
    const __m512i second =
        _mm512_or_si512(_mm512_and_si512(left1[g], low_half), _mm512_maskz_slli_epi64(0xff, right1[g], 32));
    _mm512_storeu_si512(words + 32 * g, _mm512_permutex2var_epi64(first, low, second));
    _mm512_storeu_si512(words + 32 * g + 16, _mm512_permutex2var_epi64(first, high, second));
  }
}

THIMBLE_TARGET_AVX2 void eight_blocks(const RandomSite& site, std::uint32_t first_block, std::uint32_t sample,
                                      std::uint32_t* words) {
  const __m256i lane = _mm256_set_epi64x(3, 2, 1, 0), low_half = _mm256_set1_epi64x(0xffffffff);
  __m256i left0[groups], right0[groups], left1[groups], right1[groups];
#pragma GCC unroll 2
  for (std::uint32_t g = 0; g < groups; ++g) {
    left0[g] = _mm256_and_si256(_mm256_add_epi64(_mm256_set1_epi64x(first_block + 4 * g), lane), low_half);
    right0[g] = _mm256_set1_epi64x(sample);
    left1[g] = _mm256_set1_epi64x(site.site);
    right1[g] = _mm256_set1_epi64x(static_cast<std::uint32_t>(site.step));
  }
  auto key0 = static_cast<std::uint32_t>(site.seed), key1 = static_cast<std::uint32_t>(site.seed >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 2
    for (int g = 0; g < groups; ++g) {
      const __m256i product0 = _mm256_mul_epu32(left0[g], _mm256_set1_epi64x(0xD2511F53));
      const __m256i product1 = _mm256_mul_epu32(left1[g], _mm256_set1_epi64x(0xCD9E8D57));
      // Off the chain of products: keys meet the word that waits, and a shuffle runs on another port than a shift.
      const __m256i keyed0 = _mm256_xor_si256(right0[g], _mm256_set1_epi64x(key0));
      const __m256i keyed1 = _mm256_xor_si256(right1[g], _mm256_set1_epi64x(key1));
      left0[g] = _mm256_xor_si256(_mm256_shuffle_epi32(product1, 0xF5), keyed0);
      left1[g] = _mm256_xor_si256(_mm256_shuffle_epi32(product0, 0xF5), keyed1);
      right0[g] = product1;
      right1[g] = product0;
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
#pragma GCC unroll 2
  for (int g = 0; g < groups; ++g) {
    const __m256i first = _mm256_or_si256(_mm256_and_si256(left0[g], low_half), _mm256_slli_epi64(right0[g], 32));
    const __m256i second = _mm256_or_si256(_mm256_and_si256(left1[g], low_half), _mm256_slli_epi64(right1[g], 32));
    const __m256i even = _mm256_unpacklo_epi64(first, second), odd = _mm256_unpackhi_epi64(first, second);
    auto* const to = reinterpret_cast<__m256i*>(words + 16 * g);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  }
}
#endif

}  // namespace random_bits_detail

void sample_words(const RandomSite& site, std::uint32_t first_block, std::uint32_t sample, std::int64_t blocks,
                  std::uint32_t* words) {
  std::int64_t done = 0;
#if defined(__x86_64__)
  const auto at = [&] { return first_block + static_cast<std::uint32_t>(done); };
  if (isa() >= Isa::avx512) {
    for (; done + 16 <= blocks; done += 16) random_bits_detail::sixteen_blocks(site, at(), sample, words + 4 * done);
  } else if (isa() >= Isa::avx2) {
    for (; done + 8 <= blocks; done += 8) random_bits_detail::eight_blocks(site, at(), sample, words + 4 * done);
  }
#endif
  random_bits_detail::words_generic(site, first_block + static_cast<std::uint32_t>(done), sample, blocks - done,
                                    words + 4 * done);
}

}  // namespace thimble::kernels
