# The library's layers, bottom first, and the other layers that each may include. They give the build its folders, the
# single header its order and the layering test its rule. A new layer adds an entry to both parts.
set(thimble_layers core memory cuda autograd optim dist nn models)

set(thimble_core_includes "")
set(thimble_memory_includes core)
set(thimble_cuda_includes core memory)
set(thimble_autograd_includes core memory)
set(thimble_optim_includes core memory autograd)
set(thimble_dist_includes core memory cuda autograd optim)
set(thimble_nn_includes core memory autograd optim dist)
set(thimble_models_includes core memory autograd optim nn dist)
