#include <thimble/dist/pipeline/schedule.h>

#include <algorithm>
#include <utility>

#include <thimble/core/error.h>

namespace thimble::dist {
namespace {

void require_sizes(const char* name, int stages, int micro_batches) {
  if (stages >= 1 && micro_batches >= 1) return;
  throw ValueError(std::string(name) + ": " + std::to_string(stages) + " stages and " + std::to_string(micro_batches) +
                   " micro-batches; expected at least 1 of each");
}

// `first` forwards, then forwards and backwards alternately, then the remaining backwards.
std::vector<Action> in_turn(const std::vector<Action>& forwards, const std::vector<Action>& backwards,
                            std::size_t first) {
  std::vector<Action> list(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(first));
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    if (first + i < forwards.size()) list.push_back(forwards[first + i]);
    list.push_back(backwards[i]);
  }
  return list;
}

std::vector<Action> all_of(Pass pass, int micro_batches) {
  std::vector<Action> list;
  for (int i = 0; i < micro_batches; ++i) list.push_back({pass, i, 0});
  return list;
}

std::string at(int stage, const Action& action) {
  return "pipeline schedule: stage " + std::to_string(stage) + ", " + to_string(action) + ": ";
}

int piece_of(const Schedule& schedule, const Action& action, std::size_t stage) {
  return action.chunk * schedule.stages + static_cast<int>(stage);
}

// Times at which each (piece, micro-batch) passed forwards and backwards; negative if it has not.
class Done {
 public:
  explicit Done(const Schedule& schedule)
      : micro_batches_(static_cast<std::size_t>(schedule.micro_batches)),
        ends_(2 * static_cast<std::size_t>(schedule.pieces()) * micro_batches_, -1.0) {}
  double& operator()(Pass pass, int piece, int micro_batch) {
    const std::size_t way = pass == Pass::backward ? 1 : 0;
    return ends_[(2 * static_cast<std::size_t>(piece) + way) * micro_batches_ + static_cast<std::size_t>(micro_batch)];
  }

 private:
  std::size_t micro_batches_;
  std::vector<double> ends_;
};

void check_stage(const Schedule& schedule, int stage) {
  const auto chunks = static_cast<std::size_t>(schedule.chunks);
  const auto micro_batches = static_cast<std::size_t>(schedule.micro_batches);
  std::vector<char> forwards(chunks * micro_batches, 0);
  std::vector<int> next_backward(chunks, 0);
  for (const Action& action : schedule.of_stage[static_cast<std::size_t>(stage)]) {
    if (action.chunk < 0 || action.chunk >= schedule.chunks || action.micro_batch < 0 ||
        action.micro_batch >= schedule.micro_batches) {
      throw PlanError(at(stage, action) + "there are chunks 0 to " + std::to_string(schedule.chunks - 1) +
                      " and micro-batches 0 to " + std::to_string(schedule.micro_batches - 1));
    }
    const auto chunk = static_cast<std::size_t>(action.chunk), batch = static_cast<std::size_t>(action.micro_batch);
    if (action.pass == Pass::forward) {
      if (std::exchange(forwards[chunk * micro_batches + batch], char{1}) != 0)
        throw PlanError(at(stage, action) + "twice");
      continue;
    }
    if (forwards[chunk * micro_batches + batch] == 0) throw PlanError(at(stage, action) + "before its forward");
    if (action.micro_batch != next_backward[chunk]) {
      throw PlanError(at(stage, action) + "micro-batch " + std::to_string(next_backward[chunk]) + " is next, in order");
    }
    ++next_backward[chunk];
  }
  for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
    const int missing = next_backward[static_cast<std::size_t>(chunk)];
    if (missing < schedule.micro_batches) throw PlanError(at(stage, {Pass::backward, missing, chunk}) + "is missing");
  }
}

// A piece's seconds; a single number applies to all pieces.
double of_piece(const std::vector<double>& seconds, int piece) {
  return seconds.size() == 1 ? seconds.front() : seconds[static_cast<std::size_t>(piece)];
}

void check_costs(const Schedule& schedule, const PipelineCosts& costs) {
  const auto pieces = static_cast<std::size_t>(schedule.pieces());
  for (const std::vector<double>* list : {&costs.forward_s, &costs.backward_s}) {
    if (list->size() != 1 && list->size() != pieces) {
      throw ValueError("pipeline: times of " + std::to_string(list->size()) + " pieces; expected 1 or " +
                       std::to_string(pieces));
    }
    for (const double seconds : *list) {
      if (!(seconds >= 0))
        throw ValueError("pipeline: a time of " + std::to_string(seconds) + " s; expected at least 0");
    }
  }
  if (!(costs.link_s >= 0)) {
    throw ValueError("pipeline: a link of " + std::to_string(costs.link_s) + " s; expected at least 0");
  }
}

