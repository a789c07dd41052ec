"""PyTorch's matmul, for peers.sh: matmul.py [THREADS] < lines of "name m n k"."""
import sys
import time

import torch

from timing import best_s

threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
torch.set_num_threads(threads)
clock = time.thread_time if threads == 1 else time.perf_counter
for line in sys.stdin:
    name, *sizes = line.split()
    m, n, k = map(int, sizes)
    for kind, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        a, b, c = (torch.randn(*shape).to(dtype) for shape in ((m, k), (k, n), (m, n)))
        print(kind, name, round(2e-9 * m * n * k / best_s(lambda: torch.mm(a, b, out=c), 0.1, clock=clock), 1), flush=True)
