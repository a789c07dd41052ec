#pragma once
// The pictures of the book, docs/book/figures, drawn from dry runs, solvers' results and tables of codes. Like dry runs
// they depend on the number of threads and the instruction set; the committed files use two threads and the generic
// set.

#include <span>
#include <string>
#include <string_view>

namespace thimble::bench {

struct BookFigure {
  std::string_view name;  ///< file name without ".svg"; begins with the chapter's number
  std::string_view caption;
  std::string (*draw)();
};

/// All pictures in the order of chapters.
std::span<const BookFigure> book_figures();

std::string draw_committed_bar();    ///< committed bytes of the quickstart
std::string draw_kept_graph();       ///< values between the operators of a small net; marks the kept ones
std::string draw_layer_terms();      ///< tensors that one layer of a GPT keeps, by formula
std::string draw_step_bars();        ///< parameters, gradients, state and activations of named models
std::string draw_step_timeline();    ///< live bytes of a step, event by event
std::string draw_known_schedules();  ///< four schedules of a chain of equal stages
std::string draw_rotor_schedules();  ///< Rotor's schedules of the toy chain
std::string draw_rotor_staircase();
std::string draw_budget_staircase();  ///< all plans of a planner for a model
std::string draw_planned_timeline();  ///< live bytes of a step within a budget
std::string draw_address_map();       ///< blocks of a step, placed on demand and offline
std::string draw_slide_puzzle();      ///< blocks before and after compaction
std::string draw_six_rectangles();    ///< six rectangles that first fit does not pack
std::string draw_accumulation();      ///< bytes against the number of micro-batches
std::string draw_parameter_bytes();   ///< bytes per parameter under training policies
std::string draw_lost_updates();      ///< a bf16 weight that does not move, and three that do
std::string draw_fp8_grid();          ///< the numbers of E4M3
std::string draw_layer_errors();      ///< error through the layers of a net in 8 bits
std::string draw_rank_bytes();        ///< model state on each rank
std::string draw_pipelines();         ///< three pipeline schedules on four stages
std::string draw_advice();            ///< common advice and its effect on one step

}  // namespace thimble::bench
