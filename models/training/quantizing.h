#pragma once
// Quantizes a trained model to 8 bits, and measures cost and savings.

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
  memory::Device device = cpu;  ///< that the nets run on
  std::string weights;  ///< the trained model in safetensors, a file or a folder, which sets its sizes and function
  std::string data;     ///< for open_dataset
  nn::quant::CalibrationOptions calibration;
  std::int64_t calibration_batches = 4;  ///< of the training split
  std::int64_t eval_batches = 0;         ///< of the validation split; 0 takes all
  std::string save;                      ///< file to write, if any
  bool overwrites = false;               ///< may replace a file of another kind
};

struct QuantizeReport {
  std::string scheme;  ///< "int8" for images; "q8_0" for text, only weights
  std::int64_t parameters = 0;
  std::size_t f32_file_bytes = 0;                           ///< of `weights`
  std::size_t int8_file_bytes = 0;                          ///< of the written file, or 0
  std::size_t f32_weight_bytes = 0, int8_weight_bytes = 0;  ///< in memory
  double loss_f32 = 0, loss_int8 = 0;                       ///< mean over the validation split
  std::optional<double> accuracy_f32, accuracy_int8;        ///< of images
  /// Of inference in int8 on images: dry run and real run.
  std::size_t predicted_peak_bytes = 0, measured_peak_bytes = 0;
  memory::OutsideBytes outside;        ///< of the real run on the cpu: a bound of the bytes outside the arena
  std::size_t process_peak_bytes = 0;  ///< resident in the process since its set-up; 0 if unknown
  /// Per batch, the best of several alternating runs: processor time, on a GPU wall time until the device is done.
  double ms_f32 = 0, ms_int8 = 0;
  std::vector<nn::quant::StepError> layers;  ///< on the first calibration batch; for text, of the weights
};

/// Loads, calibrates, quantizes, compares and writes. Models over images become nets of 8-bit codes
/// (nn/quant/quantized_model.h); in models over text, linear weights become Q8_0 blocks (nn/quant/weight_only.h).
/// Throws ValueError, FileError, ShapeError, and then has written nothing.
QuantizeReport quantize(const QuantizeOptions& options);

/// Makes runs whose step is inference of the setup's model in int8, untrained, on a batch of zeros. The net is in the
/// device's default resource. The runs throw ValueError for models over text and nets that cannot be quantized.
nn::MakeRun int8_inference_run(const Setup& setup);
/// Makes such runs only for `device`. Makes the net at once, which lives as long as the returned function, so that it
/// is already there when a run's process is watched.
nn::MakeRun int8_inference_run(const Setup& setup, memory::Device device);

}  // namespace thimble::models
