#pragma once
// The emulated driver's calls by the type names that cuda/runtime/driver.h uses.

#include "cuda.h"

using PFN_cuMemAddressReserve_v10020 = CUresult (*)(CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr,
                                                    unsigned long long);
using PFN_cuMemAddressFree_v10020 = CUresult (*)(CUdeviceptr, std::size_t);
using PFN_cuMemCreate_v10020 = CUresult (*)(CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*,
                                            unsigned long long);
using PFN_cuMemRelease_v10020 = CUresult (*)(CUmemGenericAllocationHandle);
using PFN_cuMemMap_v10020 = CUresult (*)(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle,
                                         unsigned long long);
using PFN_cuMemUnmap_v10020 = CUresult (*)(CUdeviceptr, std::size_t);
using PFN_cuMemSetAccess_v10020 = CUresult (*)(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t);
using PFN_cuMemGetAllocationGranularity_v10020 = CUresult (*)(std::size_t*, const CUmemAllocationProp*,
                                                              CUmemAllocationGranularity_flags);
using PFN_cuGetErrorName_v6000 = CUresult (*)(CUresult, const char**);
using PFN_cuGetErrorString_v6000 = CUresult (*)(CUresult, const char**);
