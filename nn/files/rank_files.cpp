#include <thimble/nn/files/rank_files.h>

#include <algorithm>
#include <exception>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/outputs.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/dist/shard_store.h>
#include <thimble/dist/transit.h>
#include <thimble/dist/window.h>
#include <thimble/nn/files/cut_tensors.h>

namespace thimble::nn {

namespace {

using Append = FunctionRef<void(const NamedTensor&)>;

dist::Communicator& all_ranks(dist::DataParallel& parallel) {
  dist::Communicator* const all = parallel.options().group.all;
  return all != nullptr ? *all : parallel.communicator();
}

/// The range of a state tensor of `state` elements that belongs to a range of its parameter.
dist::Range state_range(const dist::Range& range, std::int64_t parameter, std::int64_t state) {
  if (range.size() == parameter) return {0, state};
  const std::int64_t each = state == parameter ? 1 : kernels::state_block;
  const auto count = [&](std::int64_t elements) { return (elements + each - 1) / each; };
  return {count(range.begin), count(range.end)};
}

/// All messages of the ranks, stage by stage and parameter by parameter. Rank 0 assembles; others mirror its calls.
class Gathering {
 public:
  Gathering(const Module& module, dist::DataParallel& parallel, std::span<const StageOutline> later, Append append)
      : module_(module),
        parallel_(parallel),
        all_(all_ranks(parallel)),
        own_(stage_outline(module, parallel)),
        later_(later),
        assembly_(append) {}

  /// Parameters that rank 0 lacks or has shards of, under names that begin with `prefix`, in the file's layout if
  /// `has_layouts`, otherwise in memory's.
  void parameters(const std::string& prefix, bool has_layouts) {
    const dist::ShardStore* const store = parallel_.store();
    of_each_stage([&](const StageOutline& stage) {
      for (std::size_t i = 0; i < stage.parameters.size(); ++i) {
        const StageOutline::Parameter& p = stage.parameters[i];
        if (!stage.is_stored && p.shard == std::nullopt && stage.first_rank == 0) continue;
        NamedTensor whole = p.whole;
        whole.name = prefix + whole.name;
        if (!has_layouts) whole.layout = FileLayout::same;
        Tensor own;
        if (&stage == &own_) own = parallel_.whole()[i].tensor;
        if (&stage == &own_ && store != nullptr) own = store->shard(*own.storage());
        bring(stage, p, stage.is_stored, {&whole, 1}, {&own, 1});
      }
    });
  }

  /// Buffers that rank 0 lacks.
  void buffers(const std::string& prefix) {
    of_each_stage([&](const StageOutline& stage) {
      if (stage.first_rank == 0) return;
      const std::vector<NamedTensor> own = &stage == &own_ ? module_.buffers() : std::vector<NamedTensor>();
      for (std::size_t i = 0; i < stage.buffers.size(); ++i) {
        if (all_.rank() != 0 && all_.rank() != stage.first_rank) continue;
        FileTensor t{stage.buffers[i], own.empty() ? Tensor() : own[i].tensor};
        t.whole.name = prefix + t.whole.name;
        if (own.empty()) t.here = room(t.whole.tensor.shape(), t.whole.tensor.dtype());
        move(stage.first_rank, {t});
      }
    });
  }

  /// The state of all parameters, in this rank's order.
  void state(const optim::Optimizer& optimizer, const WholeState& whole) {
    of_each_stage([&](const StageOutline& stage) {
      std::size_t next = 0, own_index = 0;
      const auto bring_next = [&](std::span<const Tensor> own) {
        const StageOutline::Parameter& p = stage.parameters[next++];
        bring(stage, p, stage.zero > 0, whole.at(p.whole.name), own);
      };
      if (&stage == &own_) {
        optimizer.each_state([&](std::span<const optim::Named> state) {
          const std::string& name = optimizer.parameters()[own_index++].name;
          while (parallel_.whole()[next].name != name) bring_next({});
          std::vector<Tensor> own;
          for (const optim::Named& s : state) own.push_back(s.tensor);
          bring_next(own);
        });
      }
      while (next < stage.parameters.size()) bring_next({});
    });
  }

 private:
  /// This rank's stage; on rank 0 also the later stages.
  void of_each_stage(FunctionRef<void(const StageOutline&)> f) {
    f(own_);
    if (all_.rank() > 0) return;
    for (const StageOutline& stage : later_) f(stage);
  }

  Tensor room(const Shape& shape, DType dtype) const {
    const PathScope path = dist::ranks_path();
    return Tensor::empty(shape, dtype, parallel_.whole().front().tensor.device(), memory::Category::communication);
  }

