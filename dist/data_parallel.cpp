#include <thimble/dist/data_parallel.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/core/error.h>
#include <thimble/core/files/crc32c.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/dist/alike.h>
#include <thimble/dist/fold.h>
#include <thimble/dist/shard_store.h>
#include <thimble/dist/sharding/operators.h>
#include <thimble/dist/transit.h>
#include <thimble/dist/window.h>
#include <thimble/memory/units.h>
#include <thimble/optim/clip.h>

namespace thimble::dist {
namespace {

constexpr std::size_t none = ~std::size_t{0};

void set_gradient(const Tensor& parameter, Tensor gradient) {
  if (tape::Transaction* const step = context().transaction) step->stage_gradient(parameter.leaf());
  gradient.set_tape_ref({}, tape::Origin::gradient);
  parameter.grad() = std::move(gradient);
}

/// Visits every rank's ranges of a parameter.
void for_each_piece(const Bucket& bucket, std::size_t parameter, FunctionRef<void(const Piece&)> f) {
  for (const std::vector<Piece>& pieces : bucket.pieces) {
    for (const Piece& piece : pieces) {
      if (piece.parameter == parameter) f(piece);
    }
  }
}

}  // namespace

struct DataParallel::Moves {
  /// The bucket in flight.
  struct Flight {
    std::size_t bucket;
    bool is_last;     // of the step
    Tensor incoming;  // (size() - 1, shard): from the other ranks in their order
    Transit transit;
  };
  std::optional<Flight> flight;
  std::deque<Transit> gathers;
};

DataParallel::DataParallel(Communicator& ranks, std::vector<optim::Named> parameters, DataParallelOptions options)
    : ranks_(ranks),
      whole_(std::move(parameters)),
      options_(options),
      buckets_(buckets_of(options)),
      updated_at_(whole_.size(), none),
      loads_(buckets_.size()),
      moves_(std::make_unique<Moves>()),
      has_gradient_(whole_.size(), false),
      sums_alone_(size() == 1 ? whole_.size() : 0) {
  int chunks = 1;
  for (const int chunk : options_.buckets.chunks) chunks = std::max(chunks, chunk + 1);
  micro_batch_.resize(static_cast<std::size_t>(chunks));
  make_leaves();
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = buckets_[b];
    loads_[b].has.resize(bucket.parameters.size());
    for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
      places_.push_back({whole_[bucket.parameters[k]].tensor.leaf().get(), b, k});
    }
  }
  const auto before = [](const Place& a, const Place& b) { return std::less<const tape::Leaf*>()(a.leaf, b.leaf); };
  std::sort(places_.begin(), places_.end(), before);
  for (std::size_t k = 1; k < places_.size(); ++k) {
    if (places_[k].leaf != places_[k - 1].leaf) continue;
    const Place& twice = places_[k];
    throw ValueError("data parallel: " + whole_[buckets_[twice.bucket].parameters[twice.at]].name + " is listed twice");
  }
}

DataParallel::~DataParallel() { drop_gradients(); }

std::vector<Bucket> DataParallel::buckets_of(const DataParallelOptions& options) {
  if (options.zero < 0 || options.zero > 3) {
    throw ValueError("data parallel: stage " + std::to_string(options.zero) + " of ZeRO; expected 0 to 3");
  }
  if (options.zero < 3) return make_buckets(whole_, size(), options.buckets);
  for (const optim::Named& p : whole_) {
    const memory::Storage* const storage = p.tensor.storage().get();
    const auto store = storage != nullptr ? std::dynamic_pointer_cast<ShardStore>(storage->store()) : nullptr;
    if (store == nullptr || (store_ != nullptr && store != store_)) {
      throw ValueError("data parallel: in stage 3 of ZeRO all parameters are in one ShardStore; " + p.name + " is not");
    }
    store_ = store;
  }
  return make_buckets(whole_, size(), options.buckets,
                      [&](std::size_t i, int rank) { return store_->range(*whole_[i].tensor.storage(), rank); });
}

