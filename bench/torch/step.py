"""A training step in PyTorch, the twin of step_benchmark: step.py MODEL BATCH [STEPS] [ckpt] [bf16] [compile]

MODEL: char-gpt, tiny-llama, gpt2 (64 tokens), bert-base (128 tokens, transformers), resnet50, resnet101, vit-b16 and
googlenet (224 x 224, the last two torchvision's) or resnet18 (32 x 32). Images are NHWC (channels_last). Prints one line
in the form of step_benchmark; THREADS is read from OMP_NUM_THREADS. `growth` is that of the process's resident bytes from
the model on, `saved` what autograd keeps for backward.

step.py small: the small nets of dispatch_benchmark, with one sample. Microseconds for a step: the best of rounds of 50,
and the mean over all of them.
"""
import os
import sys
import time

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import nets



def measure_small(name, net, x, target, rounds=60, steps=50):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-7, weight_decay=0.01, fused=True)
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(net(x), target).backward()
            optimizer.step()
        times.append(1e6 * (time.perf_counter() - start) / steps)
    print(f"| {name} | {min(times[1:]):.2f} | {sum(times[1:]) / rounds:.2f} |", flush=True)


if sys.argv[1] == "small":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    print(f"| net, {torch.get_num_threads()} threads | best us | mean us |\n|---|---:|---:|")
    measure_small("perceptron", torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)),
                  torch.randn(1, 64), torch.tensor([3]))
    ids = torch.arange(32)[None] * 11 % 64
    measure_small("gpt", nets.Gpt(2, 4, 64, 32, 64), ids, ids.flatten())
    sys.exit()

NAME, BATCH = sys.argv[1], int(sys.argv[2])
STEPS = int(sys.argv[3]) if len(sys.argv) > 3 and sys.argv[3].isdigit() else 8
CHECKPOINTS, BF16, COMPILES = ("ckpt" in sys.argv), ("bf16" in sys.argv), ("compile" in sys.argv)
THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))
KINDS = {"char-gpt": (nets.Gpt, 256), "tiny-llama": (nets.Llama, 256), "resnet50": (nets.resnet50, 224),
         "resnet18": (nets.resnet18, 32), "resnet101": (nets.resnet101, 224), "gpt2": (nets.gpt2, 64),
         "bert-base": (nets.Bert, 128), "vit-b16": (nets.vit_b16, 224), "googlenet": (nets.googlenet, 224)}
if NAME not in KINDS:
    sys.exit(f"step.py: expected one of {', '.join(KINDS)}, got '{NAME}'")
if CHECKPOINTS and NAME in ("bert-base", "vit-b16", "googlenet"):
    sys.exit(f"step.py: ckpt: {NAME} is another library's; its blocks have no checkpoints here")
torch.set_num_threads(THREADS)
torch.manual_seed(0)
make, size = KINDS[NAME]
model = make(rerun=(lambda block, x: checkpoint(block, x, use_reentrant=False)) if CHECKPOINTS else nets.run_once)
model = model.to(memory_format=torch.channels_last)
inputs, targets = nets.random_batch(model, BATCH, size)
run_model = torch.compile(model) if COMPILES else model
optimizer = nets.optimizer_of(model)


def resident(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024


def loss_of():
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=BF16):
        scores = run_model(inputs)
    return F.cross_entropy(scores.float(), targets)


before = resident("VmRSS")
wall, processor = [], []
for index in range(STEPS + 2):
    start, start_cpu = time.perf_counter(), time.process_time()
    optimizer.zero_grad(set_to_none=True)
    loss_of().backward()
    optimizer.step()
    if index >= 2:
        wall.append(1e3 * (time.perf_counter() - start))
        processor.append(1e3 * (time.process_time() - start_cpu))
growth = resident("VmHWM") - before
parameters, saved = {p.data_ptr() for p in model.parameters()}, {}  # storages that autograd keeps, without parameters


def keep(tensor):
    storage = tensor.untyped_storage()
    if storage.data_ptr() not in parameters:
        saved[storage.data_ptr()] = storage
    return tensor


if not COMPILES:
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss_of()
wall.sort()
print(f"step model={NAME} batch={BATCH} dtype={'bf16-autocast' if BF16 else 'f32'} threads={THREADS} "
      f"best_ms={wall[0]:.2f} median_ms={wall[len(wall) // 2]:.2f} processor_ms={min(processor):.2f} "
      f"growth_mib={growth:.1f} saved_mib={sum(s.nbytes() for s in saved.values()) / 2**20:.1f} "
      f"plan={'checkpoint' if CHECKPOINTS else 'compiled' if COMPILES else 'keep-everything'}", flush=True)
