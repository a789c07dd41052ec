// Experiments: bytes that a forward keeps for backward, in ResNets against the batch and branch by branch, and in a
// transformer's layer.

#include <thimble/autograd/tape.h>
#include <thimble/bench/experiments/experiments.h>
#include <thimble/core/tensor/transaction.h>
#include <thimble/models/theory.h>

namespace thimble::bench {
namespace {

/// Bytes that a forward in training keeps for backward, in a separate arena.
struct ForwardBytes {
  std::size_t activation = 0;        ///< temporaries kept for backward
  std::size_t input = 0;             ///< the batch
  std::vector<std::size_t> by_path;  ///< activation bytes at and below each module path
  ProcessBytes process;              ///< of the forward
};

ForwardBytes forward_bytes(memory::Device device, const models::Setup& setup,
                           const std::vector<std::string>& paths = {}) {
  const memory::Stack stack = memory::make_resource(device);
  const PartWatch watch(device);
  const ResourceScope scope(stack.top);
  RandomGenerator generator(setup.seed);
  const GeneratorScope random(generator);
  const auto model = models::make_model(setup.model, setup.sizes, {device, setup.precision.dtype});
  const models::Batch batch = model->empty_batch(setup.batch, device);
  const tape::Transaction transaction;
  Tape tape;
  const Recording on(tape);
  const Tensor loss = model->loss(batch);
  ForwardBytes bytes{
      stack.ledger->bytes(memory::Category::activation), stack.ledger->bytes(memory::Category::input), {}, {}};
  for (const std::string& path : paths)
    bytes.by_path.push_back(stack.ledger->bytes(memory::Category::activation, path));
  bytes.process = watch.bytes(*stack.arena, tape.node_count());
  return bytes;
}

Both<ForwardBytes> forwards(const Rows& rows, const models::Setup& setup, const std::vector<std::string>& paths = {}) {
  return rows.both([&](memory::Device device) { return forward_bytes(device, setup, paths); });
}

std::pair<std::size_t, ProcessBytes> process_of(const Both<ForwardBytes>& bytes) {
  return {bytes.predicted.process.arena_bytes, bytes.measured.process};
}

struct Family {
  const char* model;
  std::int64_t image;
  std::vector<std::int64_t> batches;
};

Figures family_figures(const Rows& rows, const Family& family, std::int64_t batch) {
  const models::Setup setup = setup_of(family.model, batch, {.image = family.image, .build = models::Build::textbook});
  // The literature's saved set, linear in the batch; the other terms of the textbook build become the remainder.
  std::int64_t counted = 0;
  std::vector<std::pair<std::string, std::int64_t>> remainder;
  for (const models::Term& term : models::make_theory(setup.model, setup.sizes, setup.precision.dtype).outside) {
    const bool is_counted = term.name == "input" || term.name == "conv outputs" || term.name == "relu outputs" ||
                            term.name == "pool output" || term.name == "fc input";
    if (is_counted) {
      counted += term.bytes(batch);
    } else {
      remainder.emplace_back(term.name, term.bytes(batch));
    }
  }
  const Both<ForwardBytes> bytes = forwards(rows, setup);
  // The ledger books the batch as input, but backward keeps it too, so the theory counts it.
  const auto kept = [](const ForwardBytes& b) { return static_cast<std::int64_t>(b.activation + b.input); };
  const std::int64_t predicted = kept(bytes.predicted);
  return {.theory = counted,
          .predicted = predicted,
          .measured = kept(bytes.measured),
          .remainder = remainder,
          .numbers = {{"per_image", static_cast<double>(predicted) / static_cast<double>(batch)}},
          .processes = {process_of(bytes)}};
}

/// A bottleneck block of ResNet-50: `width` channels inside, four times as many behind it.
struct Bottleneck {
  const char* path;
  std::int64_t width, image_in, image_out;  ///< pictures are square
  bool has_convolution;                     ///< on the shortcut; else the input is added as it is

