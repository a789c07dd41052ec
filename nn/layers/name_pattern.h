#pragma once
// Dotted names that are meant by a pattern, in which `*` stands for any number of any characters.

#include <string_view>

namespace thimble::nn {

/// Whether all of `name` is as `pattern` says: "h.*.attn" means "h.0.attn" and "h.10.attn".
bool matches(std::string_view name, std::string_view pattern) noexcept;
/// Whether `pattern` means `name` or a module that it is below: "h.*.attn" means "h.0.attn.c_attn.weight" as well.
bool is_at_or_below(std::string_view name, std::string_view pattern) noexcept;
/// Whether `pattern` means `name` or its last parts: "q_proj" means "model.layers.0.self_attn.q_proj".
bool ends_as(std::string_view name, std::string_view pattern) noexcept;

}  // namespace thimble::nn
