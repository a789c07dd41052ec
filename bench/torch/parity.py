"""Trains char-gpt and resnet18 with PyTorch (f32 and f64) and with thimble_parity (f32, fused and textbook; f64), from
the same weights on the same batches, and compares.

usage: parity.py PROGRAM [flags]; --help lists them. Exit status: 0 passed, 1 failed, 77 torch, numpy or safetensors is missing.

Checks, for each of our f32 builds against PyTorch's f32:
  gradient   of the first step, per tensor and all as one vector: |ours - theirs| / |theirs| <= 1e-5
  buffers    batch-norm statistics after the first step: the same <= 1e-5; counts are equal
  losses     of the first 10 steps: |ours - theirs| / |theirs| <= 1e-4
  later      gradient and buffers again from weights on PyTorch's own way, a third, two thirds and all of the steps
             down: both sides start from the same numbers there, so nothing has had time to part.
In f64, where rounding leaves 1e-16, a difference of definition cannot hide: gradient and losses must agree <= 1e-10, and
the weights after all steps, so the whole of every step and its update, <= 1e-8.

The gradient of relu jumps at 0. Where an input lies nearer to 0 than f32 resolves, rounding decides which gradient it
is, in either framework, and one such element changes the whole by 1e-3. So the batch of images that a gradient is
compared on is drawn anew until no relu has an input within 4e-6 of 0, as PyTorch computes it in f64 (rounding in f32
moves inputs by some 3e-7). In the steps
between that cannot be had; a learning rate of 1e-3 keeps what such elements do to the losses below the bound.
"""

import tempfile

from compare import Table, arrays, loss_difference, np, parse_flags, pick, relative, torch, train_ours, train_torch, worst_of
import nets

GRADIENT, LOSS, DOUBLE, DOUBLE_END = 1e-5, 1e-4, 1e-10, 1e-8
LOSS_STEPS = 10
RELU_DISTANCE, RELU_TRIES = 4e-6, 1000
VOCABULARY, CLASSES = 65, 10
relu_distances = []  # of every relu call since the last clear, the least |input|
plain_relu = nets.relu


def measured_relu(x):
    relu_distances.append(x.detach().abs().min().item())
    return plain_relu(x)


nets.relu = measured_relu

# ---- weights and batches


def set_weights(model, generator):
    """All tensors at random: what starts at 0 or 1 in practice, too, or a bias in the wrong place would not show."""
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        is_norm = p.dim() == 1 and name.endswith("weight")
        if p.dim() == 4:  # He et al. 2015 (arXiv:1502.01852), equation 10
            noise *= (2 / (p.shape[1] * p.shape[2] * p.shape[3])) ** 0.5
        p.data = 1 + 0.1 * noise if is_norm else noise if p.dim() == 4 else 0.02 * noise


def text_batches(flags, random, _):
    """Each character has four that may follow, so that there is something to learn."""
    followers = random.integers(0, VOCABULARY, (VOCABULARY, 4))
    for _ in range(flags.steps):
        ids = np.empty((flags.text_batch, flags.seq + 1), np.int64)
        ids[:, 0] = random.integers(0, VOCABULARY, flags.text_batch)
        for t in range(flags.seq):
            ids[:, t + 1] = followers[ids[:, t], random.integers(0, 4, flags.text_batch)]
        yield ids[:, :-1], ids[:, 1:]


def image_batch(flags, random, patterns):
    """A fixed pattern for each class, under as much noise."""
    targets = random.integers(0, CLASSES, flags.image_batch)
    noise = random.standard_normal((flags.image_batch, 3, flags.image, flags.image))
    return (patterns[targets] + noise).astype(np.float32), targets


def clear_batch(flags, random, patterns, model):
    """A batch of images on which no relu of the model, in f64, has an input near 0."""
    for tries in range(1, RELU_TRIES + 1):
        batch = image_batch(flags, random, patterns)
        relu_distances.clear()
        with torch.no_grad():
            model.double()(torch.from_numpy(batch[0]).double())
        if min(relu_distances) > RELU_DISTANCE:
            print(f"batch of images: draw {tries}, nearest input of a relu to 0: {min(relu_distances):.1e}", flush=True)
            return batch
    sys.exit(f"failed: {RELU_TRIES} batches have an input of a relu within {RELU_DISTANCE} of 0; make them smaller")


def image_patterns(flags, random):
    return random.standard_normal((CLASSES, 3, flags.image, flags.image))


def image_batches(flags, random, model):
    patterns = image_patterns(flags, random)
    yield clear_batch(flags, random, patterns, model)
    for _ in range(flags.steps - 1):
        yield image_batch(flags, random, patterns)


def later_batch(flags, name, seed, model, weights):
    """A batch to compare gradients on from other weights than the first."""
    random = np.random.default_rng(seed)
    if name == "char-gpt":
        return next(text_batches(flags, random, model))
    model.double().load_state_dict(weights)
    return clear_batch(flags, random, image_patterns(flags, random), model)


# ---- the two sides


