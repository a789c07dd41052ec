#pragma once
// An exponential moving average of parameters (Polyak & Juditsky 1992; as torch.optim.swa_utils with an EMA).
//
//   struct Net : nn::Module {
//     explicit Net(memory::Device device) { ...; average = &child<nn::WeightAverage>("average", trainable(), 0.999); }
//   };
//   program.after_update = [](Net& net) { net.average->update(); };        // nn/trainer/trainer.h
//   program.evaluate = [](Net& net, memory::Device device) {
//     const nn::WeightAverage::Exchange averaged(*net.average);            // evaluates with the averages
//     ...
//   };

#include <vector>

#include <thimble/nn/layers/module.h>

namespace thimble::nn {

/// The averages are f32 buffers (f64 for f64) with their parameters' names, so a checkpoint of the model has them.
class WeightAverage : public Module {
 public:
  /// Averages start with the values of `parameters`, which must outlive this. Throws ValueError unless 0 <= decay < 1.
  WeightAverage(const std::vector<Named>& parameters, double decay);

  /// average = decay x average + (1 - decay) x parameter. Needs memory for two tensors of the largest parameter's size.
  void update();

  /// Swaps the values of parameters and averages for a scope. Needs memory for one tensor of the largest parameter's
  /// size.
  class Exchange {
   public:
    explicit Exchange(WeightAverage& average) : average_(average) { average_.exchange(); }
    ~Exchange() { average_.exchange(); }
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

   private:
    WeightAverage& average_;
  };

 private:
  void exchange();

  double decay_;
  std::vector<Tensor> parameters_;
  std::vector<Buffer> averages_;
};

}  // namespace thimble::nn
