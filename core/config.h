#pragma once
// Macros shared by all layers.

#if defined(__CUDACC__)
#define THIMBLE_HD __host__ __device__
#else
#define THIMBLE_HD
#endif
