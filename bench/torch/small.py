"""The small nets of dispatch_benchmark in PyTorch: small.py [THREADS]. Training steps with one sample (fused AdamW),
microseconds: the best of rounds of 50 steps, and the mean over all of them."""
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

import nets

torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)


def measure(name, net, x, target, rounds=60, steps=50):
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


print(f"| net, {torch.get_num_threads()} threads | best us | mean us |\n|---|---:|---:|")
measure("perceptron", nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), torch.randn(1, 64),
        torch.tensor([3]))
ids = torch.arange(32)[None] * 11 % 64
measure("gpt", nets.Gpt(2, 4, 64, 32, 64), ids, ids.flatten())
