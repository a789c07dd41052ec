#include <thimble/dist/communicator.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include <thimble/dist/transport.h>

namespace thimble::dist {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

template <class Byte>
Byte* at(Byte* data, std::size_t index, std::size_t bytes) noexcept {
  return data == nullptr ? nullptr : data + index * bytes;  // a dry communicator has no addresses
}

/// Names the waiting rank, the awaited rank and the bytes.
RankError late_error(const Exchange& exchange, int rank, std::chrono::milliseconds timeout) {
  const auto part = std::find_if(exchange.parts.begin(), exchange.parts.end(),
                                 [](const Part& p) { return p.state != Part::State::done; });
  const std::string bytes = std::to_string(part->bytes) + " bytes", peer = "rank " + std::to_string(part->peer);
  return RankError(part->peer, std::string(exchange.call) + ": rank " + std::to_string(rank) + " has waited for " +
                                   std::to_string(timeout.count()) + " ms for " +
                                   (part->is_send ? peer + " to take " + bytes : bytes + " of " + peer) + "; " +
                                   std::to_string(exchange.open) + " of " + std::to_string(exchange.parts.size()) +
                                   " messages are not done");
}

}  // namespace

// ---- Transfer

Transfer::Transfer(Communicator& communicator, Exchange& exchange) noexcept
    : communicator_(&communicator), exchange_(&exchange), exceptions_(std::uncaught_exceptions()) {}

void Transfer::swap(Transfer& other) noexcept {
  std::swap(communicator_, other.communicator_);
  std::swap(exchange_, other.exchange_);
  std::swap(exceptions_, other.exceptions_);
}

Transfer::~Transfer() {
  if (std::uncaught_exceptions() > exceptions_) give_up();
  try {
    wait();
  } catch (...) {  // the transport keeps it for the next call
  }
}

void Transfer::give_up() noexcept {
  if (exchange_ != nullptr) communicator_->give_up(*std::exchange(exchange_, nullptr));
}

bool Transfer::is_done() {
  if (exchange_ == nullptr) return true;
  Exchange* const exchange = std::exchange(exchange_, nullptr);
  if (communicator_->advance(*exchange, false)) return true;
  exchange_ = exchange;
  return false;
}

void Transfer::wait() {
  if (exchange_ != nullptr) communicator_->advance(*std::exchange(exchange_, nullptr), true);
}

// ---- Communicator

Communicator::Communicator(std::shared_ptr<Transport> transport, int tag, int rank, std::vector<int> members,
                           int all_ranks)
    : transport_(std::move(transport)), tag_(tag), rank_(rank), members_(std::move(members)), all_ranks_(all_ranks) {
  sends_.reserve(members_.size());
  receives_.reserve(members_.size());
}

Communicator::Communicator(std::shared_ptr<Transport> transport)
    : Communicator(transport, 0, transport->rank, std::vector<int>(static_cast<std::size_t>(transport->size)),
                   transport->size) {
  for (std::size_t r = 0; r < members_.size(); ++r) members_[r] = static_cast<int>(r);
}

Communicator::~Communicator() = default;

std::unique_ptr<Communicator> make_dry(int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw ValueError("make_dry: rank " + std::to_string(rank) + " of " + std::to_string(size) +
                     ", expected a rank from 0 to size - 1 and a size of at least 1");
  }
  std::vector<int> members(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) members[static_cast<std::size_t>(r)] = r;
  return std::unique_ptr<Communicator>(new Communicator(nullptr, 0, rank, std::move(members), size));
}

void Communicator::check_rank(const char* call, int rank) const {
  if (rank >= 0 && rank < size()) return;
  throw ValueError(std::string(call) + ": rank " + std::to_string(rank) + " in a communicator of " +
                   std::to_string(size()) + " ranks");
}

Transfer Communicator::exchange(std::span<const Send> sends, std::span<const Receive> receives) {
  return begin("exchange", sends, receives);
}

