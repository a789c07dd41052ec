#pragma once
// The pictures of the book, docs/book/figures. Each is drawn from what it shows: a dry run, a solver's result, a table
// of codes. They depend on the number of threads and the instruction set as dry runs do; the committed ones are those
// of two threads and the generic set.

#include <span>
#include <string>
#include <string_view>

namespace thimble::bench {

struct BookFigure {
  std::string_view name;  ///< of its file, without ".svg": the chapter's number comes first
  std::string_view caption;
  std::string (*draw)();
};

/// All of them, by chapter.
std::span<const BookFigure> book_figures();

// By what they are drawn from (one file each).

std::string draw_committed_bar();    ///< of what the quickstart commits
std::string draw_kept_graph();       ///< values between the operators of a small net, and which are kept
std::string draw_layer_terms();      ///< what one layer of a GPT keeps, by formula
std::string draw_step_bars();        ///< parameters, gradients, state and activations of named models
std::string draw_step_timeline();    ///< live bytes of a step, event by event
std::string draw_known_schedules();  ///< of a chain of equal stages
std::string draw_rotor_schedules();  ///< of the toy's chain
std::string draw_rotor_staircase();
std::string draw_budget_staircase();  ///< of a planner for a model
std::string draw_planned_timeline();  ///< of a step within a budget
std::string draw_address_map();       ///< of a step, on demand and offline
std::string draw_slide_puzzle();      ///< blocks before and after they are slid together
std::string draw_six_rectangles();    ///< that first fit does not pack
std::string draw_accumulation();      ///< bytes against the number of micro-batches
std::string draw_parameter_bytes();   ///< of training policies
std::string draw_lost_updates();      ///< a weight in bf16 that does not move, and three that do
std::string draw_fp8_grid();          ///< the numbers of E4M3
std::string draw_layer_errors();      ///< of a net in 8 bits
std::string draw_rank_bytes();        ///< model state on each rank
std::string draw_pipelines();         ///< of one model on four stages
std::string draw_advice();            ///< what common advice changes

}  // namespace thimble::bench
