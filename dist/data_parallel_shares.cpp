// Messages between ranks other than gradients: losses, norms, state, parameters.

#include <algorithm>
#include <utility>
#include <vector>

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/dist/data_parallel.h>
#include <thimble/dist/parts/parts.h>
#include <thimble/dist/transit.h>
#include <thimble/dist/window.h>
#include <thimble/optim/clip.h>

namespace thimble::dist {
namespace data_parallel_detail {

std::int64_t stretches(std::int64_t elements) { return (elements + shard_grain - 1) / shard_grain; }

}  // namespace data_parallel_detail

/// Row r of (size(), n) is rank r's; afterwards all rows are here.
void DataParallel::share_rows(const Tensor& rows) {
  const std::int64_t n = rows.size(1);
  Transit transit;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    transit.send(r, window_of(rows, rank() * n, {n}));
    transit.receive(r, window_of(rows, r * n, {n}));
  }
  transit.begin(ranks_);
  transit.wait();
}

Tensor DataParallel::sum_losses(std::span<const Tensor> own) {
  const Tensor& first = own.front();
  const auto n = static_cast<std::int64_t>(own.size());
  const PathScope path = ranks_path();
  const Tensor rows = Tensor::empty({size(), n}, first.dtype(), first.device(), Category::communication);
  for (std::int64_t i = 0; i < n; ++i) {
    const Tensor& loss = own[static_cast<std::size_t>(i)];
    copy_into(window_of(rows, rank() * n + i, loss.shape()), loss);
  }
  share_rows(rows);
  Tensor total;
  for (std::int64_t i = 0; i < n; ++i) {
    for (int r = 0; r < size(); ++r) {
      const Tensor loss = window_of(rows, r * n + i, first.shape());
      total = total.defined() ? add(total, loss) : clone(loss);
    }
  }
  return total;
}

Tensor DataParallel::gradient_square_sums(const optim::Optimizer& optimizer) {
  const Tensor own = own_square_sums(optimizer);
  if (options_.parts.ranks == nullptr || !own.defined()) return own;
  std::vector<int> layers;  // of the parameters with a gradient
  for (std::size_t i = 0; i < whole_.size(); ++i) {
    if (has_gradient_[i]) layers.push_back(options_.parts.layers[i]);
  }
  return of_all_parts(*options_.parts.ranks, own, layers);
}

std::int64_t DataParallel::square_sums_to(int chunk) const {
  const std::vector<int>& chunks = options_.buckets.chunks;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < whole_.size(); ++i) {
    if (!has_gradient_[i] || (!chunks.empty() && chunks[i] > chunk)) continue;
    const bool is_cut = options_.parts.ranks != nullptr && options_.parts.layers[i] >= 0;
    count += is_cut ? options_.parts.ranks->size() : 1;
  }
  return count;
}

