#include <thimble/dist/checkpoint.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/dist/shard_store.h>
#include <thimble/dist/transit.h>
#include <thimble/dist/window.h>

namespace thimble::dist {
namespace checkpoint_detail {

using Append = FunctionRef<void(const nn::NamedTensor&)>;

/// Shape and dtype alone.
Tensor outline(const Tensor& t) {
  return Tensor::empty({0}, t.dtype(), cpu).window(t.shape(), contiguous_strides(t.shape()), 0);
}

/// What a rank has of a parameter.
struct Owned {
  int rank;
  Range range;
};

/// Who has what of parameter `index`, in the order of its elements.
std::vector<Owned> owners(const DataParallel& parallel, std::size_t index) {
  std::vector<Owned> list;
  for (const Bucket& bucket : parallel.buckets()) {
    for (int r = 0; r < parallel.size(); ++r) {
      for (const Piece& piece : bucket.pieces[static_cast<std::size_t>(r)]) {
        if (piece.parameter == index) list.push_back({r, {piece.begin, piece.end}});
      }
    }
  }
  std::sort(list.begin(), list.end(), [](const Owned& a, const Owned& b) { return a.range.begin < b.range.begin; });
  return list;
}

/// The elements of a state tensor of `state` elements that go with a range of its parameter.
Range state_range(const Range& range, std::int64_t parameter, std::int64_t state) {
  if (range.size() == parameter) return {0, state};
  const std::int64_t each = state == parameter ? 1 : kernels::state_block;
  const auto count = [&](std::int64_t elements) { return (elements + each - 1) / each; };
  return {count(range.begin), count(range.end)};
}

/// Rank 0 gets the tensors of another rank and appends them; it has room for these alone.
void receive(DataParallel& parallel, int from, const std::vector<nn::NamedTensor>& outlines, std::int64_t elements,
             const Range& range, Device device, Append append) {
  const PathScope path = ranks_path();
  std::vector<nn::NamedTensor> parts;
  Transit transit;
  for (const nn::NamedTensor& whole : outlines) {
    const std::int64_t n = state_range(range, elements, whole.tensor.elements()).size();
    parts.push_back({whole.name, Tensor::empty({n}, whole.tensor.dtype(), device, Category::communication)});
    transit.receive(from, parts.back().tensor);
  }
  transit.begin(parallel.communicator());
  transit.wait();
  for (const nn::NamedTensor& part : parts) append(part);
}

void send(DataParallel& parallel, std::span<const optim::Named> tensors) {
  Transit transit;
  for (const optim::Named& t : tensors) transit.send(0, t.tensor);
  transit.begin(parallel.communicator());
  transit.wait();
}

/// Parameters in shards: `model.<name>`.
void gather_parameters(DataParallel& parallel, Append append) {
  const ShardStore* const store = parallel.store();
  if (store == nullptr) return;
  for (std::size_t i = 0; i < parallel.whole().size(); ++i) {
    const optim::Named& p = parallel.whole()[i];
    const Tensor& shard = store->shard(*p.tensor.storage());
    const nn::NamedTensor named{"model." + p.name, outline(p.tensor)};
    for (const Owned& owned : owners(parallel, i)) {
      if (parallel.rank() > 0) {
        if (owned.rank == parallel.rank()) send(parallel, std::vector{optim::Named{p.name, shard}});
      } else if (owned.rank == 0) {
        append({named.name, shard});
      } else {
        receive(parallel, owned.rank, {named}, p.tensor.elements(), owned.range, p.tensor.device(), append);
      }
    }
  }
}

/// Parameter by parameter, rank by rank, each in the order of its own.
void gather_state(DataParallel& parallel, const optim::Optimizer& optimizer, const WholeState& whole, Append append) {
  if (parallel.rank() > 0) {
    if (parallel.options().zero > 0) {
      optimizer.each_state([&](std::span<const optim::Named> state) { send(parallel, state); });
    }
    return;
  }
  std::size_t next = 0;  // parameter
  const auto gather_to_own = [&](const std::span<const optim::Named>* own) {
    for (bool has_own = false; next < whole.size() && !has_own; ++next) {
      const Tensor& parameter = parallel.whole()[next].tensor;
      for (const Owned& owned : owners(parallel, next)) {
        const bool is_own = parallel.options().zero == 0 || owned.rank == 0;
        if (is_own && has_own) continue;  // in stage 0 every rank has all
        if (!is_own) {
          receive(parallel, owned.rank, whole[next], parameter.elements(), owned.range, parameter.device(), append);
          continue;
        }
        has_own = true;
        for (const optim::Named& s : *own) append({"optimizer." + s.name, s.tensor});
      }
    }
  };
  optimizer.each_state([&](std::span<const optim::Named> own) { gather_to_own(&own); });
  gather_to_own(nullptr);
}

/// An error that all ranks throw: how long its text is, and whether it is a NotFiniteError.
struct Verdict {
  std::uint64_t text_bytes = 0;
  std::uint64_t is_not_finite = 0;
};

/// Rank 0 says how it went; the others throw what went wrong.
void agree(DataParallel& parallel, const std::exception_ptr& error) {
  Verdict verdict;
  std::string text;
  if (error) {
    try {
      std::rethrow_exception(error);
    } catch (const nn::NotFiniteError& e) {
      text = e.what();
      verdict.is_not_finite = 1;
    } catch (const std::exception& e) {
      text = e.what();
    }
    verdict.text_bytes = text.size();
  }
  parallel.communicator().broadcast(&verdict, sizeof(verdict), 0);
  text.resize(verdict.text_bytes);
  if (!text.empty()) parallel.communicator().broadcast(text.data(), text.size(), 0);
  if (text.empty() || parallel.rank() == 0) return;
  if (verdict.is_not_finite != 0) throw nn::NotFiniteError(text);
  throw Error(text);
}

/// All that ranks tell each other. Nothing but `append` may fail where ranks are to go on.
void gather(DataParallel& parallel, const optim::Optimizer& optimizer, const WholeState& whole, Append append) {
  std::exception_ptr error;
  const auto careful = [&](const nn::NamedTensor& part) {
    if (error) return;
    try {
      append(part);
    } catch (...) {
      error = std::current_exception();
    }
  };
  try {
    gather_parameters(parallel, careful);
    gather_state(parallel, optimizer, whole, careful);
  } catch (const RankError&) {
    throw;
  } catch (const Error& failure) {
    throw RankError(parallel.rank(), std::string("save_checkpoint: ") + failure.what());
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace checkpoint_detail

WholeState whole_state(const optim::Optimizer& of_all) {
  WholeState list;
  of_all.each_state([&](std::span<const optim::Named> state) {
    std::vector<nn::NamedTensor>& of_one = list.emplace_back();
    for (const optim::Named& s : state) of_one.push_back({"optimizer." + s.name, checkpoint_detail::outline(s.tensor)});
  });
  return list;
}

void visit_save(DataParallel& parallel, const optim::Optimizer& optimizer, const WholeState& whole) {
  checkpoint_detail::gather(parallel, optimizer, whole, [](const nn::NamedTensor&) {});
}

void save_checkpoint(const std::string& path, const nn::Module& module, DataParallel& parallel,
                     const optim::Optimizer& optimizer, const WholeState& whole, const Generator& generator,
                     const nn::Metadata& metadata, const optim::GradScaler* scaler) {
  using namespace checkpoint_detail;
  if (parallel.rank() > 0) {
    visit_save(parallel, optimizer, whole);
    return agree(parallel, nullptr);
  }
  std::exception_ptr error;
  bool is_gathered = false;
  try {
    std::vector<nn::NamedTensor> here, outlines;
    for (const nn::NamedTensor& p : nn::checkpoint_parameters(module)) {
      if (parallel.store() == nullptr) {
        here.push_back({"model." + p.name, p.tensor});
      } else {
        outlines.push_back({"model." + p.name, outline(p.tensor)});
      }
    }
    for (const nn::NamedTensor& b : module.buffers()) here.push_back({"model." + b.name, b.tensor});
    for (const auto& of_one : whole) outlines.insert(outlines.end(), of_one.begin(), of_one.end());
    nn::write_tensor_file(
        path, here, outlines,
        nn::format_checkpoint_info(nn::checkpoint_info(module, optimizer, generator, metadata, scaler)),
        [&](Append append) {
          is_gathered = true;
          gather(parallel, optimizer, whole, append);
        },
        nn::Numbers::finite);
  } catch (const RankError&) {
    throw;
  } catch (...) {
    error = std::current_exception();
  }
  if (!is_gathered) visit_save(parallel, optimizer, whole);
  agree(parallel, error);
  if (error) std::rethrow_exception(error);
}

void refuse_checkpoint(DataParallel& parallel, const optim::Optimizer& optimizer, const WholeState& whole,
                       const std::string& why) {
  visit_save(parallel, optimizer, whole);
  checkpoint_detail::agree(parallel, std::make_exception_ptr(Error(why)));
}

nn::Metadata load_checkpoint(const std::string& path, nn::Module& module, optim::Optimizer& optimizer,
                             const WholeState& whole, Generator& generator, optim::GradScaler* scaler) {
  std::vector<nn::NamedTensor> outlines;
  for (const auto& of_one : whole) outlines.insert(outlines.end(), of_one.begin(), of_one.end());
  return nn::load_checkpoint(path, module, optimizer, generator, scaler, outlines);
}

}  // namespace thimble::dist
