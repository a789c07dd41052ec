"""Records a training step of a torch.nn.Module as a graph for `thimble plan --graph` (docs/graphs.md).

    json.dump(record(lambda: loss_of(model(batch)), model), open("step.json", "w"))

The forward runs six times and the backward three times, on the CPU; each operator's least time counts. Parameters,
buffers, gradients and the random state are afterwards as before.
"""
import time

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile, record_function

from tracing import Tracer, memory_events, nodes_of


def record(forward, model, name="step"):
    """The graph of forward() and its backward. forward() returns the loss and keeps nothing else."""
    buffers = [b.clone() for b in model.buffers()]
    gradients = [p.grad for p in model.parameters()]
    random = torch.get_rng_state()

    def begin_again():
        for buffer, old in zip(model.buffers(), buffers):
            buffer.data.copy_(old)
        torch.set_rng_state(random)
        model.zero_grad()

    seconds, held_until, reads, backward_seconds = {}, {}, [], []

    # Finds how long the program itself holds each storage, with nothing saved for backward.
    def timed(index, func, args, kwargs):
        for root, storage in tracer.alive.items():
            if storage.expired():
                held_until[root] = index - 1
        for root in held_until:
            tracer.alive.pop(root, None)
        begin = time.perf_counter()
        result = func(*args, **kwargs)
        seconds[index] = min(time.perf_counter() - begin, seconds.get(index, 1e9))
        return result

    # A real step: memory events, and the reads of each backward function.
    def marked(index, func, args, kwargs):
        with record_function(f"step {index}"):
            return func(*args, **kwargs)

    def unpack(saved):
        reads.append((torch._C._current_autograd_node()._sequence_nr(), saved[0]))
        return saved[1]

    for _ in range(3):
        begin_again(), held_until.clear(), reads.clear()
        tracer = Tracer(timed)
        with tracer, saved_tensors_hooks(lambda t: tracer.root(t) and None, lambda _: None):
            loss = forward()
        del loss
        begin_again()
        tracer = Tracer(marked)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            with saved_tensors_hooks(lambda t: (tracer.root(t), t), unpack), tracer:
                loss = forward()
            loss.backward()
        del loss
        graph = build(name, tracer, reads, seconds, held_until, memory_events(profiled))
        backward_seconds.append([node["backward_seconds"] for node in graph["nodes"]])
    for node, *times in zip(graph["nodes"], *backward_seconds):
        node["backward_seconds"] = min(times)
    begin_again()
    for p, old in zip(model.parameters(), gradients):
        p.grad = old
    return graph


def build(name, tracer, reads, seconds, held_until, events):
    ranges = nodes_of(tracer.ops)
    node_of = [n for n, (begin, end) in enumerate(ranges) for _ in range(begin, end)]
    values = [dict(v) for v in tracer.values]
    nodes = []
    for begin, end in ranges:
        ops = tracer.ops[begin:end]
        made = [r for op in ops for r in op["made"]]
        inputs = sorted({r for op in ops for r in op["inputs"]} - set(made))
        nodes.append({"name": "+".join(op["name"] for op in ops), "inputs": inputs,
                      "outputs": [v for op in ops for v in op["outputs"]], "backward_reads": [],
                      "seconds": sum(seconds[i] for i in range(begin, end)), "backward_seconds": 0.0,
                      "recompute": all(op["again"] for op in ops)})
        for r in made:
            values[r].update(name=nodes[-1]["name"], held_until=node_of[held_until.get(r, len(node_of) - 1)])

    # A backward function belongs to the node whose operators ran last before the next function was made.
    def node_of_function(sequence):
        return node_of[max(i for i, op in enumerate(tracer.ops) if op["sequence"] <= sequence + 1)]

    for sequence, root in reads:
        nodes[node_of_function(sequence)]["backward_reads"].append(root)
    first_read = {}  # saved root -> the last node to read it in backward
    for n, node in reversed(list(enumerate(nodes))):
        first_read.update((r, n) for r in node["backward_reads"] if not values[r].get("given"))

    # Memory of each window beyond the graph's values.
    def saved_bytes(n):
        return sum(values[r]["bytes"] for r, first in first_read.items() if first <= n)

    held, window, begin_ns, begin_held = 0, None, 0, {}

    def widen(level):
        if window and window[0] == "forward":
            node = nodes[window[1]]
            extra = level - begin_held[window[1]] - sum(values[v].get("bytes", 0) for v in node["outputs"])
            node["forward_bytes"] = max(node.get("forward_bytes", 0), extra)
        elif window:
            node = nodes[window[1]]
            node["backward_bytes"] = max(node.get("backward_bytes", 0), level - saved_bytes(window[1]))

    for ns, size, mark in events:
        held += size
        function, sequence = mark or ("", None)
        if function.startswith("step "):
            n = node_of[int(function[5:])]
            window = ("forward", n) if sequence is not None else None
            begin_held.setdefault(n, held)
        elif sequence is not None and sequence >= 0:
            n = node_of_function(sequence)
            if window and window[0] == "backward":
                nodes[window[1]]["backward_seconds"] += (ns - begin_ns) / 1e9
            if not window or window[1] != n:
                nodes[n]["waiting_bytes"] = max(0, held - saved_bytes(n))
            window, begin_ns = ("backward", n), ns
        widen(held)
    return {"version": 1, "name": name, "values": values, "nodes": nodes}
