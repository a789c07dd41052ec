"""PyTorch's operators of kernel_benchmark, for elementwise_peers.sh: elementwise.py [THREADS]

Prints "name, dtype|forward ms|backward ms", and "name|update ms|" of optimizers: the best of the runs that 0.3 s hold.
Batch norm's images are channels_last.
"""
import sys

import torch
from torch.nn import functional as F

from timing import best_s

threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
torch.set_num_threads(threads)
ROWS, WIDTH, CLASSES, SAMPLES = 4096, 1024, 30522, 128


def best_ms(work):
    return 1e3 * best_s(work, 0.3)


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype).requires_grad_()


def image(dtype):
    return torch.randn(8, 128, 56, 56).to(dtype).to(memory_format=torch.channels_last).requires_grad_()


for dtype, word in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
    x, y = leaf(ROWS, WIDTH, dtype=dtype), leaf(ROWS, WIDTH, dtype=dtype)
    w, b = leaf(WIDTH, dtype=dtype), leaf(WIDTH, dtype=dtype)
    picture, residual = image(dtype), image(dtype)
    cw, cb, mean, variance = leaf(128), leaf(128), torch.zeros(128), torch.ones(128)
    logits, target = leaf(SAMPLES, CLASSES, dtype=dtype), torch.arange(SAMPLES) * 311 % CLASSES
    leaves = (x, y, w, b, picture, residual, cw, cb, logits)

    def norm():
        return F.batch_norm(picture, mean, variance, cw, cb, True)

    cases = {
        "add": lambda: x + y,
        "mul": lambda: x * y,
        "relu": lambda: F.relu(x),
        "exp": lambda: torch.exp(x),
        "tanh": lambda: torch.tanh(x),
        "silu": lambda: F.silu(x),
        "gelu (tanh)": lambda: F.gelu(x, approximate="tanh"),
        "gelu (erf)": lambda: F.gelu(x),
        "dropout 0.1": lambda: F.dropout(x, 0.1),
        "softmax": lambda: F.softmax(x, -1),
        "layer_norm": lambda: F.layer_norm(x, (WIDTH,), w, b),
        "batch_norm": norm,
        "batch_norm_relu": lambda: F.relu(norm(), inplace=True),
        "batch_norm_add_relu": lambda: F.relu(norm().add_(residual), inplace=True),
        "cross_entropy": lambda: F.cross_entropy(logits, target),
        "rms_norm": lambda: F.rms_norm(x, (WIDTH,), w),
    }
    for name, run in cases.items():
        out = run()
        gradient = torch.randn_like(out)

        def backward():
            torch.autograd.backward(out, gradient, retain_graph=True)
            for t in leaves:
                t.grad = None

        print(f"{name}, {word}|{best_ms(run):.3f}|{best_ms(backward):.3f}", flush=True)

p = leaf(ROWS, WIDTH)
p.grad = torch.randn_like(p)
optimizers = {"sgd": torch.optim.SGD([p], 1e-3, fused=True),
              "momentum": torch.optim.SGD([p], 1e-3, momentum=0.9, fused=True),
              "adam": torch.optim.Adam([p], 1e-3, fused=True)}
for name, optimizer in optimizers.items():
    print(f"{name}|{best_ms(optimizer.step):.3f}|", flush=True)
