#pragma once
// A lower bound of the time that recomputing takes in a number of bytes.
//
// Proof. Take any way of running forward, re-runs and backwards, whatever is run again and however often, that runs the
// backwards after the forward and from the last operator to the first. Look at the moment when the backward of operator
// v begins. Let K be the tensors in memory, all inputs of this backward among them. Each tensor that a later backward
// reads is in K or is made by an operator that runs again after this moment, and so is each tensor that such an
// operator takes. So K and the set R of the operators that run again are a choice as kept_space.h describes them, of
// the operators up to v, where the tensors that v reads are given. The kept tensors of the choice are part of K: their
// bytes and the ones that v reads are at most the bytes there are. The time of R is at least the least cost of a choice
// within these bytes, and that is at least the lower convex hull of all choices at these bytes (Lagrangian relaxation,
// Everett 1963), which minimum cuts give exactly. The bound is the largest of several v, the last operator among them.
// Gradients and temporaries count nothing, because some are windows of others. Where the temporaries of backwards are
// memory apart, the ones of v are not there for K, either: "begins" is then the worst moment of v's backward.

#include <cstddef>
#include <memory>
#include <vector>

#include <thimble/memory/remat/kept_space.h>

namespace thimble::remat {

class TimeBound {
 public:
  /// Throws ValueError as validate(graph) does.
  explicit TimeBound(const Graph& graph, bool counts_temporaries = false);

  /// The time that any run which holds at most `bytes` of the graph's tensors at each moment pays beyond one that keeps
  /// everything. More bytes never give more.
  Time at(Bytes bytes);

 private:
  struct Moment {
    Bytes read_bytes = 0;                // by the backward of the moment, with its temporaries where they count
    std::unique_ptr<const Graph> graph;  // the space points to it
    std::unique_ptr<KeptSpace> space;
  };
  std::vector<Moment> moments_;
};

}  // namespace thimble::remat