void DataParallel::make_leaves() {
  if (store_ != nullptr) store_->let_go();  // writes back parameters changed since construction to their shards
  std::vector<const tape::Leaf*> leaves;
  std::vector<const Piece*> mine(whole_.size(), nullptr);
  for (const Bucket& bucket : buckets_) {
    for (const Piece& piece : bucket.pieces[static_cast<std::size_t>(rank())]) mine[piece.parameter] = &piece;
  }
  for (std::size_t i = 0; i < whole_.size(); ++i) {
    const optim::Named& p = whole_[i];
    if (!p.tensor.leaf()) throw AutogradError("data parallel: " + p.name + " is not a leaf");
    if (!p.tensor.is_contiguous()) throw ValueError("data parallel: " + p.name + " is not dense");
    if (p.tensor.elements() == 0) throw ValueError("data parallel: " + p.name + " has no elements to share");
    leaves.push_back(p.tensor.leaf().get());
    const bool is_whole = is_gathered() || (mine[i] != nullptr && mine[i]->end - mine[i]->begin == p.tensor.elements());
    if (!is_whole && mine[i] == nullptr) continue;
    updated_at_[i] = updated_.size();
    if (is_whole && store_ == nullptr) {
      updated_.push_back(p);
      continue;
    }
    Shape shape = p.tensor.shape();
    if (!is_whole) {
      for (int axis = 0; axis < shape.rank(); ++axis) shape[axis] = 1;
      shape[shape.rank() - 1] = mine[i]->end - mine[i]->begin;
    }
    Tensor shard = store_ != nullptr ? window_of(store_->shard(*p.tensor.storage()), 0, shape)
                                     : window_of(p.tensor, mine[i]->begin, shape);
    shard.require_grad();
    updated_.push_back({p.name, std::move(shard), mine[i]->begin, is_whole ? 0 : p.tensor.elements()});
  }
  leaves_ = LeafSet(std::move(leaves));
}

Tensor DataParallel::shard_of(const Tensor& all, const Bucket& bucket, int rank) const {
  return window_of(all, bucket.bounds[static_cast<std::size_t>(rank)], {bucket.shard_elements(rank)});
}

void DataParallel::begin_step(const optim::Optimizer& optimizer, std::int64_t micro_batches) {
  const std::vector<optim::Named>& theirs = optimizer.parameters();
  bool is_same = theirs.size() == updated_.size();
  for (std::size_t i = 0; is_same && i < updated_.size(); ++i) {
    is_same = theirs[i].tensor.leaf() == updated_[i].tensor.leaf();
  }
  if (!is_same) {
    throw ValueError(std::string("data parallel: expected ") + optimizer.name() +
                     " to be made of DataParallel::parameters(), " + std::to_string(updated_.size()) +
                     " tensors, got one of " + std::to_string(theirs.size()) +
                     " other tensors; make it of those, after DataParallel and in the same run");
  }
  optim::check_members(whole_);
  for (const optim::Named& p : updated_) {
    if (p.is_part() && !optimizer.is_elementwise()) {
      throw ValueError(
          std::string("data parallel: ") + optimizer.name() + " needs whole parameters, and " + p.name + " is cut" +
          (store_ == nullptr ? "; BucketOptions::keeps_parameters keeps them whole"
                             : "; up to stage 2 of ZeRO, BucketOptions::keeps_parameters keeps them whole"));
    }
  }
  if (!is_compared_) require_alike(optimizer, micro_batches);
  is_compared_ = true;
  begin_step(micro_batches);
}

