#pragma once
// All built-in elementwise functors, for code that expands their list or names one of them.

#include <thimble/core/kernels/functors/binary.h>
#include <thimble/core/kernels/functors/elementwise_list.h>
#include <thimble/core/kernels/functors/reduction_functors.h>
#include <thimble/core/kernels/functors/unary.h>
