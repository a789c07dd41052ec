#include <thimble/core/tensor/context.h>

#include <deque>
#include <map>
#include <memory_resource>
#include <mutex>
#include <string>
#include <utility>

namespace thimble {
namespace {

// Paths are never freed, one per module. They have separate chunks of memory, because small blocks scattered over the
// heap would keep it from shrinking.
struct PathTable {
  std::mutex mutex;
  std::pmr::monotonic_buffer_resource pieces{std::size_t{4} << 10};
  std::pmr::deque<std::pmr::string> names{1, &pieces};
  // Keys are views of `leaf_names`, so that lookups allocate nothing.
  std::pmr::deque<std::pmr::string> leaf_names{&pieces};
  std::pmr::map<std::pair<PathId, std::string_view>, PathId> children{&pieces};
};

PathTable& path_table() {
  static PathTable table;
  return table;
}

}  // namespace

ThreadContext& context() noexcept {
  thread_local ThreadContext instance;
  return instance;
}

std::shared_ptr<memory::Resource> current_resource(memory::Device device) {
  const auto& resource = context().resource;
  if (resource && resource->device() == device) return resource;
  return default_resource(device);
}

RandomGenerator& current_generator() noexcept {
  thread_local RandomGenerator fallback;
  return context().generator ? *context().generator : fallback;
}

PathId join_path(PathId parent, std::string_view name) {
  auto& table = path_table();
  const std::lock_guard lock(table.mutex);
  const auto found = table.children.find(std::pair(parent, name));
  if (found != table.children.end()) return found->second;
  const std::pmr::string& above = table.names[parent];
  std::pmr::string& whole = table.names.emplace_back();
  whole.reserve(above.size() + 1 + name.size());
  if (!above.empty()) whole.append(above).append(".");
  whole.append(name);
  const auto id = static_cast<PathId>(table.names.size() - 1);
  table.children.emplace(std::pair(parent, std::string_view(table.leaf_names.emplace_back(name))), id);
  return id;
}

std::string_view path_name(PathId id) {
  auto& table = path_table();
  const std::lock_guard lock(table.mutex);
  return table.names.at(id);
}

ResourceScope::ResourceScope(std::shared_ptr<memory::Resource> resource) : before_(std::move(resource)) {
  std::swap(before_, context().resource);
}

ResourceScope::~ResourceScope() { std::swap(before_, context().resource); }

namespace {

constinit thread_local bool is_on = false;

}  // namespace

bool is_evaluating() noexcept { return is_on; }

EvaluationScope::EvaluationScope(bool is_evaluating) noexcept : before_(std::exchange(is_on, is_evaluating)) {}

EvaluationScope::~EvaluationScope() { is_on = before_; }

}  // namespace thimble