void DataParallel::require_alike(const optim::Optimizer& optimizer, std::int64_t micro_batches) {
  if (ranks_.is_dry() || size() == 1) return;
  std::vector<Trait> traits = process_traits();
  std::uint32_t outlines = 0, values = 0;
  for (const optim::Named& p : whole_) {
    outlines = crc32c(p.name + " " + describe(p.tensor), outlines);
    // Stored values would have to be fetched; a GPU's values would have to be copied.
    if (p.tensor.device() != cpu || p.tensor.storage()->store() != nullptr) continue;
    const memory::Pin pin(p.tensor);
    values = crc32c(std::span(static_cast<const std::byte*>(pin.data()), p.tensor.bytes()), values);
  }
  const auto sum = [](std::uint32_t crc) { return "crc32c " + std::to_string(crc); };
  traits.push_back({"stage of ZeRO", std::to_string(options_.zero)});
  traits.push_back({"bytes of buckets", std::to_string(options_.buckets.bytes)});
  traits.push_back({"micro-batches", std::to_string(micro_batches)});
  traits.push_back({"optimizer", std::string(optimizer.name()) + ", rate " + format_real(optimizer.rate()) + ", " +
                                     std::to_string(optimizer.step_count()) + " updates done"});
  traits.push_back({"parameters", std::to_string(whole_.size()) + ", " + sum(outlines)});
  traits.push_back({"values of parameters", sum(values), "draw or load the same on all ranks"});
  dist::require_alike(ranks_, "data parallel", traits);
}

void DataParallel::begin_step(std::int64_t micro_batches) {
  for (const optim::Named& p : whole_) {
    if (!p.tensor.grad().defined()) continue;
    throw PlanError("training_step: " + p.name + " has a gradient of before, which the other ranks do not know");
  }
  micro_batches_ = micro_batches;
  std::fill(micro_batch_.begin(), micro_batch_.end(), 0);
  std::fill(has_gradient_.begin(), has_gradient_.end(), false);
}

std::span<const optim::MicroBatch> DataParallel::all_parts(std::span<const optim::MicroBatch> own) {
  const std::size_t n = own.size(), count = static_cast<std::size_t>(size());
  std::vector<optim::MicroBatch> by_rank(n * count);
  for (std::size_t r = 0; r < count; ++r)
    std::copy(own.begin(), own.end(), by_rank.begin() + static_cast<std::ptrdiff_t>(r * n));
  ranks_.all_gather(by_rank.data() + static_cast<std::size_t>(rank()) * n, own.size_bytes(), by_rank.data());
  parts_.clear();
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t r = 0; r < count; ++r) parts_.push_back(by_rank[r * n + i]);
  }
  return parts_;
}

void DataParallel::take_gradient(const std::shared_ptr<tape::Leaf>& leaf) {
  const auto before = [](const Place& p, const tape::Leaf* l) { return std::less<const tape::Leaf*>()(p.leaf, l); };
  const auto found = std::lower_bound(places_.begin(), places_.end(), leaf.get(), before);
  if (found == places_.end() || found->leaf != leaf.get()) return;
  if (!leaf->grad.defined() || leaf->grad.elements() == 0) return;
  if (size() == 1) return add_alone(buckets_[found->bucket].parameters[found->at], std::exchange(leaf->grad, Tensor()));
  if (moves_->flight) moves_->flight->transit.advance();  // MPI moves bytes only during its calls
  put(*found, std::exchange(leaf->grad, Tensor()));
  if (loads_[found->bucket].count == buckets_[found->bucket].parameters.size()) send(found->bucket);
}

void DataParallel::add_alone(std::size_t parameter, Tensor gradient) {
  has_gradient_[parameter] = true;
  Tensor& sum = sums_alone_[parameter];
  if (sum.defined()) {
    add_to(sum, gradient);
  } else {
    sum = contiguous(gradient.detach());
  }
}

