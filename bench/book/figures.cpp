#include <thimble/bench/book/figures.h>

#include <array>

namespace thimble::bench {

std::span<const BookFigure> book_figures() {
  static constexpr std::array figures = {
      BookFigure{"01-bar", "what 220,200,960 bytes are made of", draw_committed_bar},
      BookFigure{"02-graph", "what a small net keeps between forward and backward", draw_kept_graph},
      BookFigure{"03-layer", "what one layer of a GPT keeps, term by term", draw_layer_terms},
      BookFigure{"03-models", "five steps of three models, by category", draw_step_bars},
      BookFigure{"04-timeline", "live bytes of one step, event by event", draw_step_timeline},
      BookFigure{"05-schedules", "four schedules of twelve equal stages", draw_known_schedules},
      BookFigure{"06-schedules", "the least and the fastest schedule of five unequal stages", draw_rotor_schedules},
      BookFigure{"06-staircase", "time against memory for these five stages", draw_rotor_staircase},
      BookFigure{"07-staircase", "all plans of a planner for a small GPT", draw_budget_staircase},
      BookFigure{"07-planned", "the same GPT within half of its bytes", draw_planned_timeline},
      BookFigure{"08-map", "where the blocks of a step lie, on demand and offline", draw_address_map},
      BookFigure{"08-slide", "blocks slid together for a request that found no hole", draw_slide_puzzle},
      BookFigure{"09-six", "six rectangles that first fit does not pack", draw_six_rectangles},
      BookFigure{"10-accumulation", "a batch of 32 in micro-batches", draw_accumulation},
      BookFigure{"11-bytes", "bytes per parameter under training policies", draw_parameter_bytes},
      BookFigure{"11-updates", "two thousand updates that bf16 loses, and three ways to keep them", draw_lost_updates},
      BookFigure{"12-grid", "the numbers of E4M3", draw_fp8_grid},
      BookFigure{"13-errors", "how the error gathers through a net in 8 bits", draw_layer_errors},
      BookFigure{"14-ranks", "model state on each of eight ranks", draw_rank_bytes},
      BookFigure{"14-pipelines", "eight micro-batches through four stages, three schedules", draw_pipelines},
      BookFigure{"15-advice", "what common advice changes in one step", draw_advice}};
  return figures;
}

}  // namespace thimble::bench
