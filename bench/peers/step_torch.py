"""A training step in PyTorch, the twin of step_benchmark: step_torch.py MODEL BATCH [STEPS] [ckpt] [bf16] [compile]

MODEL: char-gpt, tiny-llama, resnet50 (224 x 224) or resnet18 (32 x 32). Images are NHWC (channels_last), attention is
scaled_dot_product_attention where this PyTorch has it; AdamW and SGD run fused where it can. Prints one line in the form
of step_benchmark; THREADS is read from OMP_NUM_THREADS. `growth` is that of the process's resident bytes from the model
on, `saved` what autograd keeps for backward.
"""
import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torch_nets import Gpt, Llama, Resnet

NAME, BATCH = sys.argv[1], int(sys.argv[2])
STEPS = int(sys.argv[3]) if len(sys.argv) > 3 and sys.argv[3].isdigit() else 8
CHECKPOINTS, BF16, COMPILES = ("ckpt" in sys.argv), ("bf16" in sys.argv), ("compile" in sys.argv)
THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))
torch.set_num_threads(THREADS)
torch.manual_seed(0)


def rerun(block, x):
    return checkpoint(block, x, use_reentrant=False) if CHECKPOINTS else block(x)


def make():
    if NAME in ("char-gpt", "tiny-llama"):
        ids = torch.randint(0, 65, (BATCH, 256))
        return (Gpt if NAME == "char-gpt" else Llama)(rerun=rerun), ids, torch.randint(0, 65, (BATCH * 256,))
    if NAME not in ("resnet50", "resnet18"):
        sys.exit(f"step_torch.py: '{NAME}' is not one of char-gpt, tiny-llama, resnet50, resnet18")
    is_small = NAME == "resnet18"
    model = Resnet((2, 2, 2, 2), 1, 10, True, rerun) if is_small else Resnet((3, 4, 6, 3), 4, 1000, False, rerun)
    size, classes = (32, 10) if is_small else (224, 1000)
    images = torch.randn(BATCH, 3, size, size).contiguous(memory_format=torch.channels_last)
    return model.to(memory_format=torch.channels_last), images, torch.randint(0, classes, (BATCH,))


def optimizer_of(model):
    kind, options = (torch.optim.AdamW, {"lr": 1e-3}) if NAME in ("char-gpt", "tiny-llama") else (
        torch.optim.SGD, {"lr": 0.01, "momentum": 0.9})
    for choice in ({"fused": True}, {"foreach": True}, {}):
        try:
            return kind(model.parameters(), **options, **choice)
        except (TypeError, RuntimeError):
            continue


def resident(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024


class Saved:
    """Bytes of the distinct storages that autograd keeps, parameters left out."""

    def __init__(self, model):
        self.parameters = {p.data_ptr() for p in model.parameters()}
        self.bytes, self.keep = {}, []

    def pack(self, tensor):
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        if storage.data_ptr() not in self.parameters:
            self.bytes[storage.data_ptr()] = storage.nbytes()
            self.keep.append(tensor)
        return tensor


model, inputs, targets = make()
run_model = torch.compile(model) if COMPILES else model
optimizer = optimizer_of(model)


def loss_of():
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=BF16):
        scores = run_model(inputs)
    return F.cross_entropy(scores.float(), targets)


def step():
    optimizer.zero_grad(set_to_none=True)
    loss_of().backward()
    optimizer.step()


before = resident("VmRSS")
wall, processor = [], []
for index in range(STEPS + 2):
    start, start_cpu = time.perf_counter(), time.process_time()
    step()
    if index >= 2:
        wall.append(1e3 * (time.perf_counter() - start))
        processor.append(1e3 * (time.process_time() - start_cpu))
growth = resident("VmHWM") - before
saved = Saved(model)
if not COMPILES:
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda t: t):
        loss_of()
wall.sort()
print(f"step model={NAME} batch={BATCH} dtype={'bf16-autocast' if BF16 else 'f32'} threads={THREADS} "
      f"best_ms={wall[0]:.2f} median_ms={wall[len(wall) // 2]:.2f} processor_ms={min(processor):.2f} "
      f"growth_mib={growth:.1f} saved_mib={sum(saved.bytes.values()) / 2**20:.1f} "
      f"plan={'checkpoint' if CHECKPOINTS else 'compiled' if COMPILES else 'keep-everything'}", flush=True)
