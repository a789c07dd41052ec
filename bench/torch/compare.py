"""What parity.py and hub.py share: a training by thimble_parity, the same one in PyTorch, and how far they are apart."""
import argparse
import os
import subprocess
import sys

try:
    import numpy as np
    import torch
    from safetensors import numpy as arrays
    from torch.nn import functional as F
except ImportError as error:
    print(f"not run: {error}")
    sys.exit(77)


def parse_flags(description, **defaults):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("program", help="thimble_parity")
    for name, default in {"seed": 1, "threads": 2, **defaults}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"({default})")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    return flags


def train_torch(model, optimizer, batches, public=lambda name, tensor: (name, tensor), on_the_way=()):
    """{"loss", and of the first step "logits", "gradient.NAME", "buffer.NAME"; at the end "weight.NAME"}, tensors named and
    laid out by `public`. on_the_way: a dict whose keys are counts of steps; gets the weights after so many."""
    def named(kind, tensors):
        pairs = (public(name, t.detach()) for name, t in tensors)
        return {f"{kind}.{name}": t.numpy().copy() for name, t in pairs}

    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    results, losses = {}, []
    for step, (inputs, targets) in enumerate(batches):
        inputs = torch.from_numpy(inputs)
        scores = model(inputs.to(trained[0][1].dtype) if inputs.is_floating_point() else inputs)
        scores = getattr(scores, "logits", scores)  # transformers return an object
        loss = F.cross_entropy(scores.flatten(0, -2), torch.from_numpy(targets).flatten())
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            results |= named("gradient", ((name, p.grad) for name, p in trained)) | named("buffer", model.named_buffers())
            results["logits"] = scores.detach().numpy()
        optimizer.step()
        losses.append(loss.item())
        if step + 1 in on_the_way:
            on_the_way[step + 1] = {key: t.clone() for key, t in model.state_dict().items()}
    return results | named("weight", trained) | {"loss": np.array(losses)}


def train_ours(flags, folder, model, weights, batches, *extra):
    """The same of ours; `weights` is a path."""
    arrays.save_file({f"{step}.{what}": np.ascontiguousarray(a) for step, pair in enumerate(batches)
                      for what, a in zip(("input", "target"), pair)}, f"{folder}/batches")
    subprocess.run([flags.program, model, weights, f"{folder}/batches", f"{folder}/out", *extra], check=True,
                   env=os.environ | {"OMP_NUM_THREADS": str(flags.threads)})
    return arrays.load_file(f"{folder}/out")


def pick(results, kind):
    return {name.split(".", 1)[1]: a for name, a in results.items() if name.startswith(kind + ".")}


def relative(a, b, beside=None):
    """|a - b| / |b|, or / |beside|, of all tensors as one vector."""
    a, b, beside = ({"": t} if not isinstance(t, dict) else t for t in (a, b, b if beside is None else beside))
    assert sorted(a) == sorted(b), sorted(set(a) ^ set(b))
    squares = [[float(np.sum(np.square(np.asarray(t, np.float64)))) for t in tensors] for tensors in (
        [a[name].astype(np.float64) - b[name] for name in b], beside.values())]
    return (sum(squares[0]) / sum(squares[1])) ** 0.5 if b else 0.0


def worst_of(a, b, beside=lambda name: name):
    """The largest |a - b| / |b| of one tensor, and whose."""
    assert sorted(a) == sorted(b), sorted(set(a) ^ set(b))
    return max(((relative(a[name], b[name], b[beside(name)]), name) for name in b), default=(0.0, ""))


def loss_difference(a, b, steps=10):
    a, b = a["loss"][:steps], b["loss"][:steps]
    return float(np.max(np.abs(a - b) / np.abs(b)))


class Table:
    """Of rows that pass or fail."""

    def __init__(self, last=""):
        self.passed = True
        print(f"PyTorch {torch.__version__}, NumPy {np.__version__}, CPU")
        print(f"{'model':14}{'ours':15}{'quantity':52}{'measured':>11}{'allowed':>11}{last:>15}")

    def row(self, model, ours, what, value, allowed, gap=None):
        is_fine = bool(value <= allowed)  # NaN fails
        self.passed &= is_fine
        print(f"{model:14}{ours:15}{what:52}{value:11.2e}{allowed:11.2e}{'' if gap is None else f'{gap:15.2e}'}  "
              f"{'ok' if is_fine else 'FAILED'}", flush=True)

    def end(self):
        print("passed" if self.passed else "failed")
        sys.exit(0 if self.passed else 1)
