"""How long work takes."""
import time

import torch


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def best_s(work, hold, device="cpu", clock=time.perf_counter):
    """The best of the runs that `hold` seconds have, five at least. A run on a GPU is of as many calls as take 50 ms."""
    best, begin, runs = 1e30, time.perf_counter(), 0
    while runs < 5 or time.perf_counter() - begin < hold:
        calls = min(max(int(0.05 / best), 1), 200) if device == "cuda" else 1
        start = clock()
        for _ in range(calls):
            work()
        wait(device)
        best = min(best, (clock() - start) / calls)
        runs += 1
    return best
