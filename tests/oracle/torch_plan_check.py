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


def main(program):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model, images = Net(), torch.randn(6, 8, 11, 13)
    forward = lambda: model(images).square().mean()
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

    def plan(graph, *flags):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(graph, file)
            file.flush()
            done = subprocess.run([program, "plan", "--graph", file.name, "--json", *flags], capture_output=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    step(forward)
    peak, plain = step(forward)
    graph = record(forward, model)
    assert plan(graph)["peak_bytes"] == peak, (plan(graph)["peak_bytes"], peak)
    least = plan(graph)["smallest_bytes"]
    assert least < 0.8 * peak, (least, peak)
    again = 0
    for part in (0.1, 0.3, 0.5, 0.7, 0.9):
        budget = int(peak - part * (peak - least))
        found = plan(graph, "--budget", str(budget))
        measured, bits = step(lambda: Planned(graph, found)(forward))
        assert measured <= budget, (measured, budget)
        assert abs(found["peak_bytes"] - measured) <= measured / 100, (found["peak_bytes"], measured)
        assert all(torch.equal(a, b) for a, b in zip(plain, bits)), budget
        again += sum("bernoulli" in graph["nodes"][node]["name"] for node, _ in found["recomputed"])
    assert again > 0  # some dropout drew its numbers again
    other = record(lambda: model(images).abs().mean(), model)
    try:
        Planned(other, plan(other))(forward)
        raise AssertionError("a plan of another program was carried out")
    except RuntimeError as error:
        assert "the recorded one is" in str(error), error


main(*sys.argv[1:])