void DataParallel::put(const Place& place, Tensor gradient) {
  if (moves_->flight && moves_->flight->bucket == place.bucket) land();  // with the previous micro-batch's gradients
  const Bucket& bucket = buckets_[place.bucket];
  const std::size_t parameter = bucket.parameters[place.at];
  Load& load = loads_[place.bucket];
  if (gradient.dtype() != bucket.dtype) {
    throw DTypeError("data parallel: the gradient of " + whole_[parameter].name + " is " + describe(gradient) +
                     ", expected " + std::string(to_string(bucket.dtype)));
  }
  load.has[place.at] = has_gradient_[parameter] = true;
  ++load.count;
  const memory::Category category = keeps_buckets() ? memory::Category::gradient : memory::Category::communication;
  const bool is_alone = bucket.parameters.size() == 1 && !bucket.offsets.empty() && gradient.is_contiguous() &&
                        gradient.is_unshared() && gradient.storage()->bytes() == gradient.bytes();
  if (is_alone) {  // the gradient is the bucket
    gradient.storage()->set_category(category);
    load.all = window_of(gradient, 0, {bucket.elements});
    return;
  }
  if (!load.all.defined()) {
    const PathScope path = ranks_path();
    load.all = Tensor::empty({bucket.elements}, bucket.dtype, bucket.device, category);
  }
  if (!bucket.offsets.empty()) {
    copy_into(window_of(load.all, bucket.offsets[place.at], gradient.shape()), gradient.detach());
    return;
  }
  const Tensor dense = contiguous(gradient.detach());
  for_each_piece(bucket, parameter, [&](const Piece& piece) {
    const Shape shape{piece.end - piece.begin};
    copy_into(window_of(load.all, piece.at, shape), window_of(dense, piece.begin, shape));
  });
}

void DataParallel::send(std::size_t index) {
  land();
  const Bucket& bucket = buckets_[index];
  const PathScope path = ranks_path();
  moves_->flight.emplace();
  moves_->flight->bucket = index;
  moves_->flight->is_last = micro_batch_[static_cast<std::size_t>(bucket.chunk)] + 1 == micro_batches_;
  const std::int64_t n = bucket.shard_elements(rank());
  if (n > 0 && size() > 1) {
    moves_->flight->incoming =
        Tensor::empty({size() - 1, n}, bucket.dtype, bucket.device, memory::Category::communication);
  }
  for (int r = 0, row = 0; r < size(); ++r) {
    if (r == rank()) continue;
    moves_->flight->transit.send(r, shard_of(loads_[index].all, bucket, r));
    if (n > 0) moves_->flight->transit.receive(r, window_of(moves_->flight->incoming, row * n, {n}));
    ++row;
  }
  moves_->flight->transit.begin(ranks_);
}

/// Receives the bucket in flight and sums this rank's shard.
void DataParallel::land() {
  if (!moves_->flight) return;
  const std::size_t index = moves_->flight->bucket;
  Load& load = loads_[index];
  moves_->flight->transit.wait();
  sum(index, moves_->flight->incoming);
  const bool is_last = moves_->flight->is_last;
  moves_->flight.reset();
  std::fill(load.has.begin(), load.has.end(), false);
  load.count = 0;
  if (!keeps_buckets()) load.all = Tensor();
  if (is_last && is_gathered()) gather(index);
}

/// ((sum + g of rank 0) + g of rank 1) + ..., on top of the sum of earlier micro-batches, if any.
void DataParallel::sum(std::size_t index, const Tensor& incoming) {
  const Bucket& bucket = buckets_[index];
  Load& load = loads_[index];
  const std::int64_t n = bucket.shard_elements(rank());
  if (n == 0) return;
  const Tensor own = shard_of(load.all, bucket, rank());
  const auto gradient_of = [&](int r) {
    return r == rank() ? own : window_of(incoming, (r < rank() ? r : r - 1) * n, {n});
  };
  if (sums_in_place()) {  // own = (g of earlier ranks) + own: a sum of two has the same bits in either order
    for (int r = 1; r < rank(); ++r) add_to(gradient_of(0), gradient_of(r));
    if (rank() > 0) add_to(own, gradient_of(0));
    for (int r = rank() + 1; r < size(); ++r) add_to(own, gradient_of(r));
    return;
  }
  if (!load.has_sum) {
    const PathScope path = ranks_path();
    load.mine = Tensor::empty({n}, bucket.dtype, bucket.device, memory::Category::gradient);
    copy_into(load.mine, gradient_of(0));
  }
  for (int r = load.has_sum ? 0 : 1; r < size(); ++r) add_to(load.mine, gradient_of(r));
  load.has_sum = true;
}