// Time at which an action's input is ready; negative if it is not. Input from another stage adds the link's time.
double ready_at(const Schedule& schedule, Done& done, const Action& action, int stage, double link_s) {
  const int piece = piece_of(schedule, action, static_cast<std::size_t>(stage)), last = schedule.pieces() - 1;
  const bool is_forward = action.pass == Pass::forward;
  if (is_forward && piece == 0) return 0;
  if (!is_forward && piece == last) return done(Pass::forward, piece, action.micro_batch);
  const double made = done(action.pass, is_forward ? piece - 1 : piece + 1, action.micro_batch);
  return made < 0 ? made : made + (schedule.stages > 1 ? link_s : 0);
}

PipelineRun run(const Schedule& schedule, const PipelineCosts& costs) {
  const auto stages = static_cast<std::size_t>(schedule.stages);
  PipelineRun result;
  result.of_stage.resize(stages);
  result.busy_s.assign(stages, 0);
  result.in_flight.assign(stages, 0);
  Done done(schedule);
  std::vector<std::size_t> next(stages, 0);
  std::vector<double> free_at(stages, 0);
  std::vector<int> held(stages, 0);
  for (bool moves = true; moves;) {
    moves = false;
    for (std::size_t s = 0; s < stages; ++s) {
      const int stage = static_cast<int>(s);
      while (next[s] < schedule.of_stage[s].size()) {
        const Action& action = schedule.of_stage[s][next[s]];
        const double ready = ready_at(schedule, done, action, stage, costs.link_s);
        if (ready < 0) break;
        const int piece = piece_of(schedule, action, s);
        const double takes = of_piece(action.pass == Pass::forward ? costs.forward_s : costs.backward_s, piece);
        const double begin = std::max(ready, free_at[s]);
        free_at[s] = begin + takes;
        done(action.pass, piece, action.micro_batch) = free_at[s];
        result.of_stage[s].push_back({action, begin, free_at[s]});
        result.busy_s[s] += takes;
        result.step_s = std::max(result.step_s, free_at[s]);
        held[s] += action.pass == Pass::forward ? 1 : -1;
        result.in_flight[s] = std::max(result.in_flight[s], held[s]);
        ++next[s];
        moves = true;
      }
    }
  }
  for (std::size_t s = 0; s < stages; ++s) {
    if (next[s] == schedule.of_stage[s].size()) continue;
    throw PlanError(at(static_cast<int>(s), schedule.of_stage[s][next[s]]) + "waits for ever for another stage");
  }
  double busy = 0;
  for (const double seconds : result.busy_s) busy += seconds;
  const double all = result.step_s * static_cast<double>(stages);
  result.bubble = busy > 0 ? (all - busy) / busy : 0;
  return result;
}

// The n-th last of a stage's actions before `end` whose gradient goes to another stage; null if there are fewer.
const Action* gradient_before(const Schedule& schedule, std::size_t stage, std::size_t end, int n) {
  const std::vector<Action>& actions = schedule.of_stage[stage];
  while (end-- > 0) {
    const bool is_sent = actions[end].pass == Pass::backward && piece_of(schedule, actions[end], stage) > 0;
    if (is_sent && --n == 0) return &actions[end];
  }
  return nullptr;
}

// The stage that waits forever, and its action, if `open` passes and gradients may begin before a stage's message is
// taken; empty without a deadlock.
std::string who_waits(const Schedule& schedule, int open) {
  const auto stages = static_cast<std::size_t>(schedule.stages);
  Done begun(schedule), done(schedule);  // 0 once true
  std::vector<std::size_t> next(stages, 0);
  const int last = schedule.pieces() - 1;
  // True once the receiving stage has begun the pass that takes the action's message.
  const auto is_taken = [&](const Action& action, std::size_t stage) {
    const int piece = piece_of(schedule, action, stage);
    if (action.pass == Pass::forward) return piece == last || begun(Pass::forward, piece + 1, action.micro_batch) == 0;
    return piece == 0 || begun(Pass::backward, piece - 1, action.micro_batch) == 0;
  };
  for (bool moves = true; moves;) {
    moves = false;
    for (std::size_t s = 0; s < stages; ++s) {
      const std::vector<Action>& actions = schedule.of_stage[s];
      while (next[s] < actions.size()) {
        const Action& action = actions[next[s]];
        const int piece = piece_of(schedule, action, s);
        double& has_begun = begun(action.pass, piece, action.micro_batch);
        if (has_begun < 0) {
          const auto before = static_cast<std::ptrdiff_t>(next[s]) - open;
          if (before >= 0) {
            const Action& made = actions[static_cast<std::size_t>(before)];
            if (made.pass == Pass::forward && !is_taken(made, s)) break;
          }
          has_begun = 0;
          moves = true;
        }
        if (ready_at(schedule, done, action, static_cast<int>(s), 0) < 0) break;
        if (action.pass == Pass::backward && piece > 0) {
          const Action* const sent = gradient_before(schedule, s, next[s], open);
          if (sent != nullptr && !is_taken(*sent, s)) break;
        }
        done(action.pass, piece, action.micro_batch) = 0;
        ++next[s];
        moves = true;
      }
    }
  }
  for (std::size_t s = 0; s < stages; ++s) {
    if (next[s] < schedule.of_stage[s].size()) return at(static_cast<int>(s), schedule.of_stage[s][next[s]]);
  }
  return "";
}

