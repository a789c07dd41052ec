"""The operators and storages of a forward, and PyTorch's own count of its memory."""
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


def tensors(tree):
    return [t for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor)]


class Tracer(TorchDispatchMode):
    """Numbers the operators of a forward and the storages that they make ("roots"), and lists all values."""

    def __init__(self, wraps=None):
        super().__init__()
        self.ops, self.values, self.roots, self.refs, self.stale = [], [], {}, {}, set()
        self.alive = {}  # root -> weak reference to a storage that an operator made
        self.wraps = wraps or (lambda index, func, args, kwargs: func(*args, **kwargs))

    def add(self, tensor, op):
        """A value for a tensor that is made by `op`, or given where that is None."""
        storage = tensor.untyped_storage()
        root = self.roots.get(storage._cdata)
        self.values.append({"alias": root} if root is not None else {"bytes": storage.nbytes(), "given": op is None})
        if root is None:  # the weak reference keeps its address from being reused
            root = self.roots[storage._cdata] = len(self.values) - 1
            self.refs[root] = StorageWeakRef(storage)
            if op is not None:
                self.alive[root] = self.refs[root]
        return len(self.values) - 1, root

    def root(self, tensor):
        found = self.roots.get(tensor.untyped_storage()._cdata)
        return self.add(tensor, None)[1] if found is None else found

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, index = kwargs or {}, len(self.ops)
        inputs = [self.root(t) for t in tensors((args, kwargs))]
        written = [a for a, s in zip(args, func._schema.arguments) if s.alias_info and s.alias_info.is_write]
        written += [kwargs[s.name] for s in func._schema.arguments
                    if s.name in kwargs and s.alias_info and s.alias_info.is_write]
        op = {"name": func._schema.name.removeprefix("aten::"), "inputs": inputs,
              "writes": [self.root(t) for t in tensors(written)],
              "random": torch.Tag.nondeterministic_seeded in func.tags, "outputs": [], "made": [],
              "sequence": torch._C._autograd._get_sequence_nr()}
        given = [r for r in op["writes"] if self.values[r].get("given")]  # buffers, which a re-run must not change:
        op["norm"] = "batch_norm" in op["name"]  # runs again without its running statistics
        op["skip"] = bool(given) and not op["norm"]  # does not run again
        op["again"] = op["norm"] or op["skip"] or not self.stale.intersection(inputs)
        self.stale.update(given)
        self.ops.append(op)
        outputs = self.wraps(index, func, args, kwargs)
        for tensor in tensors(outputs):
            value, root = self.add(tensor, index)
            op["outputs"].append(value)
            if value == root:
                op["made"].append(root)
                op["again"] = op["again"] and not op["skip"]
        return outputs


def nodes_of(ops):
    """Ranges of operators: those from the maker of a storage to the last that writes into it are one node."""
    maker, first = {}, list(range(len(ops)))
    for i, op in enumerate(ops):
        maker.update((r, i) for r in op["made"])
        first[i] = min([i] + [maker[r] for r in op["writes"] if r in maker])
    ranges = []
    for i in range(len(ops)):
        begin = first[i]
        while ranges and ranges[-1][1] > begin:
            begin = min(begin, ranges.pop()[0])
        ranges.append((begin, i + 1))
    return ranges


def memory_events(profile):
    """Of a torch.profiler.profile with profile_memory: (ns, bytes, name and sequence number or None), by time."""
    found = []
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            found.append((event.start_ns(), 1, event.nbytes(), None))
        elif event.name().startswith("step ") or event.scope() == 1:  # a backward function
            found.append((event.start_ns(), 0, 0, (event.name(), event.sequence_nr())))
            found.append((event.end_ns(), 2, 0, (event.name(), None)))
    return [(ns, size, mark) for ns, _, size, mark in sorted(found, key=lambda e: e[:2])]


def measure_peak(run):
    """What `run` returns, and the most bytes beyond those at its begin by PyTorch's count."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = run()
    held = peak = 0
    for _, size, _ in memory_events(profile):
        held += size
        peak = max(peak, held)
    return result, peak
