#include <thimble/memory/policies/ledger.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <new>
#include <numeric>

#include <thimble/core/error.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/units.h>

namespace thimble::memory {
namespace {

constexpr std::size_t index(Category category) { return static_cast<std::size_t>(category); }

bool is_under(std::string_view path, std::string_view prefix) {
  if (prefix.empty()) return true;
  if (path.substr(0, prefix.size()) != prefix) return false;
  return path.size() == prefix.size() || path[prefix.size()] == '.';
}

std::size_t total(const CategoryBytes& bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}); }

/// "activation  1.50 KiB (1536 B)   2.00 KiB (2048 B)": a name and two right-aligned figures.
std::string line(std::string_view name, std::size_t now, std::size_t at_peak) {
  char text[512];
  std::snprintf(text, sizeof text, "  %-32.*s %32s %32s\n", static_cast<int>(name.size()), name.data(),
                exact_bytes(now).c_str(), exact_bytes(at_peak).c_str());
  return text;
}

}  // namespace

Ledger::Ledger(std::shared_ptr<Resource> upstream) : Decorator(std::move(upstream)) {}

void Ledger::add(Cell& cell, std::size_t bytes) noexcept {
  if (cell.peak_serial != peak_serial_) {
    cell.at_peak = cell.live;
    cell.peak_serial = peak_serial_;
  }
  cell.live += bytes;
}

void Ledger::subtract(Cell& cell, std::size_t bytes) noexcept { add(cell, std::size_t{0} - bytes); }

std::size_t Ledger::at_peak(const Cell& cell) const noexcept {
  return cell.peak_serial == peak_serial_ ? cell.at_peak : cell.live;
}

void Ledger::make_row(PathId path) {
  try {
    rows_.resize(path + std::size_t{1});
    row_count_ = rows_.size();
  } catch (const std::bad_alloc&) {
    throw OutOfMemory("ledger: the host has no memory for its table of paths",
                      {.requested_bytes = 0, .in_use_bytes = live_, .peak_bytes = peak_});
  }
}

Block* Ledger::allocate(const Request& request) {
  const std::lock_guard hold(*lock());
  return do_allocate(request);
}

void Ledger::deallocate(Block* block, Stream stream) noexcept {
  if (block == nullptr) return;
  const std::lock_guard hold(*lock());
  do_deallocate(block, stream);
}

Block* Ledger::do_allocate(const Request& request) {
  if (request.path >= row_count_) make_row(request.path);
  Block* block = nullptr;
  try {
    block = upstream_allocate(request);
  } catch (const OutOfMemory& error) {
    refuse(error);
  }
  const std::size_t category = index(request.category);
  add(rows_[request.path][category], request.bytes);
  totals_[category] += request.bytes;
  category_peaks_[category] = std::max(category_peaks_[category], totals_[category]);
  live_ += request.bytes;
  if (live_ > peak_) {
    peak_ = live_;
    ++peak_serial_;
  }
  return block;
}

/// Rethrows the refusal with the bytes in use by category.
void Ledger::refuse(const OutOfMemory& error) const {
  OutOfMemory::Facts facts = error.facts();
  facts.in_use_bytes = live_;
  facts.peak_bytes = peak_;
  throw OutOfMemory(error.what() + category_list(), facts);
}

void Ledger::do_deallocate(Block* block, Stream stream) noexcept {
  const std::size_t category = index(block->category);
  subtract(rows_[block->path][category], block->bytes);
  totals_[category] -= block->bytes;
  live_ -= block->bytes;
  upstream_deallocate(block, stream);
}

void Ledger::do_relabel(Block* block, Category category) noexcept {
  const std::size_t before = index(block->category);
  const std::size_t after = index(category);
  Row& row = rows_[block->path];
  subtract(row[before], block->bytes);
  add(row[after], block->bytes);
  totals_[before] -= block->bytes;
  totals_[after] += block->bytes;
  category_peaks_[after] = std::max(category_peaks_[after], totals_[after]);
  upstream_relabel(block, category);
}

std::size_t Ledger::bytes() const {
  const std::lock_guard guard(*lock());
  return live_;
}

std::size_t Ledger::bytes(Category category) const {
  const std::lock_guard guard(*lock());
  return totals_[index(category)];
}

/// Sums value(row) over the rows of the paths under `prefix`.
template <class Value>
std::size_t Ledger::sum(std::string_view prefix, Value&& value) const {
  const std::lock_guard guard(*lock());
  std::size_t bytes = 0;
  for (std::size_t path = 0; path < rows_.size(); ++path) {
    if (is_under(path_name(static_cast<PathId>(path)), prefix)) bytes += value(rows_[path]);
  }
  return bytes;
}

