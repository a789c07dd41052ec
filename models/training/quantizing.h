#pragma once
// A trained model in 8 bits, with its cost and savings.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <thimble/memory/process/outside.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/nn/quant/calibrate.h>
#include <thimble/nn/quant/error_report.h>

namespace thimble::models {

struct QuantizeOptions {
  Setup setup;                  ///< model, sizes, batch, seed
  memory::Device device = cpu;  ///< where the nets run
  std::string weights;  ///< safetensors of the trained model, in a file or a folder, which set its sizes and function
  std::string data;     ///< see open_dataset
  nn::quant::CalibrationOptions calibration;
  std::int64_t calibration_batches = 4;  ///< of the part to train on
  std::int64_t eval_batches = 0;         ///< of the validation part; 0: all
  std::string save;                      ///< file to write; empty: none
  bool overwrites = false;               ///< it may replace a file of another kind
};

struct QuantizeReport {
  std::string scheme;  ///< "int8" for images; "q8_0", only weights, for text
  std::int64_t parameters = 0;
  std::size_t f32_file_bytes = 0;                           ///< of `weights`
  std::size_t int8_file_bytes = 0;                          ///< of the written file; 0: none
  std::size_t f32_weight_bytes = 0, int8_weight_bytes = 0;  ///< in memory
  double loss_f32 = 0, loss_int8 = 0;                       ///< mean over the validation part
  std::optional<double> accuracy_f32, accuracy_int8;        ///< of images
  std::size_t predicted_peak_bytes = 0,
              measured_peak_bytes = 0;  ///< of inference in int8, images: dry run and real run
  memory::OutsideBytes outside;         ///< of the real one, on the cpu: a bound of the bytes outside of the arena
  std::size_t process_peak_bytes = 0;   ///< resident in the process since its set-up; 0: not known
  /// For a batch, the best of several, alternating: processor time; on a GPU until the device is done.
  double ms_f32 = 0, ms_int8 = 0;
  std::vector<nn::quant::StepError> layers;  ///< on the first calibration batch; of text, of the weights
};

/// Loads, calibrates, quantizes, compares and writes. Models over images become nets of 8-bit codes
/// (nn/quant/quantized_model.h); of models over text the weights of the linear layers become Q8_0 blocks
/// (nn/quant/weight_only.h). Throws ValueError, FileError, ShapeError; nothing is written then.
QuantizeReport quantize(const QuantizeOptions& options);

/// Makes runs whose step is inference of the setup's model in int8, on a batch of zeros; weights need not be trained.
/// Its net lives in the default resource of the device. Running throws ValueError for models over text and for nets
/// that cannot be quantized.
nn::MakeRun int8_inference_run(const Setup& setup);
/// The same for runs only on this device, whose net is made now, and lives as long as the returned function: so it is
/// there when the process of a run is watched.
nn::MakeRun int8_inference_run(const Setup& setup, memory::Device device);

}  // namespace thimble::models
