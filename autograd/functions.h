#pragma once
// All differentiable functions. Each runs one operator (core/ops/) and records it when a tape is active.

#include <thimble/autograd/functions/attention.h>
#include <thimble/autograd/functions/dropout.h>
#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/fp8.h>
#include <thimble/autograd/functions/indexing.h>
#include <thimble/autograd/functions/lines.h>
#include <thimble/autograd/functions/loss.h>
#include <thimble/autograd/functions/matmul.h>
#include <thimble/autograd/functions/norm.h>
#include <thimble/autograd/functions/pool.h>
#include <thimble/autograd/functions/q8.h>
#include <thimble/autograd/functions/recurrent.h>
#include <thimble/autograd/functions/reduction.h>
#include <thimble/autograd/functions/softmax.h>
#include <thimble/autograd/functions/view.h>