  /// Moves a parameter, or its state, from the owners to rank 0. `own`: this rank's tensors.
  void bring(const StageOutline& stage, const StageOutline::Parameter& parameter, bool is_shared_out,
             std::span<const NamedTensor> wholes, std::span<const Tensor> own) {
    const int shard_count = parameter.shard ? stage.group : 1;
    for (int p = 0; p < shard_count; ++p) {
      const std::int64_t of_shard = parameter.elements(p);
      const std::vector<StageOutline::Owned> all{{0, {0, of_shard}}};
      for (const StageOutline::Owned& owned : is_shared_out ? parameter.shards[static_cast<std::size_t>(p)] : all) {
        const int from = stage.first_rank + owned.rank * stage.group + p;
        if (all_.rank() > 0 && from != all_.rank()) continue;
        std::vector<FileTensor> parts;
        for (std::size_t k = 0; k < wholes.size(); ++k) {
          FileTensor& t = parts.emplace_back(FileTensor{wholes[k], from == all_.rank() ? own[k] : Tensor()});
          if (parameter.shard) t.shard = parameter.shard, t.shard->index = p;
          if (wholes[k].layout != FileLayout::same) t.shard = init::ShardOf{wholes[k].tensor.shape()};
          // A shard's state has an element for each of the shard's.
          const std::int64_t elements = parameter.shard ? of_shard : wholes[k].tensor.elements();
          const dist::Range range = state_range(owned.range, of_shard, elements);
          t.first = range.begin;
          if (from != all_.rank()) t.here = room({range.size()}, wholes[k].tensor.dtype());
        }
        move(from, parts);
      }
    }
  }

  /// Moves tensors of `from` to rank 0, the only rank with room for them.
  void move(int from, const std::vector<FileTensor>& parts) {
    if (from > 0) {
      dist::Transit transit;
      for (const FileTensor& t : parts) {
        all_.rank() == 0 ? transit.receive(from, t.here) : transit.send(0, t.here);
      }
      transit.begin(all_);
      transit.wait();
    }
    if (all_.rank() > 0) return;
    for (const FileTensor& t : parts) assembly_.put(t);
  }

