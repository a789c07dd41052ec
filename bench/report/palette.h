#pragma once
// The colours of every picture and page, each in a light and a dark scheme. A memory category has one colour
// everywhere.
//
// The colours were chosen by search: for normal sight and for simulated protanopia, deuteranopia and tritanopia the
// smallest distance between two category colours in the OKLab space is as large as it gets near the usual hues (a test
// holds the distance). Lines have a contrast of at least 3 to 1 against the surface (WCAG 2.1, 1.4.11).

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include <thimble/core/tensor/resource.h>

namespace thimble::report {

/// A named colour: `name` is its CSS custom property and class suffix, `light` and `dark` are "#rrggbb".
struct Paint {
  std::string_view name;
  std::string_view light;
  std::string_view dark;
};

namespace paints {
inline constexpr Paint surface{"surface", "#ffffff", "#1a1d23"};    ///< behind pictures
inline constexpr Paint page{"page", "#f6f6f3", "#121418"};          ///< behind cards
inline constexpr Paint ink{"ink", "#1d232b", "#e8eaed"};            ///< text
inline constexpr Paint muted{"muted", "#5b6470", "#a3abb6"};        ///< secondary text
inline constexpr Paint hairline{"hairline", "#e4e4df", "#2d323a"};  ///< grid, borders
inline constexpr Paint axis{"axis", "#a9adb3", "#565d68"};          ///< axis lines
inline constexpr Paint accent{"accent", "#2b5fa5", "#86b4f0"};      ///< links
inline constexpr Paint good{"good", "#1f7a5c", "#5fcf9f"};          ///< equal
inline constexpr Paint alarm{"alarm", "#b3261e", "#ff8a7a"};        ///< different, budget lines
}  // namespace paints

/// All of `paints`, for style sheets.
inline constexpr std::array<Paint, 9> interface_paints = {paints::surface, paints::page,     paints::ink,
                                                          paints::muted,   paints::hairline, paints::axis,
                                                          paints::accent,  paints::good,     paints::alarm};

/// Colours of series that are not memory categories; used in turn.
inline constexpr std::array<Paint, 5> series_paints = {{{"series0", "#288cd0", "#60b8f9"},
                                                        {"series1", "#c73773", "#cf447e"},
                                                        {"series2", "#2e1b8b", "#8a5fea"},
                                                        {"series3", "#a6940f", "#e4f479"},
                                                        {"series4", "#833909", "#ee997d"}}};

/// The colour of a category.
const Paint& paint_of(memory::Category category) noexcept;

/// The name people read in a legend: "parameters", "gradients", "optimizer state", "activations", ...
std::string_view label_of(memory::Category category) noexcept;
/// The name of the category with this colour; empty for other colours.
std::string_view label_of(const Paint& paint) noexcept;

/// The order in which categories are stacked, from the axis outwards: the longest-lived comes first.
inline constexpr std::array<memory::Category, memory::category_count> stacking_order = {
    memory::Category::parameter, memory::Category::optimizer,    memory::Category::gradient,
    memory::Category::input,     memory::Category::activation,   memory::Category::temporary,
    memory::Category::workspace, memory::Category::communication};

/// CSS custom properties for every colour (`--ink: #1d232b`) on :root, the dark scheme's under prefers-color-scheme on
/// screens (paper stays light), and the classes `.f-NAME` (fill) and `.s-NAME` (stroke) that pictures use.
std::string palette_css();

}  // namespace thimble::report