  std::int64_t out() const { return 4 * width; }
  // Outputs of 1x1, 3x3 and 1x1, the two ReLUs between them, and the ReLU behind the sum.
  std::int64_t main_elements() const {
    return 2 * width * image_in * image_in + (2 * width + 2 * out()) * image_out * image_out;
  }
  std::int64_t shortcut_elements() const { return has_convolution ? out() * image_out * image_out : 0; }
  // Mean and 1 / deviation of each channel of a batch norm.
  std::int64_t main_statistics() const { return 2 * (2 * width + out()); }
  std::int64_t shortcut_statistics() const { return has_convolution ? 2 * out() : 0; }
};

constexpr Bottleneck blocks[] = {{"resnet.layer1.0", 64, 56, 56, true},
                                 {"resnet.layer1.1", 64, 56, 56, false},
                                 {"resnet.layer2.0", 128, 56, 28, true},
                                 {"resnet.layer3.0", 256, 28, 14, true},
                                 {"resnet.layer4.0", 512, 14, 7, true}};

void add_branches(Rows& rows, std::int64_t batch) {
  rows.say("batch " + std::to_string(batch));
  std::vector<std::string> paths;
  for (const Bottleneck& block : blocks) {
    paths.insert(paths.end(), {block.path, std::string(block.path) + ".downsample"});
  }
  const Both<ForwardBytes> all =
      forwards(rows, setup_of("resnet50", batch, {.image = 224, .build = models::Build::textbook}), paths);
  for (std::size_t i = 0; i < std::size(blocks); ++i) {
    const Bottleneck& block = blocks[i];
    for (const bool is_shortcut : {false, true}) {
      const auto bytes = [&](const ForwardBytes& of) {
        const std::size_t shortcut = of.by_path[2 * i + 1];
        return is_shortcut ? shortcut : of.by_path[2 * i] - shortcut;
      };
      rows.add({{"block", block.path}, {"branch", is_shortcut ? "shortcut" : "main path"}, {"batch", batch}},
               Figures{.theory = 4 * batch * (is_shortcut ? block.shortcut_elements() : block.main_elements()),
                       .predicted = bytes(all.predicted),
                       .measured = bytes(all.measured),
                       .remainder = {{"batch-norm statistics",
                                      4 * (is_shortcut ? block.shortcut_statistics() : block.main_statistics())}},
                       .processes = {process_of(all)}});
    }
  }
}

struct LayerSizes {
  std::int64_t sequence, batch, width, heads;
};

Figures layer_figures(const Rows& rows, const LayerSizes& s, models::Build build) {
  const models::Setup setup = setup_of(
      "char-gpt", s.batch,
      {.sequence = s.sequence, .layers = 2, .heads = s.heads, .width = s.width, .dropout = 0.1, .build = build});
  const models::LayerTheory layer = models::make_theory(setup.model, setup.sizes, setup.precision.dtype).layers[1];
  std::int64_t counted = 0, statistics = 0;  // statistics of norms are outside of the paper's count
  for (const models::Term& term : layer.kept) {
    (term.name == "norm statistics" ? statistics : counted) += term.bytes(s.batch);
  }
  const Both<ForwardBytes> bytes = forwards(rows, setup, {layer.path});
  const auto predicted = static_cast<double>(bytes.predicted.by_path[0]);
  return {.theory = counted,
          .predicted = bytes.predicted.by_path[0],
          .measured = bytes.measured.by_path[0],
          .remainder = {{"layer-norm statistics", statistics}},
          .numbers = {{"per_token", predicted / static_cast<double>(s.sequence * s.batch)}},
          .processes = {process_of(bytes)}};
}

}  // namespace

std::string run_resnet_batch(Rows& rows) {
  const std::vector<Family> families = rows.sizes<std::vector<Family>>(
      {{"resnet18", 32, {1, 2, 4, 8, 16}}, {"resnet50", 224, {1, 2}}}, {{"resnet18", 32, {1, 2, 4, 8, 16, 32, 64}},
                                                                        {"resnet18", 224, {1, 2, 4, 8}},
                                                                        {"resnet50", 224, {1, 2, 4, 8, 16}},
                                                                        {"resnet101", 224, {1, 2, 4}}});
  for (const Family& family : families) {
    for (const std::int64_t batch : family.batches) {
      rows.add({{"model", family.model}, {"image", family.image}, {"batch", batch}},
               [&] { return family_figures(rows, family, batch); });
    }
  }
  return "Linear, with the theory's slope. " + explained_rows(rows.experiment);
}

std::string run_resnet_branches(Rows& rows) {
  for (const std::int64_t batch : rows.sizes<std::vector<std::int64_t>>({1}, {1, 8})) {
    add_branches(rows, batch);
  }
  return "A shortcut that adds its input as it is keeps nothing. " + explained_rows(rows.experiment);
}

std::string run_gpt_layer(Rows& rows) {
  std::vector<LayerSizes> sizes{{64, 2, 128, 4}, {128, 2, 128, 4}, {256, 2, 128, 4}, {512, 2, 128, 4}};
  if (!rows.options.is_quick) sizes.push_back({1024, 2, 128, 4});
  const LayerSizes others[] = {{128, 1, 128, 4}, {128, 4, 128, 4}, {128, 2, 256, 4},
                               {128, 2, 64, 4},  {128, 2, 128, 1}, {128, 2, 128, 8}};
  sizes.insert(sizes.end(), std::begin(others), std::end(others));
  if (!rows.options.is_quick) sizes.push_back({1024, 1, 768, 12});
  for (const models::Build build : {models::Build::textbook, models::Build::fused}) {
    for (const LayerSizes& s : sizes) {
      rows.add({{"build", build == models::Build::textbook ? "textbook" : "tiled attention"},
                {"s", s.sequence},
                {"b", s.batch},
                {"h", s.width},
                {"a", s.heads}},
               [&] { return layer_figures(rows, s, build); });
    }
  }
  return explained_rows(rows.experiment);
}

}  // namespace thimble::bench
