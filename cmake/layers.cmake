# The layers of the library, bottom first, and which other layers each may include. The build takes its folders from
# here, the single header its order, and the layering test its rule: a new layer is one line in each of the two parts.
set(thimble_layers core memory cuda autograd optim dist nn models)

set(thimble_core_includes "")
set(thimble_memory_includes core)
set(thimble_cuda_includes core memory)
set(thimble_autograd_includes core memory)
set(thimble_optim_includes core memory autograd)
set(thimble_dist_includes core memory cuda autograd optim)
set(thimble_nn_includes core memory autograd optim dist)
set(thimble_models_includes core memory autograd optim nn dist)