Transfer Communicator::begin(const char* call, std::span<const Send> sends, std::span<const Receive> receives) {
  for (const Send& send : sends) check_rank(call, send.to);
  for (const Receive& receive : receives) check_rank(call, receive.from);
  if (transport_) transport_->check_usable();
  const std::uint64_t sent_before = volume_.bytes_sent;
  for (const Send& send : sends) {
    if (send.to == rank_) continue;
    volume_.bytes_sent += send.bytes;
    ++volume_.messages;
  }
  if (is_dry()) return {};
  if (free_.empty()) {
    exchanges_.push_back(std::make_unique<Exchange>());
    free_.reserve(exchanges_.size());
    free_.push_back(exchanges_.back().get());
  }
  Exchange& exchange = *free_.back();
  exchange.record = ~std::size_t{0};
  if (times_ != nullptr) {
    exchange.record = times_->size();
    TransferTimes& times = times_->emplace_back(TransferTimes{"", volume_.bytes_sent - sent_before, 0, 0, 0});
    std::snprintf(times.call, sizeof times.call, "%s", call);
    times.begun = seconds(Clock::now());
  }
  exchange.call = call;
  exchange.tag = tag_;
  exchange.error.reset();
  exchange.parts.clear();
  const auto add = [&](int peer, bool is_send, void* data, std::size_t bytes) {
    const std::size_t most = transport_->most_bytes();
    for (auto* from = static_cast<std::byte*>(data);; from += most, bytes -= most) {
      exchange.parts.push_back({.exchange = &exchange,
                                .peer = members_[static_cast<std::size_t>(peer)],
                                .is_send = is_send,
                                .data = from,
                                .bytes = std::min(bytes, most)});
      if (bytes < most) return;
    }
  };
  for (const Receive& receive : receives) add(receive.from, false, receive.data, receive.bytes);
  for (const Send& send : sends) add(send.to, true, const_cast<void*>(send.data), send.bytes);
  exchange.open = exchange.parts.size();
  free_.pop_back();
  Transfer transfer(*this, exchange);
  transport_->begin(exchange);  // if it throws, the transfer is given up
  return transfer;
}

void Communicator::set_timeout(double seconds) {
  if (!(seconds >= 0 && seconds <= 1e9)) {
    throw ValueError("communicator: timeout of " + std::to_string(seconds) + " s; expected 0 to 1e9");
  }
  timeout_s_ = seconds;
}

bool Communicator::advance(Exchange& exchange, bool waits) {
  const Clock::time_point start = Clock::now();
  const auto timeout = std::chrono::milliseconds(std::llround(std::ceil(1000 * timeout_s_)));
  TransferTimes* const times =
      times_ != nullptr && exchange.record < times_->size() ? &(*times_)[exchange.record] : nullptr;
  if (times != nullptr) times->waited = seconds(start);
  try {
    while (!transport_->progress(exchange)) {
      if (!waits) return false;
      const Clock::time_point now = Clock::now();
      const bool is_timed = timeout.count() > 0;
      if (is_timed && now - start >= timeout) {
        throw late_error(exchange, members_[static_cast<std::size_t>(rank_)], timeout);
      }
      const Clock::time_point slice = now + std::chrono::milliseconds(100);
      transport_->pause(is_timed ? std::min(slice, start + timeout) : slice);
    }
  } catch (const RankError& error) {
    transport_->broken = error;
    give_up(exchange);
    throw;
  } catch (...) {
    give_up(exchange);
    throw;
  }
  if (times != nullptr) times->done = waits ? seconds(Clock::now()) : times->waited;
  free_.push_back(&exchange);
  return true;
}

void Communicator::give_up(Exchange& exchange) noexcept {
  transport_->give_up(exchange);
  free_.push_back(&exchange);
  if (!transport_->broken) {
    transport_->broken.emplace(transport_->rank, "an exception gave up a transfer of rank " +
                                                     std::to_string(transport_->rank) + ": " + exchange.call);
  }
}

void Communicator::run(const char* call) { begin(call, sends_, receives_).wait(); }

void Communicator::all_gather(const void* mine, std::size_t bytes, void* all) {
  auto* const to = static_cast<std::byte*>(all);
  sends_.clear();
  receives_.clear();
  for (int i = 0; i < size(); ++i) {
    const int next = (rank_ + i) % size(), last = (rank_ - i + size()) % size();
    if (i == 0 && mine == at(to, static_cast<std::size_t>(rank_), bytes)) continue;
    sends_.push_back({next, mine, bytes});
    receives_.push_back({last, at(to, static_cast<std::size_t>(last), bytes), bytes});
  }
  run("all_gather");
}

