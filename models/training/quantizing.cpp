#include <thimble/models/datasets/dataset_text.h>
#include <thimble/models/techniques/adapting.h>
#include <thimble/models/training/quantizing.h>
#include <thimble/models/weights/follow_weights.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <tuple>

#include <thimble/autograd/functions/loss.h>
#include <thimble/core/error.h>
#include <thimble/core/files/outputs.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/stack.h>
#include <thimble/memory/units.h>
#include <thimble/models/datasets/dataset.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/quant/quantized_model.h>
#include <thimble/nn/quant/weight_only.h>

namespace thimble::models {
namespace {

using namespace nn::quant;

constexpr int timed_runs = 5;

std::unique_ptr<FoldedNet> fold(Model& model, memory::Device device) {
  const Batch one = model.empty_batch(1, device);
  return std::make_unique<FoldedNet>(
      model, [&](const Tensor& x) { return model.forward(x); }, one.input);
}

/// Inference of a quantized net, made in the arena of the run; the net that it is made from lives elsewhere.
class Int8Run final : public nn::TrainingRun {
 public:
  Int8Run(const FoldedNet& net, const Scales& scales, const Tensor& batch) : net_(net, scales), input_(batch) {
    for (std::size_t i = 0; i < net.program().steps.size(); ++i) {
      if (!net.program().steps[i].has_weight()) continue;
      parameters_ += net.weight(i).elements() + net.bias(i).elements();
    }
  }
  void step() override { net_(input_); }
  nn::StepOptions& options() override { return options_; }
  std::int64_t parameters() const override { return parameters_; }

