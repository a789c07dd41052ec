"""PyTorch's operators of kernel_benchmark, for elementwise_peers.sh: elementwise.py [THREADS]

Prints "name, dtype|forward ms|backward ms", and "name|update ms|" of optimizers: the best of the runs that 0.6 or 0.3 s
hold. Batch norm's images are channels_last.
"""
import sys
import time

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


def report(name, run, leaves):
    """Forward and backward take turns, as in kernel_benchmark: repeated, each would find its tensors in the caches."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    out = run()
    gradient = torch.randn_like(out) if out.requires_grad else None
    forward, backward, end = 1e30, 1e30, time.perf_counter() + 0.6
    while time.perf_counter() < end:
        del out
        start = clock()
        out = run()
        middle = clock()
        if gradient is not None:
            torch.autograd.backward(out, gradient)
        forward, backward = min(forward, middle - start), min(backward, clock() - middle)
        for t in leaves:
            t.grad = None
    print(f"{name}|{1e3 * forward:.3f}|" + (f"{1e3 * backward:.3f}" if gradient is not None else ""), flush=True)


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
        report(f"{name}, {word}", run, leaves)

def indices(limit, *shape):
    count = torch.Size(shape).numel()
    return (torch.arange(count) * 7919 % limit).reshape(shape)


def channels_last(*shape):
    return torch.randn(*shape).to(memory_format=torch.channels_last).requires_grad_()


x, y, target = leaf(ROWS, WIDTH), leaf(ROWS, WIDTH), torch.full((ROWS, WIDTH), 0.25)
small, large, logits = channels_last(8, 128, 28, 28), channels_last(8, 128, 56, 56), leaf(SAMPLES, CLASSES)
line, line_weight, up_weight = leaf(16, 128, 1024), leaf(128, 128, 3), leaf(128, 64, 4, 4)
everywhere, in_rows, of_rows = indices(ROWS, ROWS, WIDTH), indices(WIDTH, ROWS, WIDTH), indices(ROWS, ROWS)
q, k, sequence = leaf(8, 128, 12, 64), leaf(8, 128, 12, 64), leaf(128, 32, 128)
factors = leaf(ROWS * 64, 16)
lstm, gru = torch.nn.LSTM(128, 256), torch.nn.GRU(128, 256)
leaves = (x, y, factors, small, large, logits, line, line_weight, up_weight, q, k, sequence, *lstm.parameters(),
          *gru.parameters())
others = {
    "conv1d": lambda: F.conv1d(line, line_weight, padding=1),
    "conv_transpose2d": lambda: F.conv_transpose2d(small, up_weight, stride=2, padding=1),
    "upsample, nearest": lambda: F.interpolate(small, scale_factor=2),
    "upsample, bilinear": lambda: F.interpolate(small, scale_factor=2, mode="bilinear"),
    "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(large, 7),
    "instance_norm": lambda: F.instance_norm(large),
    "scatter_add": lambda: torch.scatter_add(x, 0, everywhere, y),
    "gather": lambda: torch.gather(x, 1, in_rows),
    "index_select": lambda: torch.index_select(x, 0, of_rows),
    "topk, 50 of 30522": lambda: torch.topk(logits, 50).values,
    "sort": lambda: torch.sort(x, stable=True).values,
    "cumsum": lambda: torch.cumsum(x, -1),
    "roll": lambda: torch.roll(x, 5, 0),
    "flip": lambda: torch.flip(x, (1,)),
    "einsum": lambda: torch.einsum("bqhd,bkhd->bhqk", q, k),
    "prod": lambda: torch.prod(factors, 1),
    "norm of rows": lambda: torch.linalg.vector_norm(x, 2, 1),
    "lstm": lambda: lstm(sequence)[0],
    "gru": lambda: gru(sequence)[0],
    "l1_loss": lambda: F.l1_loss(x, target),
    "huber_loss": lambda: F.huber_loss(x, target),
    "bce_with_logits": lambda: F.binary_cross_entropy_with_logits(x, target),
    "kl_div": lambda: F.kl_div(x, target),
    "cosine_similarity": lambda: F.cosine_similarity(x, y),
    "multinomial": lambda: torch.multinomial(target, 1),
}
for name, run in others.items():
    report(name + ", f32", run, leaves)

p = leaf(ROWS, WIDTH)
p.grad = torch.randn_like(p)
optimizers = {"sgd": torch.optim.SGD([p], 1e-3, fused=True),
              "momentum": torch.optim.SGD([p], 1e-3, momentum=0.9, fused=True),
              "adam": torch.optim.Adam([p], 1e-3, fused=True)}
for name, optimizer in optimizers.items():
    print(f"{name}|{best_ms(optimizer.step):.3f}|", flush=True)