  const Module& module_;
  dist::DataParallel& parallel_;
  dist::Communicator& all_;
  StageOutline own_;
  std::span<const StageOutline> later_;
  Assembly assembly_;
};

/// The error that all ranks throw.
struct Verdict {
  std::uint64_t text_bytes = 0;
  std::uint64_t is_not_finite = 0;
};

/// Rank 0 sends the outcome; the others throw its error.
void agree(dist::DataParallel& parallel, const std::exception_ptr& error) {
  Verdict verdict;
  std::string text;
  if (error) {
    try {
      std::rethrow_exception(error);
    } catch (const NotFiniteError& e) {
      text = e.what();
      verdict.is_not_finite = 1;
    } catch (const std::exception& e) {
      text = e.what();
    }
    verdict.text_bytes = text.size();
  }
  dist::Communicator& all = all_ranks(parallel);
  all.broadcast(&verdict, sizeof(verdict), 0);
  text.resize(verdict.text_bytes);
  if (!text.empty()) all.broadcast(text.data(), text.size(), 0);
  if (text.empty() || all.rank() == 0) return;
  if (verdict.is_not_finite != 0) throw NotFiniteError(text);
  throw Error(text);
}

/// `tell` sends this rank's messages. Ranks can go on after an error of `append`, but of nothing else.
void gather(const Module& module, dist::DataParallel& parallel, std::span<const StageOutline> later, Append append,
            FunctionRef<void(Gathering&)> tell) {
  std::exception_ptr error;
  const auto careful = [&](const NamedTensor& part) {
    if (error) return;
    try {
      append(part);
    } catch (...) {
      error = std::current_exception();
    }
  };
  try {
    Gathering gathering(module, parallel, later, careful);
    tell(gathering);
  } catch (const RankError&) {
    throw;
  } catch (const Error& failure) {
    throw RankError(all_ranks(parallel).rank(), std::string("files: ") + failure.what());
  }
  if (error) std::rethrow_exception(error);
}

constexpr auto append_nothing = [](const NamedTensor&) {};

/// Writes one file of all ranks. On rank 0 `write` begins the file and calls its argument for the other ranks' tensors.
/// The other ranks, and rank 0 if it failed earlier, complete all messages.
void write_together(const Module& module, dist::DataParallel& parallel, std::span<const StageOutline> later,
                    FunctionRef<void(Gathering&)> tell, FunctionRef<void(FunctionRef<void(Append)> each)> write) {
  std::exception_ptr error;
  bool is_gathered = false;
  if (all_ranks(parallel).rank() == 0) {
    try {
      write([&](Append append) {
        is_gathered = true;
        gather(module, parallel, later, append, tell);
      });
    } catch (const RankError&) {
      throw;
    } catch (...) {
      error = std::current_exception();
    }
  }
  if (!is_gathered) gather(module, parallel, later, append_nothing, tell);
  agree(parallel, error);
  if (error) std::rethrow_exception(error);
}

/// A checkpoint's parameters, in memory's layout.
std::vector<NamedTensor> saved_parameters(const Module& module) {
  std::vector<NamedTensor> list = checkpoint_parameters(module);
  for (NamedTensor& p : list) p.layout = FileLayout::same;
  return list;
}

/// Throws ShapeError unless the state of sharded parameters has an element for each of the parameter's.
void check_state(const Module& module, const WholeState& whole) {
  for (const auto& [name, cut] : CutParameters(module)) {
    for (const NamedTensor& s : whole.at(cut.whole)) {
      if (s.tensor.elements() == cut.shard.whole.elements()) continue;
      throw ShapeError("save_checkpoint: state " + quote(s.name) + " has " + std::to_string(s.tensor.elements()) +
                       " elements for a parameter in shards with " + std::to_string(cut.shard.whole.elements()) +
                       "; expected one for each element");
    }
  }
}

/// Divides a file's tensors into rank 0's and assembled ones.
void sort_tensors(const std::vector<NamedTensor>& parameters, const Module& module, dist::DataParallel& parallel,
                  std::span<const StageOutline> later, const std::string& prefix, bool has_layouts,
                  std::vector<NamedTensor>& here, std::vector<NamedTensor>& others) {
  const CutParameters cuts(module);
  for (const NamedTensor& p : parameters) {
    const FileTensor t = cuts.of_parameter(p, prefix);
    if (!t.shard && parallel.store() == nullptr) {
      here.push_back(t.whole);
    } else {
      others.push_back({t.whole.name, outline(t.whole.tensor.shape(), t.whole.tensor.dtype()), t.whole.layout});
    }
  }
  for (const NamedTensor& b : module.buffers()) here.push_back({prefix + b.name, b.tensor});
  for (const StageOutline& stage : later) {
    for (const StageOutline::Parameter& p : stage.parameters) {
      others.push_back({prefix + p.whole.name, p.whole.tensor, has_layouts ? p.whole.layout : FileLayout::same});
    }
    for (const NamedTensor& b : stage.buffers) others.push_back({prefix + b.name, b.tensor});
  }
}

/// The owners of ZeRO's ranges of each parameter, in the order of its elements.
std::vector<std::vector<StageOutline::Owned>> owners_of(const dist::DataParallel& parallel, const StageOutline& stage,
                                                        int part) {
  using Owned = StageOutline::Owned;
  std::vector<optim::Named> parameters;
  for (const StageOutline::Parameter& p : stage.parameters) {
    const Tensor& whole = p.whole.tensor;
    parameters.push_back({p.whole.name, outline({p.elements(part)}, whole.dtype())});
  }
  const dist::BucketOptions& options = parallel.options().buckets;
  const auto range_of = [&](std::size_t i, int rank) {
    const std::size_t number = parallel.whole()[i].tensor.storage()->index_in_store();
    return dist::shard_range(parameters[i].tensor.elements(), parallel.size(), rank, number);
  };
  const std::vector<dist::Bucket> buckets = stage.is_stored
                                                ? dist::make_buckets(parameters, parallel.size(), options, range_of)
                                                : dist::make_buckets(parameters, parallel.size(), options);
  std::vector<std::vector<Owned>> list(parameters.size());
  for (const dist::Bucket& bucket : buckets) {
    for (int r = 0; r < parallel.size(); ++r) {
      for (const dist::Piece& piece : bucket.pieces[static_cast<std::size_t>(r)]) {
        list[piece.parameter].push_back({r, {piece.begin, piece.end}});
      }
    }
  }
  for (std::vector<Owned>& of_one : list) {
    std::sort(of_one.begin(), of_one.end(),
              [](const Owned& a, const Owned& b) { return a.range.begin < b.range.begin; });
  }
  return list;
}

}  // namespace

WholeState whole_state(const optim::Optimizer& of_all) {
  WholeState list;
  std::size_t index = 0;
  of_all.each_state([&](std::span<const optim::Named> state) {
    std::vector<NamedTensor>& of_one = list[of_all.parameters()[index++].name];
    for (const optim::Named& s : state) {
      of_one.push_back({"optimizer." + s.name, outline(s.tensor.shape(), s.tensor.dtype())});
    }
  });
  return list;
}

void visit_save(const Module& module, dist::DataParallel& parallel, const optim::Optimizer& optimizer,
                const WholeState& whole, std::span<const StageOutline> later) {
  check_state(module, whole);
  gather(module, parallel, later, append_nothing, [&](Gathering& all) {
    all.parameters("model.", false);
    all.buffers("model.");
    all.state(optimizer, whole);
  });
}

void visit_save_weights(const Module& module, dist::DataParallel& parallel, std::span<const StageOutline> later) {
  gather(module, parallel, later, append_nothing, [&](Gathering& all) {
    all.parameters("", true);
    all.buffers("");
  });
}

void save_checkpoint(const std::string& path, const Module& module, dist::DataParallel& parallel,
                     const optim::Optimizer& optimizer, const WholeState& whole, const RandomGenerator& generator,
                     const Metadata& metadata, const optim::GradScaler* scaler, std::span<const StageOutline> later,
                     bool overwrites) {
  check_state(module, whole);
  const auto tell = [&](Gathering& all) {
    all.parameters("model.", false);
    all.buffers("model.");
    all.state(optimizer, whole);
  };
  write_together(module, parallel, later, tell, [&](FunctionRef<void(Append)> each) {
    std::vector<NamedTensor> here, others;
    sort_tensors(saved_parameters(module), module, parallel, later, "model.", false, here, others);
    for (const auto& [name, of_one] : whole) others.insert(others.end(), of_one.begin(), of_one.end());
    check_kind({"save_checkpoint", path, &file_kinds::checkpoint}, overwrites);
    write_tensor_file(path, here, others,
                      format_checkpoint_info(checkpoint_info(module, optimizer, generator, metadata, scaler)), each,
                      Numbers::finite);
  });
}

void save_weights(const std::string& path, const Module& module, dist::DataParallel& parallel, const Metadata& metadata,
                  std::span<const StageOutline> later) {
  const auto tell = [&](Gathering& all) {
    all.parameters("", true);
    all.buffers("");
  };
  write_together(module, parallel, later, tell, [&](FunctionRef<void(Append)> each) {
    std::vector<NamedTensor> here, others;
    sort_tensors(module.parameters(), module, parallel, later, "", true, here, others);
    write_tensor_file(path, here, others, metadata, each);
  });
}

void refuse_checkpoint(const Module& module, dist::DataParallel& parallel, const optim::Optimizer& optimizer,
                       const WholeState& whole, const std::string& why, std::span<const StageOutline> later) {
  visit_save(module, parallel, optimizer, whole, later);
  agree(parallel, std::make_exception_ptr(Error(why)));
}

Metadata load_checkpoint(const std::string& path, Module& module, optim::Optimizer& optimizer, const WholeState& whole,
                         RandomGenerator& generator, optim::GradScaler* scaler, std::span<const NamedTensor> others) {
  std::vector<NamedTensor> outlines(others.begin(), others.end());
  for (const auto& [name, of_one] : whole) outlines.insert(outlines.end(), of_one.begin(), of_one.end());
  return load_checkpoint(path, module, optimizer, generator, scaler, outlines);
}

std::int64_t StageOutline::Parameter::elements(int index) const {
  if (!shard) return whole.tensor.elements();
  init::ShardOf own = *shard;
  own.index = index;
  return own.shape().elements();
}

StageOutline stage_outline(const Module& module, const dist::DataParallel& parallel) {
  StageOutline stage;
  const dist::GroupShards& group = parallel.options().group;
  stage.group = group.ranks != nullptr ? group.ranks->size() : 1;
  const int place = parallel.rank() * stage.group + (group.ranks != nullptr ? group.ranks->rank() : 0);
  stage.first_rank = group.all != nullptr ? group.all->rank() - place : 0;
  stage.zero = parallel.options().zero;
  stage.is_stored = parallel.store() != nullptr;
  const CutParameters cuts(module);
  std::map<std::string_view, FileLayout> layouts;
  const std::vector<NamedTensor> list = module.parameters();
  for (const NamedTensor& p : list) layouts[p.name] = p.layout;
  for (std::size_t i = 0; i < parallel.whole().size(); ++i) {
    const optim::Named& p = parallel.whole()[i];
    const FileTensor t = cuts.of_parameter({p.name, p.tensor, layouts.at(p.name)});
    const NamedTensor whole{t.whole.name, outline(t.whole.tensor.shape(), p.tensor.dtype()), t.whole.layout};
    stage.parameters.push_back({whole, t.shard, {}});
  }
  for (int member = 0; member < stage.group; ++member) {
    std::vector<std::vector<StageOutline::Owned>> owners = owners_of(parallel, stage, member);
    for (std::size_t i = 0; i < owners.size(); ++i) {
      StageOutline::Parameter& p = stage.parameters[i];
      if (p.shard || member == 0) p.shards.push_back(std::move(owners[i]));
    }
  }
  for (const NamedTensor& b : module.buffers()) {
    stage.buffers.push_back({b.name, outline(b.tensor.shape(), b.tensor.dtype())});
  }
  return stage;
}

}  // namespace thimble::nn
