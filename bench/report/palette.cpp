#include <thimble/bench/report/palette.h>

#include <utility>

namespace thimble::report {
namespace {

struct CategoryStyle {
  Paint paint;
  std::string_view label;
};

// Indexed by Category.
constexpr std::array<CategoryStyle, memory::category_count> category_styles = {
    {{{"parameter", "#365295", "#4a76cd"}, "parameters"},
     {{"gradient", "#db4609", "#f96143"}, "gradients"},
     {{"optimizer", "#9c66c5", "#bc8adb"}, "optimizer state"},
     {{"activation", "#349077", "#54bb98"}, "activations"},
     {{"temporary", "#e4a81b", "#f1c03e"}, "temporaries"},
     {{"workspace", "#73cafe", "#83dbf2"}, "workspace"},
     {{"input", "#b2aea3", "#898593"}, "input"},
     {{"communication", "#5c2a0e", "#9c3018"}, "communication"}}};

template <class Visit>
void for_each_paint(Visit visit) {
  for (const Paint& paint : interface_paints) visit(paint);
  for (const CategoryStyle& style : category_styles) visit(style.paint);
  for (const Paint& paint : series_paints) visit(paint);
}

std::string declarations(std::string_view Paint::*scheme) {
  std::string css;
  for_each_paint(
      [&](const Paint& paint) { css.append("--").append(paint.name).append(":").append(paint.*scheme).append(";"); });
  return css;
}

}  // namespace

const Paint& paint_of(memory::Category category) noexcept {
  return category_styles[static_cast<std::size_t>(category)].paint;
}

std::string_view label_of(memory::Category category) noexcept {
  return category_styles[static_cast<std::size_t>(category)].label;
}

std::string_view label_of(const Paint& paint) noexcept {
  for (const CategoryStyle& style : category_styles) {
    if (style.paint.name == paint.name) return style.label;
  }
  return {};
}

std::string palette_css() {
  std::string css = ":root{color-scheme:light dark;" + declarations(&Paint::light) + "}\n";
  css += "@media screen and (prefers-color-scheme:dark){:root{" + declarations(&Paint::dark) + "}}\n";
  for_each_paint([&](const Paint& paint) {
    for (const auto& [prefix, property] : {std::pair<const char*, const char*>{"f", "fill"}, {"s", "stroke"}}) {
      css.append(".").append(prefix).append("-").append(paint.name).append("{").append(property);
      css.append(":var(--").append(paint.name).append(")}\n");
    }
  });
  return css;
}

}  // namespace thimble::report
