#pragma once
#include <thimble/core/tensor.h>
namespace thimble {
struct AttentionOptions { bool causal = true; double dropout = 0; double scale = 0; };
Tensor attention(const Tensor& qkv, std::int64_t heads, const AttentionOptions& options = {});
Tensor attention_textbook(const Tensor& qkv, std::int64_t heads, const AttentionOptions& options = {});
}
