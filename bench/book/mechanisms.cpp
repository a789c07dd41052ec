// Pictures of the tape and the arena, read from the running objects.

#include <cmath>

#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/bench/book/drawing.h>
#include <thimble/bench/book/figures.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/stack.h>
#include <thimble/memory/units.h>

namespace thimble::bench {
namespace {

using report::Svg;
namespace paints = report::paints;

// Draws a box with a tensor's name, shape and bytes; solid if the tape keeps the tensor, else dashed.
void draw_tensor(Svg& svg, double x, double y, const std::string& name, const Tensor& t, bool is_kept, bool is_leaf) {
  const report::Paint paint = report::paint_of(is_leaf ? memory::Category::parameter : memory::Category::activation);
  report::Look look{.stroke = paint, .stroke_width = 2};
  if (!is_kept) look.dashes = "5 4";
  if (is_kept) svg.rectangle(x, y, 136, 56, {.fill = paint, .opacity = 0.25}, 6);
  svg.rectangle(x, y, 136, 56, look, 6);
  const std::string shape = "(" + std::to_string(t.shape()[0]) + ", " + std::to_string(t.shape()[1]) + ")";
  svg.text(x + 68, y + 23, name, {.size = 13.5, .anchor = "middle", .is_bold = true});
  svg.text(x + 68, y + 42, shape + ", " + format_grouped(t.elements() * 4) + " B", {.size = 11.5, .anchor = "middle"});
}

void draw_arrow(Svg& svg, double x1, double y1, double x2, double y2) {
  svg.line(x1, y1, x2, y2, {.stroke = paints::axis, .stroke_width = 1.5});
  const double angle = std::atan2(y2 - y1, x2 - x1);
  report::SvgPath tip;
  tip.move(x2, y2).line(x2 - 9 * std::cos(angle - 0.4), y2 - 9 * std::sin(angle - 0.4));
  tip.line(x2 - 9 * std::cos(angle + 0.4), y2 - 9 * std::sin(angle + 0.4)).close();
  svg.path(tip, {.fill = paints::axis});
}

void draw_operator(Svg& svg, double x, double y, const std::string& name, const std::string& keeps) {
  svg.rectangle(x, y, 104, 44, {.fill = paints::page, .stroke = paints::ink}, 22);
  svg.text(x + 52, y + 27, name, {.size = 13.5, .anchor = "middle"});
  svg.text(x + 52, y + 66, keeps, {.fill = paints::muted, .size = 12, .anchor = "middle"});
}

}  // namespace

std::string draw_kept_graph() {
  const memory::Stack stack = memory::make_resource(dry(cpu));
  const ResourceScope scope(stack.top);
  const Tensor x = randn({64, 128}, DType::f32, dry(cpu));
  Tensor w1 = randn({128, 256}, DType::f32, dry(cpu)), w2 = randn({256, 10}, DType::f32, dry(cpu));
  w1.require_grad(), w2.require_grad();
  Tape tape;
  Tensor h, y, z;
  {
    const Recording on(tape);
    h = matmul(x, w1);
    y = relu(h);
    z = matmul(y, w2);
  }
  const auto is_kept = [&](const Tensor& t) {
    for (std::size_t node = 0; node < tape.node_count(); ++node) {
      for (const KeptTensor& kept : tape.kept(node)) {
        if (kept.storage == t.storage().get()) return true;
      }
    }
    return false;
  };
  Svg svg(report::Medium::file, report::figure_width, 330, "What a small net keeps",
          "Tensors as boxes, operators as rounded boxes; filled tensors are held for backward.");
  report::draw_title(svg, "What a small net keeps between forward and backward");
  const double row = 150, top = 62;
  const double at[] = {24, 188, 320, 484, 616, 790};  // x, matmul, h, relu, y, matmul ... z below
  draw_tensor(svg, at[0], row, "x", x, is_kept(x), false);
  draw_tensor(svg, at[1] - 16, top, "w1", w1, is_kept(w1), true);
  draw_operator(svg, at[1], row + 6, "matmul", "keeps x");
  draw_tensor(svg, at[2], row, "h = x w1", h, is_kept(h), false);
  draw_operator(svg, at[3], row + 6, "relu", "keeps y");
  draw_tensor(svg, at[4], row, "y = relu(h)", y, is_kept(y), false);
  draw_tensor(svg, at[5] - 16, top, "w2", w2, is_kept(w2), true);
  draw_operator(svg, at[5], row + 6, "matmul", "keeps y, w2");
  draw_tensor(svg, at[5] - 16, row + 92, "z = y w2", z, is_kept(z), false);
  draw_arrow(svg, at[0] + 136, row + 28, at[1] - 2, row + 28);
  draw_arrow(svg, at[1] + 52, top + 56, at[1] + 52, row + 4);
  draw_arrow(svg, at[1] + 104, row + 28, at[2] - 2, row + 28);
  draw_arrow(svg, at[2] + 136, row + 28, at[3] - 2, row + 28);
  draw_arrow(svg, at[3] + 104, row + 28, at[4] - 2, row + 28);
  draw_arrow(svg, at[4] + 136, row + 28, at[5] - 2, row + 28);
  draw_arrow(svg, at[5] + 52, top + 56, at[5] + 52, row + 4);
  draw_arrow(svg, at[5] + 52, row + 74, at[5] + 52, row + 90);
  svg.rectangle(24, 266, 26, 18, {.fill = report::paint_of(memory::Category::activation), .opacity = 0.25}, 3);
  svg.rectangle(24, 266, 26, 18, {.stroke = report::paint_of(memory::Category::activation), .stroke_width = 2}, 3);
  svg.text(60, 280,
           "held until backward: " + format_grouped(tape.kept_bytes(memory::Category::temporary) + tape.kept_bytes()) +
               " B between the operators",
           {.size = 12.5});
  svg.rectangle(24, 294, 26, 18,
                {.stroke = report::paint_of(memory::Category::activation), .stroke_width = 2, .dashes = "5 4"}, 3);
  svg.text(60, 308, "not held by the tape: h (relu keeps y instead), z, and w1 (a parameter; nobody asks for dx)",
           {.size = 12.5});
  return svg.finish();
}

std::string draw_slide_puzzle() {
  constexpr std::size_t unit = std::size_t{2} << 20;
  memory::Options options;
  options.arena.capacity_bytes = 12 * unit;
  const memory::Stack stack = memory::make_resource(dry(cpu), std::move(options));
  const auto allocate = [&](std::size_t units) { return stack.top->allocate({.bytes = units * unit}); };
  const auto place = [&](const memory::Block* b) {
    return static_cast<std::size_t>(b->address - stack.arena->base()) / unit;
  };
  struct Named {
    std::string name;
    memory::Block* block;
    std::size_t units;
  };
  // a a . . b b b b . . c .: two free units on each side of b, one at the end.
  Named a{"a", allocate(2), 2};
  memory::Block* const first = allocate(2);
  Named b{"b", allocate(4), 4};
  memory::Block* const second = allocate(2);
  Named c{"c", allocate(1), 1};
  stack.top->deallocate(first, nullptr), stack.top->deallocate(second, nullptr);
  Svg svg(report::Medium::file, report::figure_width, 270, "Blocks slid together",
          "An arena of twelve units before and after a request for three finds no hole.");
  report::draw_title(svg, "A request for 3 units of 2 MiB: 5 are free, and no 3 lie together");
  const double left = 130, cell = 66;
  const auto draw = [&](double y, const std::string& name, const std::vector<Named>& blocks) {
    svg.text(left - 16, y + 28, name, {.size = 13.5, .anchor = "end", .is_bold = true});
    for (int i = 0; i < 12; ++i) {
      svg.rectangle(left + i * cell, y, cell - 3, 44, {.stroke = paints::axis, .dashes = "3 3"}, 4);
    }
    for (const Named& block : blocks) {
      const double x = left + static_cast<double>(place(block.block)) * cell;
      const double width = cell * static_cast<double>(block.units) - 3;
      const bool is_new = block.name == "new";
      svg.rectangle(x, y, width, 44,
                    {.fill = is_new ? report::series_paints[1] : report::series_paints[0], .opacity = 0.45}, 4);
      svg.text(x + width / 2, y + 28, block.name, {.size = 15, .anchor = "middle", .is_bold = true});
    }
  };
  draw(64, "before", {a, b, c});
  const std::size_t b_before = place(b.block), c_before = place(c.block);
  const std::uint64_t moved = stack.arena->statistics().moved_bytes;
  Named fresh{"new", allocate(3), 3};
  const std::uint64_t moved_bytes = stack.arena->statistics().moved_bytes - moved;
  draw(168, "after", {a, b, c, fresh});
  const auto slide = [&](std::size_t before, const Named& block) {
    if (place(block.block) == before) return;
    const double half = cell * static_cast<double>(block.units) / 2;
    draw_arrow(svg, left + static_cast<double>(before) * cell + half, 112,
               left + static_cast<double>(place(block.block)) * cell + half, 164);
  };
  slide(b_before, b), slide(c_before, c);
  svg.text(left, 240, "moved: " + format_grouped(moved_bytes) + " B, the fewest that make room", {.size = 12.5});
  for (memory::Block* const block : {a.block, b.block, c.block, fresh.block}) stack.top->deallocate(block, nullptr);
  return svg.finish();
}

}  // namespace thimble::bench