/// Begins an all-gather of the sums.
void DataParallel::gather(std::size_t index) {
  const Bucket& bucket = buckets_[index];
  Load& load = loads_[index];
  if (load.has_sum) {
    copy_into(shard_of(load.all, bucket, rank()), load.mine);
    load.mine = Tensor();
    load.has_sum = false;
  }
  Transit& transit = moves_->gathers.emplace_back();
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    transit.send(r, shard_of(load.all, bucket, rank()));
    transit.receive(r, shard_of(load.all, bucket, r));
  }
  transit.begin(ranks_);
}

void DataParallel::end_micro_batch(std::size_t chunk) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    Load& load = loads_[b];
    const bool is_sent = moves_->flight && moves_->flight->bucket == b;
    if (load.count == 0 || is_sent) continue;
    const Bucket& bucket = buckets_[b];
    for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
      if (load.has[k]) continue;
      for_each_piece(bucket, bucket.parameters[k],
                     [&](const Piece& piece) { fill(window_of(load.all, piece.at, {piece.end - piece.begin}), 0); });
    }
    send(b);
  }
  ++micro_batch_[chunk];
}

void DataParallel::complete_gradients() {
  land();
  for (Transit& gather : moves_->gathers) gather.wait();
  moves_->gathers.clear();
  for (std::size_t i = 0; i < sums_alone_.size(); ++i) {
    if (!has_gradient_[i]) continue;
    const Tensor& p = updated_[updated_at_[i]].tensor;
    set_gradient(p, window_of(std::exchange(sums_alone_[i], Tensor()), 0, p.shape()));
  }
  for (std::size_t b = 0; size() > 1 && b < buckets_.size(); ++b) set_gradients(b);
  if (store_ != nullptr) store_->let_go();  // an update needs only shards
}

const Tensor& DataParallel::sums_of(std::size_t bucket) const {
  return loads_[bucket].has_sum ? loads_[bucket].mine : loads_[bucket].all;
}

void DataParallel::set_gradients(std::size_t index) {
  const Bucket& bucket = buckets_[index];
  const Load& load = loads_[index];
  if (is_gathered()) {
    for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
      const Tensor& p = whole_[bucket.parameters[k]].tensor;
      if (has_gradient_[bucket.parameters[k]]) set_gradient(p, window_of(load.all, bucket.offsets[k], p.shape()));
    }
    return;
  }
  const std::int64_t begin = load.has_sum ? bucket.bounds[static_cast<std::size_t>(rank())] : 0;
  for (const Piece& piece : bucket.pieces[static_cast<std::size_t>(rank())]) {
    if (!has_gradient_[piece.parameter]) continue;
    const Tensor& p = updated_[updated_at_[piece.parameter]].tensor;
    set_gradient(p, window_of(sums_of(index), piece.at - begin, p.shape()));
  }
}

void DataParallel::drop_gradients() noexcept {
  moves_->flight.reset();
  moves_->gathers.clear();
  for (Tensor& sum : sums_alone_) sum = Tensor();
  for (Load& load : loads_) {
    load.all = load.mine = Tensor();
    std::fill(load.has.begin(), load.has.end(), false);
    load.count = 0;
    load.has_sum = false;
  }
  for (const std::vector<optim::Named>* const list : {&whole_, &updated_}) {
    for (const optim::Named& p : *list) p.tensor.grad() = Tensor();
  }
}

// ---- Messages between ranks other than gradients: losses, norms, state, parameters.

namespace {

std::int64_t stretches(std::int64_t elements) { return (elements + shard_grain - 1) / shard_grain; }

}  // namespace

