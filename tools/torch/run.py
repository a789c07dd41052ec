"""Carries out a plan of `thimble plan --graph --json` in PyTorch.

    step = Planned(graph, plan)              # the recorded graph and its plan, both as json.load gives them
    loss = step(lambda: loss_of(model(batch)))
    loss.backward()                          # gradients have the bits of a step without a plan

A saved tensor that the plan does not keep is dropped; its backward runs the operators again that made it, with the
random numbers that they drew. The program must be the recorded one.
"""
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map_only

from tracing import Tracer, nodes_of, tensors


class View:
    """A tensor by its storage and place in it."""

    def __init__(self, root, tensor):
        self.root, self.dtype = root, tensor.dtype
        self.place = tensor.storage_offset(), tensor.size(), tensor.stride()

    def of(self, storage):
        return torch.empty(0, dtype=self.dtype, device=storage.device).set_(storage, *self.place)


class Planned:
    def __init__(self, graph, plan):
        self.graph, self.plan = graph, plan

    def __call__(self, forward):
        return Step(self.graph, self.plan).run(forward)


class Step:
    def __init__(self, graph, plan):
        self.graph = graph
        empty = {root for root, value in enumerate(graph["values"]) if value.get("bytes") == 0}
        self.held = empty.union(plan["kept"], *[[r] for r, v in enumerate(graph["values"]) if v.get("given")])
        self.due = list(reversed([tuple(pair) for pair in plan["recomputed"]]))  # (node, reader), the next one last
        self.live = {}  # root -> storage that re-runs read, or recomputed storage
        begins = {tuple(buffer[1:3]) for buffer in plan["buffers"] if buffer[0] == "value"}
        events = [(kind, graph["nodes"][node], at) for at, (kind, node) in enumerate(plan["events"])]
        # Autograd holds kept roots, unless the plan drops and recomputes them.
        self.kept = self.held.difference(*[
            [root for root in node["outputs"] if kind == "recompute" and (root, at) in begins]
            for kind, node, at in events])
        self.uses = {root: [0] for root in self.held}  # reads of each copy of a root, without autograd's reads
        for kind, node, at in events:
            if kind == "recompute":
                for root in node["inputs"]:
                    self.uses[root][-1] += 1
                for root in node["outputs"]:
                    if (root, at) in begins:
                        self.uses.setdefault(root, []).append(0)
            elif kind == "backward":
                for root in node["backward_reads"]:
                    if root not in self.kept:
                        self.uses[root][-1] += 1
        self.calls = []  # per operator: function, arguments with View for tensors, random state

    def run(self, forward):
        self.tracer = Tracer(self.call)
        with self.tracer, saved_tensors_hooks(self.pack, self.unpack):
            loss = forward()
        self.check()
        again = {i for node, _ in self.due for i in range(*self.ranges[node])}
        self.calls = [call if i in again else None for i, call in enumerate(self.calls)]
        self.tracer.wraps = None
        return loss

    def check(self):
        """Throws RuntimeError where the program is not the recorded one."""
        self.ranges = nodes_of(self.tracer.ops)
        names = ["+".join(op["name"] for op in self.tracer.ops[begin:end]) for begin, end in self.ranges]
        planned = [node["name"] for node in self.graph["nodes"]]
        sizes = [value.get("bytes") for value in self.graph["values"]]
        for i, (own, other) in enumerate(zip(names, planned)):
            if own != other:
                raise RuntimeError(f"plan: node {i} is {own}, the recorded one is {other}")
        if len(names) != len(planned) or sizes != [value.get("bytes") for value in self.tracer.values]:
            raise RuntimeError(f"plan: {len(names)} nodes with other bytes than the {len(planned)} recorded ones")

    def call(self, index, func, args, kwargs):
        # Held outside PyTorch's memory: 5 KB per operator that draws.
        state = torch.get_rng_state().numpy().tobytes() if self.tracer.ops[index]["random"] else None
        frozen = tree_map_only(torch.Tensor, lambda t: View(self.tracer.root(t), t), (args, kwargs))
        for tensor in tensors((args, kwargs)):
            root = self.tracer.root(tensor)
            if root in self.held and self.uses[root][0]:
                self.live[root] = tensor.untyped_storage()
        self.calls.append((func, frozen, state))
        return func(*args, **kwargs)

    def pack(self, tensor):
        root = self.tracer.root(tensor)
        if root in self.kept:
            return tensor
        if root in self.held:
            self.live[root] = tensor.untyped_storage()
        return View(root, tensor)

    def unpack(self, saved):
        if isinstance(saved, torch.Tensor):
            return saved
        while saved.root not in self.live:
            if not self.due:
                raise RuntimeError(f"plan: value {saved.root} is read after its last use in the recorded step")
            reader = self.due[-1][1]
            while self.due and self.due[-1][1] == reader:
                self.run_again(self.due.pop()[0])
        tensor = saved.of(self.live[saved.root])
        self.use(saved.root)
        return tensor

    def use(self, root):
        self.uses[root][0] -= 1
        if self.uses[root][0] == 0:
            self.uses[root].pop(0)
            self.live.pop(root, None)

    @torch.no_grad()
    def run_again(self, node):
        made = {}
        for i in range(*self.ranges[node]):
            op, (func, frozen, state) = self.tracer.ops[i], self.calls[i]
            if op["skip"]:
                continue
            args, kwargs = tree_map_only(View, lambda v: v.of(made.get(v.root, self.live.get(v.root))), frozen)
            if op["norm"]:
                args = (*args[:3], None, None, *args[5:])
            if state:
                now = torch.get_rng_state()
                torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
            outputs = func(*args, **kwargs)
            if state:
                torch.set_rng_state(now)
            for value, tensor in zip(op["outputs"], tensors(outputs)):
                if value in op["made"]:
                    made[value] = tensor.untyped_storage()
        for root, storage in made.items():
            if root not in self.live and self.uses.get(root):
                if self.uses[root][0]:
                    self.live[root] = storage
                else:
                    self.uses[root].pop(0)
        for root in self.graph["nodes"][node]["inputs"]:
            self.use(root)