def public(name, tensor):
    """Of GPT-2's layers the files have (in, out), and nn.Linear (out, in)."""
    return name, tensor.T.contiguous() if ".c_" in name and tensor.dim() == 2 else tensor


def theirs_of(flags, model, start, batches, dtype, on_the_way=()):
    model = model.to(dtype)
    model.load_state_dict(start)
    if isinstance(model, nets.Gpt):
        optimizer = torch.optim.AdamW(model.parameters(), lr=flags.text_rate, betas=(0.9, 0.95), weight_decay=0.1)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=flags.image_rate, momentum=0.9)
    return train_torch(model, optimizer, batches, public, on_the_way)


def ours_of(flags, folder, name, start, extra, batches):
    weights = dict(public(*named) for named in start.items())
    arrays.save_file({key: t.numpy() for key, t in weights.items()}, f"{folder}/weights")
    return train_ours(flags, folder, name, f"{folder}/weights", batches, *extra)


# ---- comparison


def compare_gradients(table, model, build, ours, theirs, gap_from, bound, when=""):
    """Of one step from the same numbers, in the same dtype; gap_from: PyTorch's in f64, to say what rounding does."""
    for kind, text in [("gradient", "gradient"), ("buffer", "batch-norm buffers")]:
        a, b, c = pick(ours, kind), pick(theirs, kind), pick(gap_from, kind)
        if not b and kind == "buffer":
            continue
        table.row(model, build, text + when, relative(a, b), bound, relative(b, c))
        worst, name = worst_of(a, b)
        table.row(model, build, f"  worst: {name}", worst, bound, worst_of(b, c)[0])


def compare(table, model, build, ours, theirs, gap_from, bounds):
    """One run of ours against PyTorch's in the same dtype."""
    gradient, loss = bounds
    compare_gradients(table, model, build, ours, theirs, gap_from, gradient)
    steps = min(LOSS_STEPS, len(theirs["loss"]))
    gap = loss_difference(theirs, gap_from, steps)
    table.row(model, build, f"losses, {steps} steps", loss_difference(ours, theirs, steps), loss, gap)


def run_model(flags, table, name, folder):
    if name == "char-gpt":
        model = nets.Gpt(flags.layers, flags.heads, flags.width, flags.seq, VOCABULARY)
        sizes = [f"--{flag}={getattr(flags, flag)}" for flag in ("layers", "heads", "width", "seq")]
        sizes.append(f"--rate={flags.text_rate}")
        make_batches = text_batches
    else:
        model = nets.resnet18(CLASSES, flags.planes)
        sizes = [f"--image={flags.image}", f"--width={flags.planes}", f"--rate={flags.image_rate}"]
        make_batches = image_batches
    set_weights(model, torch.Generator().manual_seed(flags.seed))
    start = {key: t.clone() for key, t in model.state_dict().items()}
    batches = list(make_batches(flags, np.random.default_rng(flags.seed), model))
    on_the_way = {flags.steps * third // 3: None for third in (1, 2, 3)}
    theirs = theirs_of(flags, model, start, batches, torch.float32, on_the_way)
    later = []  # (steps done, weights, batch, PyTorch's step in f32, in f64)
    for steps, weights in on_the_way.items():
        batch = [later_batch(flags, name, flags.seed + steps, model, weights)]
        later.append((steps, weights, batch, *(theirs_of(flags, model, weights, batch, dtype)
                                               for dtype in (torch.float32, torch.float64))))
    exact = theirs_of(flags, model, start, batches, torch.float64)
    parameters = sum(a.size for a in pick(exact, "weight").values())
    print(f"{name}: {parameters:,} parameters, loss {exact['loss'][0]:.3f} -> {exact['loss'][-1]:.3f}")
    for build, extra in [("f32 fused", []), ("f32 textbook", ["--textbook"])]:
        ours = ours_of(flags, folder, name, start, sizes + extra, batches)
        compare(table, name, build, ours, theirs, exact, (GRADIENT, LOSS))
        for steps, weights, batch, there, there_exact in later:
            here = ours_of(flags, folder, name, weights, sizes + extra, batch)
            compare_gradients(table, name, build, here, there, there_exact, GRADIENT, f" after {steps} steps")
    ours = ours_of(flags, folder, name, start, sizes + ["--f64"], batches)
    compare(table, name, "f64 fused", ours, exact, exact, (DOUBLE, DOUBLE))
    table.row(name, "f64 fused", f"weights, {flags.steps} steps", relative(pick(ours, "weight"), pick(exact, "weight")),
              DOUBLE_END, relative(pick(theirs, "weight"), pick(exact, "weight")))


def main():
    flags = parse_flags("Compares training with PyTorch's.", models="char-gpt,resnet18", steps=50, layers=6, heads=6, width=384,
                        seq=64, text_batch=2, image=32, planes=64, image_batch=2, text_rate=1e-3, image_rate=1e-3)
    table = Table("torch f32/f64")
    with tempfile.TemporaryDirectory() as folder:
        for name in flags.models.split(","):
            run_model(flags, table, name, folder)
    table.end()


if __name__ == "__main__":
    main()
