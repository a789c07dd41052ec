#include <thimble/nn/files/cut_tensors.h>

#include <algorithm>
#include <set>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/ops/copy.h>

namespace thimble::nn {
namespace {

/// "attn.c_attn.1.weight" of shard 1 is "attn.c_attn.weight" of the whole.
std::string whole_name(const std::string& own, const PlaceInWhole& place) {
  const std::size_t dot = std::min(own.rfind('.'), own.size());
  const std::string ending = "." + std::to_string(place.shard.index);
  const std::string module = own.substr(0, dot);
  if (dot == own.size() || !module.ends_with(ending)) {
    throw ValueError("files: " + quote(own) + " is of shard " + std::to_string(place.shard.index) +
                     " of a layer; expected a module named by that number");
  }
  return module.substr(0, module.size() - ending.size()) + place.joint + own.substr(dot + 1);
}

/// `count` elements of a dense tensor from `at` on.
Tensor range_of(const Tensor& dense, std::int64_t at, const Shape& shape, const Shape& strides) {
  return dense.detach().window(shape, strides, dense.offset() + at);
}

/// Copies `piece`, a shard's elements from `first` on, to their place in the whole: the rest of a run, whole runs at
/// once, the beginning of a run.
void scatter(const Tensor& whole, const init::ShardOf& shard, std::int64_t first, const Tensor& piece) {
  const std::int64_t run = shard.run(), apart = shard.apart(), count = piece.elements();
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t r = (first + done) / run, begin = (first + done) % run, left = count - done;
    const bool has_runs = begin == 0 && left >= run;
    const std::int64_t rows = has_runs ? left / run : 1, each = has_runs ? run : std::min(run - begin, left);
    const Shape shape{rows, each};
    copy_into(range_of(whole, shard.in_whole(r * run + begin), shape, {apart, 1}),
              range_of(piece, done, shape, {each, 1}));
    done += rows * each;
  }
}

void read_here(const SafetensorsReader& file, const SafetensorsEntry& entry, const Tensor& to, const FileTensor& target,
               FileStaging& staging) {
  const DType from = loadable_dtype(entry);
  const auto size = static_cast<std::int64_t>(size_of(from)), own_size = static_cast<std::int64_t>(size_of(to.dtype()));
  const init::ShardOf& shard = *target.shard;
  const std::int64_t run = shard.run(), count = to.elements();
  const std::int64_t most = static_cast<std::int64_t>(file_piece_bytes) / size;
  const std::int64_t end = shard.in_whole(target.first + count - 1) + 1;
  const std::span<std::byte> piece = staging.of_file();
  const memory::WritePin pin(to);
  auto* const out = static_cast<std::byte*>(pin.data());
  std::int64_t begin = 0, stop = 0;  // the piece's elements of the whole
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t own = target.first + done, at = shard.in_whole(own);
    if (at >= stop) {
      begin = at, stop = std::min(at + most, end);
      file.read_part(entry, static_cast<std::uint64_t>(begin * size),
                     piece.first(static_cast<std::size_t>((stop - begin) * size)));
    }
    const std::int64_t some = std::min({run - own % run, count - done, stop - at});
    convert(piece.data() + (at - begin) * size, from, out + done * own_size, to.dtype(), some);
    done += some;
  }
}

}  // namespace

Tensor outline(const Shape& shape, DType dtype) {
  return Tensor::empty({0}, dtype, cpu).window(shape, contiguous_strides(shape), 0);
}

CutParameters::CutParameters(const Module& module) {
  std::map<const tape::Leaf*, PlaceInWhole> places;
  module.for_each_module([&](const Module& below) {
    for (const NamedTensor& p : below.parameters()) {
      const std::optional<PlaceInWhole> place = below.place_in_whole(p.tensor);
      if (place) places[p.tensor.leaf().get()] = *place;
    }
  });
  if (places.empty()) return;
  for (const NamedTensor& p : module.parameters()) {
    const auto found = places.find(p.tensor.leaf().get());
    if (found == places.end()) continue;
    by_name_[p.name] = {whole_name(p.name, found->second), found->second.shard};
  }
}

const CutParameter* CutParameters::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &found->second;
}

FileTensor CutParameters::of_parameter(const NamedTensor& parameter, const std::string& prefix) const {
  const CutParameter* const cut = find(parameter.name);
  if (cut == nullptr) return {{prefix + parameter.name, parameter.tensor, parameter.layout}, parameter.tensor};
  return {{prefix + cut->whole, outline(cut->shard.whole, parameter.tensor.dtype())}, parameter.tensor, cut->shard};
}

FileTensor CutParameters::of_state(const Named& state) const {
  const std::size_t dot = std::min(state.name.rfind('.'), state.name.size());
  const CutParameter* const cut = find(std::string_view(state.name).substr(0, dot));
  if (cut == nullptr) return {{"optimizer." + state.name, state.tensor}, state.tensor, {}, state.first_element};
  if (state.whole_elements() != cut->shard.shape().elements()) {
    throw ShapeError("files: state " + quote(state.name) + " has " + std::to_string(state.whole_elements()) +
                     " elements for a shard of a parameter with " + std::to_string(cut->shard.shape().elements()) +
                     "; expected one for each");
  }
  return {{"optimizer." + cut->whole + state.name.substr(dot), outline(cut->shard.whole, state.tensor.dtype())},
          state.tensor,
          cut->shard,
          state.first_element};
}

std::vector<NamedTensor> wholes_of(const std::vector<FileTensor>& tensors) {
  std::vector<NamedTensor> list;
  std::set<std::string_view> names;
  for (const FileTensor& t : tensors) {
    if (!t.shard || names.insert(t.whole.name).second) list.push_back(t.whole);
  }
  return list;
}

void Assembly::put(const FileTensor& t) {
  if (!t.shard) return append_({t.whole.name, t.here, t.whole.layout});
  const Tensor& like = t.whole.tensor;
  Open& open = open_[t.whole.name];
  if (!open.tensor.defined()) {
    const PathScope path(join_path(0, "files"));
    open.tensor = Tensor::empty(like.shape(), like.dtype(), t.here.device(), memory::Category::communication);
    open.missing = like.elements();
  }
  scatter(open.tensor, *t.shard, t.first, t.here);
  open.missing -= t.here.elements();
  if (open.missing > 0) return;
  const Tensor whole = std::move(open.tensor);
  open_.erase(t.whole.name);
  append_({t.whole.name, whole, t.whole.layout});
}

void read_file_tensor(const SafetensorsReader& file, const SafetensorsEntry& entry, const FileTensor& target,
                      FileStaging& staging) {
  const Tensor& t = target.here;
  if (!target.shard)
    return read_file_tensor(file, entry, NamedTensor{target.whole.name, t, target.whole.layout}, staging);
  if (t.elements() == 0 || t.device().is_dry) return;
  if (t.device().is_cpu() && t.is_contiguous()) return read_here(file, entry, t, target, staging);
  const Tensor read = Tensor::empty(t.shape(), t.dtype(), cpu);
  read_here(file, entry, read, target, staging);
  copy_into(t, to_device(read, t.device()));
}

}  // namespace thimble::nn