std::size_t Ledger::bytes_by_path(std::string_view prefix) const {
  return sum(prefix, [](const Row& row) { return total(now(row)); });
}

std::size_t Ledger::bytes(Category category, std::string_view prefix) const {
  return sum(prefix, [&](const Row& row) { return row[index(category)].live; });
}

std::size_t Ledger::peak_bytes_by_path(std::string_view prefix) const {
  return sum(prefix, [&](const Row& row) { return total(at_peak(row)); });
}

std::size_t Ledger::peak_bytes(Category category, std::string_view prefix) const {
  return sum(prefix, [&](const Row& row) { return at_peak(row[index(category)]); });
}

CategoryBytes Ledger::now(const Row& row) noexcept {
  CategoryBytes bytes{};
  for (std::size_t i = 0; i < category_count; ++i) bytes[i] = row[i].live;
  return bytes;
}

CategoryBytes Ledger::at_peak(const Row& row) const noexcept {
  CategoryBytes bytes{};
  for (std::size_t i = 0; i < category_count; ++i) bytes[i] = at_peak(row[i]);
  return bytes;
}

CategoryBytes Ledger::total_at_peak() const noexcept {
  CategoryBytes bytes{};
  for (const Row& row : rows_) {
    for (std::size_t i = 0; i < category_count; ++i) bytes[i] += at_peak(row[i]);
  }
  return bytes;
}

CategoryBytes Ledger::bytes_by_category() const {
  const std::lock_guard guard(*lock());
  return totals_;
}

CategoryBytes Ledger::peak_by_category() const {
  const std::lock_guard guard(*lock());
  return total_at_peak();
}

std::size_t Ledger::max_allocated() const {
  const std::lock_guard guard(*lock());
  return peak_;
}

std::size_t Ledger::max_allocated(Category category) const {
  const std::lock_guard guard(*lock());
  return category_peaks_[index(category)];
}

void Ledger::reset_peak() {
  const std::lock_guard guard(*lock());
  peak_ = live_;
  ++peak_serial_;
  category_peaks_ = totals_;
}

std::vector<Ledger::PathRow> Ledger::paths() const {
  const std::lock_guard guard(*lock());
  return path_rows();
}

std::vector<Ledger::PathRow> Ledger::path_rows() const {
  std::vector<PathRow> result;
  for (std::size_t path = 0; path < rows_.size(); ++path) {
    const PathRow row{static_cast<PathId>(path), now(rows_[path]), at_peak(rows_[path])};
    if (total(row.now) + total(row.at_peak) > 0) result.push_back(row);
  }
  return result;
}

std::string Ledger::summary(std::size_t path_count) const {
  const std::lock_guard guard(*lock());
  const CategoryBytes peak = total_at_peak();
  char head[128];
  std::snprintf(head, sizeof head, "  %-32s %32s %32s\n", "category", "now", "at the peak");
  std::string text = "memory on " + to_string(device()) + "\n" + head;
  for (std::size_t i = 0; i < category_count; ++i) {
    text += line(to_string(static_cast<Category>(i)), totals_[i], peak[i]);
  }
  text += line("all", live_, peak_);

  std::vector<PathRow> rows = path_rows();
  const std::size_t shown = std::min(path_count, rows.size());
  if (shown == 0) return text;
  const auto has_more = [](const PathRow& a, const PathRow& b) {
    const std::size_t bytes_a = total(a.at_peak), bytes_b = total(b.at_peak);
    return bytes_a != bytes_b ? bytes_a > bytes_b : a.path < b.path;
  };
  std::partial_sort(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(shown), rows.end(), has_more);
  std::snprintf(head, sizeof head, "  %-32s %32s %32s\n", "path", "now", "at the peak");
  text += head;
  for (std::size_t i = 0; i < shown; ++i) {
    const std::string_view name = path_name(rows[i].path);
    text += line(name.empty() ? "(no path)" : name, total(rows[i].now), total(rows[i].at_peak));
  }
  if (shown < rows.size()) text += "  and " + std::to_string(rows.size() - shown) + " more paths\n";
  return text;
}

/// "; in use by category: parameter 1.00 KiB (1024 B), ...": all categories, including empty ones.
std::string Ledger::category_list() const {
  std::string text = "; in use by category:";
  for (std::size_t i = 0; i < category_count; ++i) {
    text += (i == 0 ? " " : ", ") + std::string(to_string(static_cast<Category>(i))) + " " + exact_bytes(totals_[i]);
  }
  return text;
}

}  // namespace thimble::memory
