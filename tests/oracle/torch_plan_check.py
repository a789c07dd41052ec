"""Plans a step of PyTorch with the program and carries the plan out.

    torch_plan_check.py PROGRAM

A net with views, in-place operators, batch norm, dropout and a shared input: the peak by PyTorch's count is the
predicted one and within the budget, and loss, gradients and statistics have the bits of a step without a plan.
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError:
    sys.exit(77)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "torch"))
from record import record
from run import Planned
from tracing import measure_peak


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = torch.nn.ModuleList(torch.nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(4))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(8) for _ in range(4))
        self.head = torch.nn.Linear(8 * 13 * 11, 5)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms):
            y = norm(conv(x))
            y += x
            y = torch.nn.functional.relu(y, inplace=True)
            x = torch.nn.functional.dropout(torch.nn.functional.gelu(y), 0.2)
        return self.head(x.transpose(2, 3).flatten(1))


class Alternating(torch.nn.Module):
    """Reads two large tensors in turns: few bytes hold one of them, which then runs again for each read."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.randn(6))

    def forward(self, x):
        both = torch.exp(x), torch.tanh(x)
        return sum((both[i % 2] * w).sin().sum() for i, w in enumerate(self.weights))


def check(program, model, forward, parts):
    """Carries plans out at some parts of the way to the smallest; all re-runs, and those of one node after its first."""
    buffers = [b.clone() for b in model.buffers()]

    def step(call):
        torch.manual_seed(2)
        for buffer, old in zip(model.buffers(), buffers):
            buffer.data.copy_(old)
        for p in model.parameters():
            p.grad = None

        def run():
            loss = call()
            loss.backward()
            return loss.detach()

        loss, peak = measure_peak(run)
        return peak, [t.clone() for t in (loss, *(p.grad for p in model.parameters()), *model.buffers())]

    step(forward)
    peak, plain = step(forward)
    graph = record(forward, model)
    for node in graph["nodes"]:
        node["seconds"] = 0.001  # same plans on every machine
    assert plan(program, graph)["peak_bytes"] == peak, (plan(program, graph)["peak_bytes"], peak)
    least = plan(program, graph)["smallest_bytes"]
    assert least < 0.8 * peak, (least, peak)
    again, often = [], 0
    for part in parts:
        budget = int(peak - part * (peak - least))
        found = plan(program, graph, "--budget", str(budget))
        measured, bits = step(lambda: Planned(graph, found)(forward))
        assert measured <= budget, (measured, budget)
        assert abs(found["peak_bytes"] - measured) <= measured / 100, (found["peak_bytes"], measured)
        assert all(torch.equal(a, b) for a, b in zip(plain, bits)), budget
        nodes = [node for node, _ in found["recomputed"]]
        again += [graph["nodes"][node]["name"] for node in nodes]
        often += len(nodes) - len(set(nodes))
    return again, often


def plan(program, graph, *flags):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(graph, file)
        file.flush()
        done = subprocess.run([program, "plan", "--graph", file.name, "--json", *flags], capture_output=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main(program):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model, two, images = Net(), Alternating(), torch.randn(6, 8, 11, 13)
    forward = lambda: model(images).square().mean()
    again, _ = check(program, model, forward, (0.1, 0.3, 0.5, 0.7, 0.9))
    assert any("bernoulli" in name for name in again)  # a dropout drew its numbers again
    _, often = check(program, two, lambda: two(images), (0.2, 0.6, 0.9))
    assert often > 0, often
    other = record(lambda: model(images).abs().mean(), model)
    try:
        Planned(other, plan(program, other))(forward)
        raise AssertionError("a plan of another program was carried out")
    except RuntimeError as error:
        assert "the recorded one is" in str(error), error


main(*sys.argv[1:])
