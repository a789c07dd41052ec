"""PyTorch's matmul, for peers.sh: matmul_torch.py [THREADS] < lines of "name m n k"."""
import sys
import time

import torch

threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
torch.set_num_threads(threads)
clock = time.thread_time if threads == 1 else time.perf_counter
for line in sys.stdin:
    name, m, n, k = line.split()
    m, n, k = int(m), int(n), int(k)
    for kind, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        c = torch.empty(m, n, dtype=dtype)
        torch.mm(a, b, out=c)
        best, begin, run = 1e30, time.perf_counter(), 0
        while run < 3 or time.perf_counter() - begin < 0.1:
            start = clock()
            torch.mm(a, b, out=c)
            best = min(best, clock() - start)
            run += 1
        print(kind, name, round(2e-9 * m * n * k / best, 1), flush=True)
