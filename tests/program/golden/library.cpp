// Runs of nn::Trainer as text: `library CASE` prints its plan, every loss to the bit, its report and its memory
// (library.txt). Without a name it lists the cases; `refusals` prints the errors.

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/cpu/base/units.h>
#include <thimble/dist/threads.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/fit/plan_file.h>
#include <thimble/optim/adafactor.h>

#include "nn/own_program.h"

namespace {

using namespace thimble;
using namespace own_program;
using Options = nn::TrainerOptions;

/// Sizes without common divisors.
Program odd_program(std::int64_t more = 0) {
  Sizes sizes;
  sizes.width = 37, sizes.depth = 5;
  sizes.samples = [more](std::int64_t step) { return 1103 + step % 2 * more; };
  Program own = program(sizes);
  own.micro_batch = [](const Batch& batch, std::int64_t index, std::int64_t count) {
    const std::int64_t n = batch.x.size(0), begin = n * index / count, end = n * (index + 1) / count;
    return Batch{slice(batch.x, 0, begin, end), slice(batch.y, 0, begin, end)};
  };
  return own;
}

const char* name_of(nn::TrainEnd end) {
  const char* const names[] = {"complete", "stopped", "diverged", "no better"};
  return names[static_cast<int>(end)];
}

void print(const nn::Progress& p) {
  std::printf("step %lld rate %a%s, losses", static_cast<long long>(p.step), p.rate,
              p.is_skipped ? " passed over" : "");
  for (const double loss : p.losses) std::printf(" %a", loss);
  if (p.evaluation) std::printf(", evaluation %a", p.evaluation->loss);
  std::printf(", %zu of %zu bytes\n", p.bytes, p.peak_bytes);
}

void print(const nn::RunReport& report) {
  std::printf("%s after %lld steps, %lld skipped, loss %a to %a", name_of(report.end),
              static_cast<long long>(report.steps), static_cast<long long>(report.skipped_steps), report.loss_first,
              report.loss_last);
  if (report.evaluation) std::printf(", evaluation %a", report.evaluation->loss);
  std::printf("\n%s", report.end_text.empty() ? "" : (report.end_text + "\n").c_str());
}

template <class Trainer>
void train(Trainer& trainer) {
  std::printf("%s", trainer.plan().text().c_str());
  print(trainer.run([](const nn::Progress& p) { print(p); }));
  const memory::PlacedArena::Statistics placed = trainer.placed();
  std::printf("measured %zu bytes; %llu placed steps, %llu deviations\n", trainer.peak_bytes(),
              static_cast<unsigned long long>(placed.steps), static_cast<unsigned long long>(placed.deviations));
}

void train(const Program& own, const Options& options) {
  nn::Trainer<Net, Batch> trainer(own, options);
  train(trainer);
}

void on_ranks(int count, const Program& own, const Options& options) {
  dist::run_ranks(count, [&](dist::Communicator& all) {
    Options mine = options;
    mine.ranks.ranks = &all;
    nn::Trainer<Net, Batch> trainer(own, mine);
    if (all.rank() == 0) {
      train(trainer);
    } else {
      trainer.run();
    }
  });
}

struct Case {
  const char* name;
  std::function<void()> run;
};

const std::vector<Case> cases{
    {"plain",
     [] {
       nn::Trainer<Net, Batch> trainer(odd_program(), {.seed = 3, .steps = 5, .evaluate_every = 2});
       train(trainer);
       std::printf("%s", trainer.memory().c_str());
     }},
    {"budget",
     [] {
       nn::Trainer<Net, Batch> trainer(odd_program(), {.budget_bytes = 6 << 20, .seed = 3, .steps = 3});
       std::printf("%s%s", trainer.explain().c_str(), trainer.certify(2).text().c_str());
       train(trainer);
       std::printf("%s", trainer.memory().c_str());
     }},
    {"refused", [] { train(odd_program(), {.budget_bytes = 1 << 20, .steps = 3, .refusal_ms = 0}); }},
    {"refused-step",
     [] {
       Program own = odd_program();
       own.evaluate = nullptr;
       train(own, {.budget_bytes = 3 << 20, .steps = 3, .refusal_ms = 0});
     }},
    {"shapes",
     [] {
       train(odd_program(-300),
             {.budget_bytes = 7 << 20, .seed = 3, .steps = 5, .evaluate_every = 3, .example_steps = {0, 1}});
     }},
    {"late-shape", [] { train(odd_program(-300), {.budget_bytes = 7 << 20, .seed = 3, .steps = 5}); }},
    {"unfitting",
     [] {
       train(odd_program(7000),
             {.budget_bytes = 9 << 20, .seed = 3, .steps = 5, .refusal_ms = 1, .skips_unfitting = true});
     }},
    {"micro-batches",
     [] {
       Options options{.budget_bytes = 6 << 20, .seed = 3, .steps = 5, .evaluate_every = 4};
       options.step.micro_batches = 3, options.step.clip_norm = 0.5;
       train(odd_program(), options);
     }},
    {"auto",
     [] {
       Options options{.budget_bytes = 4 << 20, .seed = 3, .steps = 3};
       options.step.micro_batches = nn::auto_micro_batches;
       Program own = odd_program();
       own.evaluate = nullptr;
       train(own, options);
     }},
    {"fused",
     [] {
       Options options{.seed = 3, .steps = 3};
       options.step.fuses_optimizer = nn::FusedUpdate::unsecured;
       train(odd_program(), options);
     }},
    {"scaled",  // skips steps
     [] {
       Program own = odd_program();
       own.loss = [](Net& net, const Batch& batch) { return mul(mse_loss(net(batch.x), batch.y), 5.0); };
       train(own, {.seed = 3,
                   .steps = 7,
                   .evaluate_every = 3,
                   .loss_scale = optim::GradScalerOptions{.scale = 3e38, .interval = 2, .most = 3e38},
                   .rate = [](std::int64_t step) { return 1e-3 / static_cast<double>(step + 1); }});
     }},
    {"parts",
     [] {
       Sizes sizes;
       sizes.width = 37, sizes.depth = 3, sizes.samples = [](std::int64_t) { return 1103; };
       nn::Trainer<Rivals, Batch> trainer(rivals(sizes), {.budget_bytes = 8 << 20, .seed = 3, .steps = 4});
       train(trainer);
       std::printf("%s", trainer.explain().c_str());
     }},
    {"frozen",
     [] {
       Program own = odd_program();
       own.optimizer = [](Net& net) {
         std::vector<optim::Named> head;
         for (const optim::Named& p : net.trainable())
           if (p.name.starts_with("head") || p.name.starts_with("block4")) head.push_back(p);
         return std::make_unique<optim::Sgd>(head, optim::SgdOptions{.rate = 0.1, .momentum = 0.9});
       };
       train(own, {.seed = 3, .steps = 4});
     }},
    {"plateau",  // the evaluation gets worse
     [] {
       Program own = odd_program();
       own.evaluate = [calls = std::make_shared<int>(0)](Net&, memory::Device device) {
         return device.is_dry ? 0.0 : 1.0 + ++*calls % 3;
       };
       train(own, {.seed = 3,
                   .steps = 9,
                   .evaluate_every = 1,
                   .plateau = optim::PlateauOptions{.factor = 0.25, .patience = 1, .least_factor = 0.01}});
     }},
    {"patience",
     [] {
       Program own = odd_program();
       own.evaluate = [calls = std::make_shared<int>(0)](Net&, memory::Device device) {
         return device.is_dry ? 0.0 : 5.0 - (++*calls == 2);
       };
       train(own, {.seed = 3, .steps = 9, .evaluate_every = 1, .save = "last.run", .best = "best.run", .patience = 3});
     }},
    {"keep", [] { train(odd_program(), {.seed = 3, .steps = 5, .save = "kept.run", .save_every = 2, .keep = 2}); }},
    {"resume", [] { train(odd_program(), {.seed = 3, .steps = 7, .evaluate_every = 3, .resume = "kept.run"}); }},
    {"resume-other",
     [] {
       Program own = odd_program();
       own.optimizer = [](Net& net) {
         return std::make_unique<optim::Adam>(net.trainable(), optim::AdamOptions{.rate = 3e-3});
       };
       train(own, {.seed = 3, .steps = 7, .resume = "kept.run"});
     }},
    {"ranks",
     [] {
       Options options{.budget_bytes = 4 << 20, .seed = 3, .steps = 3};
       options.step.micro_batches = 2, options.step.clip_norm = 0.5;
       options.ranks.zero = 2, options.ranks.bucket_bytes = 5000;
       Program own = odd_program();
       own.evaluate = nullptr;
       on_ranks(3, own, options);
     }},
    {"zero-3",
     [] {
       Options options{.seed = 3, .steps = 3, .evaluate_every = 2};
       options.ranks.zero = 3;
       on_ranks(2, odd_program(), options);
     }},
    {"offload",
     [] {
       Options options{.budget_bytes = 6 << 20, .seed = 3, .steps = 3};
       options.offload = {.folder = ".", .saved_tensors = true, .optimizer = true, .parameters = true};
       train(odd_program(), options);
     }},
    {"plan-file",
     [] {
       const Options options{.budget_bytes = 6 << 20, .seed = 3, .steps = 2};
       Options from_file{.budget_bytes = 6 << 20, .seed = 3, .steps = 2, .plan = nn::plan_file("own.plan")};
       nn::write_plan("own.plan", nn::Trainer<Net, Batch>(odd_program(), options).step_plan());
       train(odd_program(), from_file);
     }},
    {"diverges",
     [] {
       Program own = odd_program();
       own.optimizer = [](Net& net) {
         return std::make_unique<optim::Sgd>(net.trainable(), optim::SgdOptions{.rate = 1e30});
       };
       train(own, {.seed = 3, .steps = 7, .save = "gone.run", .save_every = 1});
     }},
};

/// `call` must throw; prints the refused option and the message.
void refused(const char* name, const Program& own, const Options& options) {
  try {
    nn::Trainer<Net, Batch>(own, options).run();
    std::printf("%s: taken\n", name);
  } catch (const Error& error) {
    std::printf("%s: %s\n", name, error.what());
  }
}

void refusals() {
  const Program own = odd_program();
  const auto with = [&](const char* name, const std::function<void(Options&)>& change) {
    Options options{.seed = 3, .steps = 2};
    change(options);
    refused(name, own, options);
  };
  with("steps", [](Options& o) { o.steps = -1; });
  with("evaluate_every", [](Options& o) { o.evaluate_every = -2; });
  with("device", [](Options& o) { o.device = memory::dry(cpu); });
  with("judge", [](Options& o) { o.step.recording.plan = std::make_shared<TapePlan>(); });
  with("micro-batches", [](Options& o) { o.step.micro_batches = -3; });
  with("auto without budget", [](Options& o) { o.step.micro_batches = nn::auto_micro_batches; });
  with("auto, fused", [](Options& o) {
    o.step.micro_batches = nn::auto_micro_batches, o.budget_bytes = 1 << 30;
    o.step.fuses_optimizer = nn::FusedUpdate::unsecured;
  });
  with("offload.read_ahead", [](Options& o) { o.offload.read_ahead = -1; });
  with("offload.folder of nothing", [](Options& o) { o.offload.folder = "."; });
  with("offload without folder", [](Options& o) { o.offload.optimizer = true; });
  with("saved_tensors", [](Options& o) { o.offload.saved_tensors = true, o.offload.folder = "."; });
  with("captures_steps", [](Options& o) { o.captures_steps = true; });
  with("plan and auto", [](Options& o) {
    o.plan = nn::plan_file("own.plan"), o.step.micro_batches = nn::auto_micro_batches, o.budget_bytes = 1 << 30;
  });
  with("no plan file", [](Options& o) { o.plan = nn::plan_file("none.plan"); });
  with("refusal_ms", [](Options& o) { o.refusal_ms = -1; });
  with("patience", [](Options& o) { o.patience = -1; });
  with("patience without evaluations", [](Options& o) { o.patience = 2; });
  with("plateau without evaluations", [](Options& o) { o.plateau.emplace(); });
  with("plateau's factor", [](Options& o) { o.evaluate_every = 1, o.plateau = optim::PlateauOptions{.factor = 1}; });
  with("plateau's patience",
       [](Options& o) { o.evaluate_every = 1, o.plateau = optim::PlateauOptions{.patience = -1}; });
  with("micro_samples", [](Options& o) { o.step.micro_samples = 4; });
  with("wrong micro_samples", [](Options& o) { o.step.micro_batches = 3, o.step.micro_samples = 4; });
  with("zero", [](Options& o) { o.ranks.zero = 4; });
  with("zero without ranks", [](Options& o) { o.ranks.zero = 1; });
  with("tensor_parallel", [](Options& o) { o.ranks.tensor_parallel = 0; });
  with("nothing sharded", [](Options& o) { o.ranks.tensor_parallel = 2; });
  with("sharded", [](Options& o) { o.ranks.sharded.push_back({}); });
  with("ranks.read_ahead", [](Options& o) { o.ranks.read_ahead = -1; });
  with("ranks.read_ahead without zero", [](Options& o) { o.ranks.read_ahead = 2; });
  with("bucket_bytes", [](Options& o) { o.ranks.bucket_bytes = 3; });
  with("hardware", [](Options& o) { o.hardware = "cpu"; });
  with("no such hardware", [](Options& o) { o.hardware = "abacus", o.budget_bytes = 1 << 30; });
  with("packs", [](Options& o) { o.planner.spilling.packs = true; });
  with("skips_unfitting", [](Options& o) { o.skips_unfitting = true; });
  with("changes_options", [](Options& o) { o.changes_options = true; });
  with("keep without save", [](Options& o) { o.keep = 2; });
  with("keep", [](Options& o) { o.keep = 0; });
  with("save_every", [](Options& o) { o.save_every = -1; });
  with("save_every without save", [](Options& o) { o.save_every = 1; });
  with("save in no folder", [](Options& o) { o.save = "none/here.run"; });
  with("save onto a text", [](Options& o) { o.save = "text.txt"; });
  with("no resume", [](Options& o) { o.resume = "none.run"; });
  with("resume of a text", [](Options& o) { o.resume = "text.txt"; });
  with("resume with another seed", [](Options& o) { o.resume = "kept.run", o.seed = 4, o.steps = 9; });
  with("resume of all steps", [](Options& o) { o.resume = "kept.run"; });
  with("resume with clipping", [](Options& o) { o.resume = "kept.run", o.steps = 9, o.step.clip_norm = 2; });
  with("fp8 clip", [](Options& o) { o.step.clip_norm = -1; });
  with("fused and clipped",
       [](Options& o) { o.step.clip_norm = 1, o.step.fuses_optimizer = nn::FusedUpdate::unsecured; });
  with("a loss scale of 0", [](Options& o) { o.loss_scale = optim::GradScalerOptions{.scale = 0}; });
  const auto program = [&](const char* name, const std::function<void(Program&)>& change,
                           Options options = {.steps = 2}) {
    Program other = own;
    change(other);
    refused(name, other, options);
  };
  Options cut;
  cut.step.micro_batches = 3;
  program("no model", [](Program& p) { p.model = nullptr; });
  program("no batch", [](Program& p) { p.batch = nullptr; });
  program("both batches",
          [](Program& p) { p.batch_of_model = [](Net&, std::int64_t, memory::Device) { return Batch{}; }; });
  program("no loss", [](Program& p) { p.loss = nullptr; });
  program("parts and a loss", [](Program& p) { p.parts = {{"net", p.optimizer, p.loss}}; });
  program("parts of one name", [](Program& p) {
    p.parts.assign(2, {"net", p.optimizer, p.loss});
    p.optimizer = nullptr, p.loss = nullptr;
  });
  program(
      "no cut", [](Program& p) { p.micro_batch = nullptr; }, cut);
  program("no evaluation", [](Program& p) { p.evaluate = nullptr; }, {.steps = 2, .evaluate_every = 1});
  program("best without evaluation", [](Program& p) { p.evaluate = nullptr; }, {.steps = 2, .best = "b.run"});
  program("an evaluation above the budget",
          [](Program& p) {
            p.evaluate = [](Net& net, memory::Device device) {
              Sizes sizes;
              sizes.width = 37, sizes.samples = [](std::int64_t) { return 50000; };
              return nn::read_value(mean(net(make_batch(sizes, 0, device).x)));
            };
          },
          {.budget_bytes = 6 << 20, .steps = 2});
  program("a loss of many", [](Program& p) { p.loss = [](Net& net, const Batch& b) { return net(b.x); }; });
  program("a loss of nothing", [](Program& p) { p.loss = [](Net&, const Batch& b) { return mean(b.x); }; });
  program("a parameter twice", [](Program& p) {
    p.parts = {{"one", p.optimizer, p.loss}, {"other", p.optimizer, p.loss}};
    p.optimizer = nullptr, p.loss = nullptr;
  });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    kernels::set_from_environment();
    if (argc > 1 && std::strcmp(argv[1], "refusals") == 0) refusals();
    for (const Case& each : cases) {
      if (argc < 2) std::printf("%s\n", each.name);
      if (argc > 1 && std::strcmp(each.name, argv[1]) == 0) each.run();
    }
  } catch (const Error& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
