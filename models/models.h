#pragma once
// For programs that plan and train the library's named models; include it with thimble.h.

#include <thimble/models/datasets/dataset.h>
#include <thimble/models/generation/generating.h>
#include <thimble/models/llama/llama_files.h>
#include <thimble/models/lora_theory.h>
#include <thimble/models/model.h>
#include <thimble/models/planning/planning.h>
#include <thimble/models/techniques/adapting.h>
#include <thimble/models/training/quantizing.h>
#include <thimble/models/training/training.h>
#include <thimble/models/weights/follow_weights.h>
