#pragma once

#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/generator.h>
#include <thimble/memory/stack.h>
#include <thimble/nn/step/profile.h>

namespace thimble::nn {

/// While it lives, tensors on the dry twin of `device` are counted separately, and random numbers are drawn separately.
struct DryScope {
  explicit DryScope(memory::Device device)
      : stack(memory::make_resource(dry(device), profile_options(dry(device)))),
        resource(stack.top),
        numbers(generator) {}
  memory::Stack stack;
  ResourceScope resource;
  RandomGenerator generator{0};
  GeneratorScope numbers;
};

}  // namespace thimble::nn