// Checks that between two stages the n-th message sent is the n-th taken.
void check_order(const Schedule& schedule) {
  const auto stages = static_cast<std::size_t>(schedule.stages);
  const int last = schedule.pieces() - 1;
  std::vector<std::vector<Action>> sent(stages * stages), taken(stages * stages);  // as they are taken
  for (std::size_t s = 0; s < stages; ++s) {
    const std::size_t before = (s + stages - 1) % stages, after = (s + 1) % stages;
    for (const Action& action : schedule.of_stage[s]) {
      const bool is_forward = action.pass == Pass::forward;
      const int piece = piece_of(schedule, action, s), to = is_forward ? piece + 1 : piece - 1;
      if (piece != (is_forward ? 0 : last)) taken[(is_forward ? before : after) * stages + s].push_back(action);
      if (to < 0 || to > last) continue;
      sent[s * stages + (is_forward ? after : before)].push_back(
          {action.pass, action.micro_batch, to / schedule.stages});
    }
  }
  for (std::size_t i = 0; i < sent.size(); ++i) {
    for (std::size_t k = 0; k < taken[i].size(); ++k) {
      if (k < sent[i].size() && sent[i][k] == taken[i][k]) continue;
      throw PlanError(at(static_cast<int>(i % stages), taken[i][k]) + "stage " + std::to_string(i / stages) +
                      " sends " + (k < sent[i].size() ? "what is for " + to_string(sent[i][k]) : "nothing more"));
    }
  }
}

}  // namespace

std::string to_string(const Action& action) {
  std::string text = (action.pass == Pass::forward ? "F" : "B") + std::to_string(action.micro_batch);
  if (action.chunk > 0) text += "." + std::to_string(action.chunk);
  return text;
}

Schedule gpipe(int stages, int micro_batches) {
  require_sizes("gpipe", stages, micro_batches);
  Schedule schedule{stages, 1, micro_batches, {}};
  const std::vector<Action> stage = in_turn(all_of(Pass::forward, micro_batches), all_of(Pass::backward, micro_batches),
                                            static_cast<std::size_t>(micro_batches));
  schedule.of_stage.assign(static_cast<std::size_t>(stages), stage);
  return schedule;
}

Schedule one_forward_one_backward(int stages, int micro_batches) {
  require_sizes("1f1b", stages, micro_batches);
  Schedule schedule{stages, 1, micro_batches, {}};
  for (int stage = 0; stage < stages; ++stage) {
    const int first = std::min(stages - stage - 1, micro_batches);
    schedule.of_stage.push_back(in_turn(all_of(Pass::forward, micro_batches), all_of(Pass::backward, micro_batches),
                                        static_cast<std::size_t>(first)));
  }
  return schedule;
}

Schedule interleaved(int stages, int micro_batches, int chunks) {
  require_sizes("interleaved", stages, micro_batches);
  if (chunks < 2) {
    throw ValueError("interleaved: " + std::to_string(chunks) + " chunks of each stage; expected at least 2");
  }
  if (micro_batches % stages != 0) {
    throw ValueError("interleaved: " + std::to_string(micro_batches) + " micro-batches on " + std::to_string(stages) +
                     " stages; expected a multiple of the stages");
  }
  Schedule schedule{stages, chunks, micro_batches, {}};
  // Micro-batches pass all chunks in groups, one micro-batch per stage.
  std::vector<Action> forwards, backwards;
  for (int k = 0; k < micro_batches * chunks; ++k) {
    const int batch = k / (stages * chunks) * stages + k % stages, chunk = k % (stages * chunks) / stages;
    forwards.push_back({Pass::forward, batch, chunk});
    backwards.push_back({Pass::backward, batch, chunks - 1 - chunk});
  }
  for (int stage = 0; stage < stages; ++stage) {
    const int first = std::min(2 * (stages - stage - 1) + (chunks - 1) * stages, micro_batches * chunks);
    schedule.of_stage.push_back(in_turn(forwards, backwards, static_cast<std::size_t>(first)));
  }
  return schedule;
}

void check_schedule(const Schedule& schedule) {
  if (static_cast<int>(schedule.of_stage.size()) != schedule.stages) {
    throw PlanError("pipeline schedule: " + std::to_string(schedule.of_stage.size()) + " lists for " +
                    std::to_string(schedule.stages) + " stages");
  }
  for (int stage = 0; stage < schedule.stages; ++stage) check_stage(schedule, stage);
  run(schedule, {{0}, {0}, 0});
}

int check_hand_over(const Schedule& schedule) {
  check_order(schedule);
  const int passes = 2 * schedule.chunks * schedule.micro_batches;
  std::string why;
  for (int open = 1; open <= passes; ++open) {
    const std::string waits = who_waits(schedule, open);
    if (waits.empty()) return open;
    if (why.empty()) why = waits;
  }
  throw PlanError(why + "waits for ever for a stage to take what it has");
}

PipelineRun simulate(const Schedule& schedule, const PipelineCosts& costs) {
  check_schedule(schedule);
  check_costs(schedule, costs);
  return run(schedule, costs);
}

}  // namespace thimble::dist