 private:
  QuantizedModel net_;
  Tensor input_;
  nn::StepOptions options_;
  std::int64_t parameters_ = 0;
};

/// Profiles the calibrated net on a real batch.
nn::MemoryProfile measured_profile(const FoldedNet& net, const Scales& scales, const Tensor& batch) {
  return nn::profile_training(batch.device(), [&](memory::Device) {
    const Tensor own = clone(batch, memory::Category::input);
    return std::make_unique<Int8Run>(net, scales, own);
  });
}

struct Evaluation {
  double loss = 0;
  std::optional<double> accuracy;
};

/// Mean loss over the validation split; for images also the accuracy.
template <class Forward>
Evaluation evaluate(const QuantizeOptions& options, const Dataset& data, bool is_text, Model& model,
                    Forward&& forward) {
  const NoGrad off;
  const std::int64_t all = data.validation_batches();
  const std::int64_t count = options.eval_batches > 0 ? std::min(options.eval_batches, all) : all;
  double loss = 0, right = 0, samples = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Batch batch = data.validation_batch(i, options.device, DType::f32);
    const auto n = static_cast<double>(batch.input.size(0));
    samples += n;
    if (is_text) {
      loss += n * item(model.loss(batch));
      continue;
    }
    const Tensor scores = forward(batch.input);  // (N, K)
    loss += n * item(cross_entropy(scores, batch.target));
    right += static_cast<double>(count_correct(scores, batch.target));
  }
  Evaluation result{without_sign_of_nan(loss / samples), {}};
  if (!is_text) result.accuracy = right / samples;
  return result;
}

std::size_t bytes_of(const nn::Module& model) {
  std::size_t bytes = 0;
  for (const nn::NamedTensor& t : model.parameters()) bytes += t.tensor.bytes();
  for (const nn::NamedTensor& t : model.buffers()) bytes += t.tensor.bytes();
  return bytes;
}

/// Processor time; for a GPU wall time after synchronizing the device.
double now_ms(memory::Device device) {
  if (!device.is_cuda()) return process::processor_ms();
  kernels::device_runtime(device).synchronize(device);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The fastest of alternating runs of each.
template <class F, class G>
std::pair<double, double> alternate(memory::Device device, F&& f, G&& g) {
  const NoGrad off;
  double of_f = 0, of_g = 0;
  for (int i = 0; i < timed_runs; ++i) {
    const double start = now_ms(device);
    f();
    const double middle = now_ms(device);
    g();
    const double end = now_ms(device);
    of_f = i == 0 ? middle - start : std::min(of_f, middle - start);
    of_g = i == 0 ? end - middle : std::min(of_g, end - middle);
  }
  return {of_f, of_g};
}

void quantize_images(const QuantizeOptions& options, Model& model, const Dataset& data, QuantizeReport& report) {
  report.scheme = "int8";
  const std::unique_ptr<FoldedNet> folded = fold(model, options.device);
  FoldedNet& net = *folded;
  const auto batch = [&](std::int64_t i) { return data.batch(i, options.device, DType::f32).input; };
  const Scales scales = calibrate(net, options.calibration_batches, batch, options.calibration);
  QuantizedModel quantized(net, scales);
  const auto exact = evaluate(options, data, false, model, [&](const Tensor& x) { return model.forward(x); });
  const auto coarse = evaluate(options, data, false, model, [&](const Tensor& x) { return quantized(x); });
  report.loss_f32 = exact.loss, report.loss_int8 = coarse.loss;
  report.accuracy_f32 = exact.accuracy, report.accuracy_int8 = coarse.accuracy;
  report.int8_weight_bytes = quantized.weight_bytes();
  const Tensor first = batch(0);
  report.layers = compare(net, quantized, first);
  report.predicted_peak_bytes = nn::profile_training(dry(options.device), int8_inference_run(options.setup)).peak_bytes;
  const nn::MemoryProfile measured = measured_profile(net, scales, first);
  report.measured_peak_bytes = measured.peak_bytes;
  report.outside = measured.outside;
  report.process_peak_bytes = measured.process_peak_bytes;
  std::tie(report.ms_f32, report.ms_int8) = alternate(
      options.device, [&] { model.forward(first); }, [&] { quantized(first); });
  if (!options.save.empty()) quantized.save(options.save, {{"model", options.setup.model}});
}

void quantize_text(const QuantizeOptions& options, Model& model, const Dataset& data, QuantizeReport& report) {
  report.scheme = "q8_0";
  const Tensor first = data.batch(0, options.device, DType::f32).input;
  const auto whole = [](const Tensor&) { return Tensor(); };
  report.loss_f32 = evaluate(options, data, true, model, whole).loss;
  const auto plain = make_model(options.setup.model, options.setup.sizes, {options.device});
  nn::load_weights(*plain, options.weights);
  plain->eval();
  quantize_linear_weights(model);
  report.layers = compare_weights(*plain, model);
  report.loss_int8 = evaluate(options, data, true, model, whole).loss;
  report.int8_weight_bytes = bytes_of(model);
  std::tie(report.ms_f32, report.ms_int8) = alternate(
      options.device, [&] { plain->forward(first); }, [&] { model.forward(first); });
  if (options.save.empty()) return;
  nn::Metadata metadata = function_metadata(options.setup.model, model.options());
  metadata.insert({{"model", options.setup.model}, {"format", "thimble-q8_0-1"}});
  if (const std::string symbols = data.symbols(); !symbols.empty()) metadata["characters"] = to_hexadecimal(symbols);
  if (const std::string tokenizer = data.tokenizer(); !tokenizer.empty()) metadata["tokenizer"] = tokenizer;
  nn::save_weights(model, options.save, metadata);
}

}  // namespace

nn::MakeRun int8_inference_run(const Setup& setup, memory::Device device) {
  const ResourceScope outside(memory::default_stack(device).top);
  const std::shared_ptr<Model> model = make_model(setup.model, setup.sizes, {device, DType::f32});
  if (model->is_text()) {
    throw ValueError("int8: " + setup.model + " is a model over text; expected a model over images");
  }
  return [batch = setup.batch, model, net = std::shared_ptr<const FoldedNet>(fold(*model, device))](memory::Device on) {
    return std::make_unique<Int8Run>(*net, unit_scales(net->program()), model->empty_batch(batch, on).input);
  };
}

nn::MakeRun int8_inference_run(const Setup& setup) {
  return [setup](memory::Device device) { return int8_inference_run(setup, device)(device); };
}

QuantizeReport quantize(const QuantizeOptions& options) {
  QuantizeOptions o = options;
  if (o.setup.precision.dtype != DType::f32)
    throw ValueError("`dtype`: " + std::string(to_string(o.setup.precision.dtype)) + "; expected f32");
  check_outputs({{"`save`", o.save, &file_kinds::weights}},
                {{"`weights`", o.weights}, {"`data`", o.data}, {"`tokenizer`", o.setup.tokenizer}}, o.overwrites);
  const WeightFacts facts = read_weight_facts(o.weights);
  follow_weights(o.setup.model, o.setup.sizes, facts, WeightUse::writing);
  const auto named = make_model(o.setup.model, o.setup.sizes, {dry(cpu), DType::f32});
  const auto data = open_dataset(o.data, *named, o.setup.model, o.setup.seed, o.setup.tokenizer);
  data->fit(o.setup.sizes);
  check_tokens(facts, *data);
  data->open(o.setup.sizes, o.setup.batch, o.setup.seed);
  const auto model = make_model(o.setup.model, o.setup.sizes, {o.device});
  nn::load_weights(*model, o.weights);
  model->eval();
  QuantizeReport report;
  report.parameters = model->parameter_count();
  report.f32_file_bytes =
      std::filesystem::is_regular_file(o.weights) ? std::filesystem::file_size(o.weights) : facts.bytes;
  report.f32_weight_bytes = bytes_of(*model);
  model->is_text() ? quantize_text(o, *model, *data, report) : quantize_images(o, *model, *data, report);
  if (!o.save.empty()) report.int8_file_bytes = std::filesystem::file_size(o.save);
  return report;
}

}  // namespace thimble::models