/// Row r of (size(), n) is rank r's; gathers all rows.
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
  const Tensor rows = Tensor::empty({size(), n}, first.dtype(), first.device(), memory::Category::communication);
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
  if (options_.group.ranks == nullptr || !own.defined()) return own;
  std::vector<int> layers;  // of the parameters with a gradient
  for (std::size_t i = 0; i < whole_.size(); ++i) {
    if (has_gradient_[i]) layers.push_back(options_.group.layers[i]);
  }
  return gather_square_sums(*options_.group.ranks, own, layers);
}

std::int64_t DataParallel::square_sums_to(int chunk) const {
  const std::vector<int>& chunks = options_.buckets.chunks;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < whole_.size(); ++i) {
    if (!has_gradient_[i] || (!chunks.empty() && chunks[i] > chunk)) continue;
    const bool is_cut = options_.group.ranks != nullptr && options_.group.layers[i] >= 0;
    count += is_cut ? options_.group.ranks->size() : 1;
  }
  return count;
}

/// Sums of squares of the parameters that this rank computes with.
Tensor DataParallel::own_square_sums(const optim::Optimizer& optimizer) {
  if (is_gathered()) return optim::gradient_square_sums(optimizer.parameters());
  const PathScope path = ranks_path();
  // All ranges by rank, within a rank by bucket.
  std::vector<std::int64_t> begins = {0};
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> of_parameter(whole_.size());  // begin, place
  for (std::size_t r = 0; r < static_cast<std::size_t>(size()); ++r) {
    std::int64_t at = begins.back();
    for (const Bucket& bucket : buckets_) {
      for (const Piece& piece : bucket.pieces[r]) {
        if (!has_gradient_[piece.parameter]) continue;
        of_parameter[piece.parameter].push_back({piece.begin, at});
        at += stretches(piece.end - piece.begin);
      }
    }
    begins.push_back(at);
  }
  if (begins.back() == 0) return Tensor();
  const memory::Device device = whole_.front().tensor.device();
  const Tensor all = Tensor::empty({begins.back()}, DType::f64, device, memory::Category::communication);
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
  Tensor sums = Tensor::empty({count}, DType::f64, device, memory::Category::workspace);
  sums.set_tape_ref({}, tape::Origin::gradient);
  const auto fold = [&](const double* from, double* to) {
    for (std::size_t i = 0; i < whole_.size(); ++i) {
      if (of_parameter[i].empty()) continue;
      std::sort(of_parameter[i].begin(), of_parameter[i].end());
      double sum = 0;
      for (std::size_t k = 0; k < of_parameter[i].size(); ++k) {
        const auto [begin, place] = of_parameter[i][k];
        const std::int64_t end =
            k + 1 < of_parameter[i].size() ? of_parameter[i][k + 1].first : whole_[i].tensor.elements();
        for (std::int64_t s = 0; s < stretches(end - begin); ++s) sum += from[place + s];
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

void DataParallel::share_state(tape::Transaction& transaction) {
  std::vector<tape::StateUpdate>& updates = transaction.deferred();
  if (updates.empty()) return;
  const PathScope path = ranks_path();
  std::int64_t elements = 0;
  for (const tape::StateUpdate& u : updates) elements += u.found.defined() ? u.found.elements() : 0;
  Tensor rows;
  if (elements > 0) {
    rows =
        Tensor::empty({size(), elements}, DType::f64, whole_.front().tensor.device(), memory::Category::communication);
    std::int64_t at = rank() * elements;
    for (const tape::StateUpdate& u : updates) {
      if (!u.found.defined()) continue;
      copy_into(window_of(rows, at, u.found.shape()), u.found);
      at += u.found.elements();
    }
    share_rows(rows);
  }
  std::size_t first = 0;
  std::int64_t first_at = 0;
  while (first < updates.size()) {  // all ranks' findings of one forward or backward
    std::size_t end = first;
    while (end < updates.size() && updates[end].micro_batch == updates[first].micro_batch) ++end;
    std::int64_t at = first_at;
    for (int r = 0; r < size(); ++r) {
      at = first_at;
      for (std::size_t i = first; i < end; ++i) {
        tape::StateUpdate update = updates[i];
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