void Communicator::all_to_all(const void* out, void* in, std::size_t bytes_each) {
  const auto* const from = static_cast<const std::byte*>(out);
  auto* const to = static_cast<std::byte*>(in);
  sends_.clear();
  receives_.clear();
  for (int i = 0; i < size(); ++i) {
    const int next = (rank_ + i) % size(), last = (rank_ - i + size()) % size();
    sends_.push_back({next, at(from, static_cast<std::size_t>(next), bytes_each), bytes_each});
    receives_.push_back({last, at(to, static_cast<std::size_t>(last), bytes_each), bytes_each});
  }
  run("all_to_all");
}

void Communicator::broadcast(void* data, std::size_t bytes, int root) {
  check_rank("broadcast", root);
  // Counted from the root, rank v gets the bytes from v without its highest bit, and gives them to v + each higher bit.
  const int v = (rank_ - root + size()) % size();
  int bit = 1;
  for (; bit <= v; bit *= 2) {
  }
  sends_.clear();
  receives_.clear();
  if (v > 0) {
    receives_.push_back({(v - bit / 2 + root) % size(), data, bytes});
    run("broadcast");
    receives_.clear();
  }
  for (; v + bit < size(); bit *= 2) sends_.push_back({(v + bit + root) % size(), data, bytes});
  if (!sends_.empty()) run("broadcast");
}

void Communicator::barrier() {
  for (int far = 1; far < size(); far *= 2) {
    const Send send{(rank_ + far) % size(), nullptr, 0};
    const Receive receive{(rank_ - far + size()) % size(), nullptr, 0};
    begin("barrier", {&send, 1}, {&receive, 1}).wait();
  }
}

std::unique_ptr<Communicator> Communicator::split(const std::function<Place(int rank)>& place_of) {
  const Place own = place_of(rank_);
  std::vector<std::pair<int, int>> order;  // key and rank
  for (int r = 0; r < size(); ++r) {
    const Place place = place_of(r);
    if (place.color < 0) {
      throw ValueError("split: color " + std::to_string(place.color) + " of rank " + std::to_string(r) +
                       ", expected at least 0");
    }
    if (place.color == own.color) order.emplace_back(place.key, r);
  }
  std::sort(order.begin(), order.end());
  std::vector<int> members;
  int rank = 0;
  for (const auto& [key, r] : order) {
    if (r == rank_) rank = static_cast<int>(members.size());
    members.push_back(members_[static_cast<std::size_t>(r)]);
  }
  // A tag that none of these ranks has used. Other colors share it, but their messages never meet.
  std::vector<int> tags(members_.size());
  const int own_tag = transport_ ? transport_->next_tag : 0;
  all_gather(&own_tag, sizeof(int), tags.data());
  const int tag = *std::max_element(tags.begin(), tags.end());
  if (transport_) transport_->next_tag = tag + 1;
  std::unique_ptr<Communicator> part(new Communicator(transport_, tag, rank, std::move(members), all_ranks_));
  part->timeout_s_ = timeout_s_;
  return part;
}

std::unique_ptr<Communicator> Communicator::split(int color, int key) {
  if (is_dry() && size() > 1) {
    throw ValueError("split: a dry communicator does not know the colors of the other " + std::to_string(size() - 1) +
                     " ranks; split it by a function of the rank");
  }
  const Place own{color, key};
  std::vector<Place> places(members_.size());
  if (is_dry()) places[0] = own;
  all_gather(&own, sizeof(own), places.data());
  return split([&](int rank) { return places[static_cast<std::size_t>(rank)]; });
}

void Communicator::abort(const std::string& text, int status) noexcept {
  std::fflush(stdout);
  std::fprintf(stderr, "%s%s\n", rank_prefix(members_[static_cast<std::size_t>(rank_)], all_ranks_).c_str(),
               text.c_str());
  std::fflush(stderr);
  if (transport_) transport_->end_all(status);
  std::_Exit(status);
}

}  // namespace thimble::dist