/// For the parameters that this rank computes with.
Tensor DataParallel::own_square_sums(const optim::Optimizer& optimizer) {
  if (is_gathered()) return optim::gradient_square_sums(optimizer.parameters());
  const PathScope path = ranks_path();
  // All ranges, by rank; of each the pieces by bucket.
  std::vector<std::int64_t> begins = {0};
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> of_parameter(whole_.size());  // begin, place
  for (std::size_t r = 0; r < static_cast<std::size_t>(size()); ++r) {
    std::int64_t at = begins.back();
    for (const Bucket& bucket : buckets_) {
      for (const Piece& piece : bucket.pieces[r]) {
        if (!has_gradient_[piece.parameter]) continue;
        of_parameter[piece.parameter].push_back({piece.begin, at});
        at += data_parallel_detail::stretches(piece.end - piece.begin);
      }
    }
    begins.push_back(at);
  }
  if (begins.back() == 0) return Tensor();
  const memory::Device device = whole_.front().tensor.device();
  const Tensor all = Tensor::empty({begins.back()}, DType::f64, device, Category::communication);
  const auto rows_of = [&](int r) {
    const auto k = static_cast<std::size_t>(r);
    return window_of(all, begins[k], {begins[k + 1] - begins[k]});
  };
  launch(device, [&](const Addresses& at) {
    double* to = at.as<double>(all) + begins[static_cast<std::size_t>(rank())];
    std::vector<kernels::SquareSumArgs> list;
    for (const Bucket& bucket : buckets_) {
      for (const Piece& piece : bucket.pieces[static_cast<std::size_t>(rank())]) {
        if (!has_gradient_[piece.parameter]) continue;
        const Tensor& gradient = updated_[updated_at_[piece.parameter]].tensor.grad();
        const auto* const from = static_cast<const std::byte*>(at(gradient));
        for (std::int64_t k = 0; k < gradient.elements(); k += shard_grain) {
          list.push_back({std::min(shard_grain, gradient.elements() - k),
                          from + k * static_cast<std::int64_t>(size_of(gradient.dtype())), gradient.dtype(), to++});
        }
      }
    }
    kernels::optimizer_kernels(device).square_sums(list);
  });
  Transit transit;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    transit.send(r, rows_of(rank()));
    transit.receive(r, rows_of(r));
  }
  transit.begin(ranks_);
  transit.wait();
  std::int64_t count = 0;
  for (const auto& pieces : of_parameter) count += pieces.empty() ? 0 : 1;
  Tensor sums = Tensor::empty({count}, DType::f64, device, Category::workspace);
  sums.set_tape_ref({}, Origin::gradient);
  const auto fold = [&](const double* from, double* to) {
    for (std::size_t i = 0; i < whole_.size(); ++i) {
      if (of_parameter[i].empty()) continue;
      std::sort(of_parameter[i].begin(), of_parameter[i].end());
      double sum = 0;
      for (std::size_t k = 0; k < of_parameter[i].size(); ++k) {
        const auto [begin, place] = of_parameter[i][k];
        const std::int64_t end =
            k + 1 < of_parameter[i].size() ? of_parameter[i][k + 1].first : whole_[i].tensor.elements();
        for (std::int64_t s = 0; s < data_parallel_detail::stretches(end - begin); ++s) sum += from[place + s];
      }
      *to++ = sum;
    }
  };
  if (device == cpu) {
    launch(device, [&](const Addresses& at) { fold(at.as<double>(all), at.as<double>(sums)); });
  } else if (!device.is_dry) {
    std::vector<double> host(static_cast<std::size_t>(count));
    fold(to_host<double>(all).data(), host.data());
    copy_into(sums, from_host(host, {count}, device));
  }
  return sums;
}

void DataParallel::share_state(Transaction& transaction) {
  std::vector<StateUpdate>& updates = transaction.deferred();
  if (updates.empty()) return;
  const PathScope path = ranks_path();
  std::int64_t elements = 0;
  for (const StateUpdate& u : updates) elements += u.found.defined() ? u.found.elements() : 0;
  Tensor rows;
  if (elements > 0) {
    rows = Tensor::empty({size(), elements}, DType::f64, whole_.front().tensor.device(), Category::communication);
    std::int64_t at = rank() * elements;
    for (const StateUpdate& u : updates) {
      if (!u.found.defined()) continue;
      copy_into(window_of(rows, at, u.found.shape()), u.found);
      at += u.found.elements();
    }
    share_rows(rows);
  }
  std::size_t first = 0;
  std::int64_t first_at = 0;
  while (first < updates.size()) {  // the findings of one forward or backward, of all ranks
    std::size_t end = first;
    while (end < updates.size() && updates[end].micro_batch == updates[first].micro_batch) ++end;
    std::int64_t at = first_at;
    for (int r = 0; r < size(); ++r) {
      at = first_at;
      for (std::size_t i = first; i < end; ++i) {
        StateUpdate update = updates[i];
        if (update.found.defined()) {
          update.found = window_of(rows, r * elements + at, updates[i].found.shape());
          at += update.found.elements();
        }
        update.apply(update);
      }
    }
    first = end;
    first_at = at;
  }
  updates.clear();
}

void DataParallel::share_parameters() {
  if (is_gathered() || store_ != nullptr || size() == 1) return;
  for (const Bucket& bucket : buckets_) {
    Transit transit;
    const auto window = [&](const Piece& piece) {
      return window_of(whole_[piece.parameter].tensor, piece.begin, {piece.end - piece.begin});
    };
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      for (const Piece& piece : bucket.pieces[static_cast<std::size_t>(rank())]) {
        if (has_gradient_[piece.parameter]) transit.send(r, window(piece));
      }
      for (const Piece& piece : bucket.pieces[static_cast<std::size_t>(r)]) {
        if (has_gradient_[piece.parameter]) transit.receive(r, window(piece));
      }
    }
    transit.begin(ranks_);
    transit.wait();
  }
}

}  // namespace thimble::dist
