#pragma once
// All differentiable functions. Each runs one operator (core/ops/) and records it when a tape is active.

#include <thimble/autograd/functions/attention.h>
#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/indexing.h>
#include <thimble/autograd/functions/loss.h>
#include <thimble/autograd/functions/matmul.h>
#include <thimble/autograd/functions/norm.h>
#include <thimble/autograd/functions/quant.h>
#include <thimble/autograd/functions/recurrent.h>
#include <thimble/autograd/functions/reduction.h>
#include <thimble/autograd/functions/view.h>
