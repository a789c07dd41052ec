#pragma once
// All built-in elementwise functors, for code that expands their list or names one of them.

#include <thimble/core/ops/elementwise/binary.h>
#include <thimble/core/ops/elementwise/elementwise_list.h>
#include <thimble/core/ops/elementwise/unary.h>
#include <thimble/core/ops/reduction/reduction_functors.h>
