#!/usr/bin/env python3
"""What a GPU should take for operators and for steps of GPT-2 and ResNet-50, on paper, of the figures of the kernels' machine code:

  tools/kernels.py BUILD/CMakeFiles/thimble_cuda.dir --figures FIGURES
  bench/gpu_expected.py FIGURES [--tsv FILE]        the tables of docs/gpu-expected.md; --tsv: what bench/gpu_table.py compares with

The time of a kernel is the largest of three, and what a launch takes:

  memory    the bytes that it must move, over the share of the bandwidth that a copy reaches
  issue     the same bytes, times instructions for a byte, over the instructions that the GPU issues; an
            instruction of a unit of half or an eighth of the rate counts twice or eight times, in its unit
  waiting   the same bytes, over those that are under way at a time (the loads of a trip of all resident
            threads), times the time that memory takes to answer

Products take their operations over a share of the tensor cores' rate. The shares are guesses, so marked below.
"""
import collections
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
from kernels import Figures  # noqa: E402

# H200 data sheet.
PROCESSORS, CLOCK, BANDWIDTH, TENSOR, PLAIN = 132, 1.98e9, 4.8e12, 989e12, 67e12
ISSUED = PROCESSORS * 128 * CLOCK
# Guesses.
COPY = 0.9  # share of the bandwidth that a copy reaches
ANSWER = 0.8e-6  # seconds from a load to its value when memory is busy
LAUNCH = 2e-6  # seconds between two kernels of a stream
PRODUCT = 0.75  # share of the tensor cores' rate: a library's product with aligned rows
UNALIGNED = 0.45  # with rows aligned to 2 bytes, which the tensor memory accelerator cannot read
CONVOLUTION = 0.45  # share of the tensor cores' rate: cuDNN with 64 or more channels
STEM = 0.1  # with three channels
PLAIN_PRODUCT = 0.85  # share of the f32 rate: an f32 product
MMA = 0.62  # share of the tensor cores' rate: mma.sync on Hopper
OVERLAP = 0.45  # share of attention's bound, as warps wait for each other and for softmax; short rows, width 64

Part = collections.namedtuple("Part", "name seconds bound why")


def find(figures, name):
    if name not in figures:
        sys.exit(f"gpu_expected.py: no kernel is called {name}")
    return name, figures[name]


def kernel(figures, name, must, trip=None):
    """Part of a kernel that must move `must` bytes, and in a trip `trip` of them: what else it reads comes from a cache."""
    name, one = find(figures, name)
    slots = max(one.instructions, 2 * one.half, 8 * one.eighth) / (trip or max(1, one.moved))
    resident = min(2048, 65536 // (-(-one.registers // 8) * 8) // 256 * 256)
    under_way = PROCESSORS * resident * max(one.loaded, one.moved - one.loaded)
    bounds = {"memory": must / (COPY * BANDWIDTH), "issue": must * slots / ISSUED, "waiting": must / under_way * ANSWER}
    bound = max(bounds, key=bounds.get)
    return Part(name, bounds[bound] + LAUNCH, bound, f"{one.instructions} / {one.moved} B, {one.registers} registers")


def product(name, operations, share, rate=TENSOR):
    return Part(name, operations / (share * rate) + LAUNCH, "tensor cores" if rate == TENSOR else "f32", f"{share:.2f} of the rate")


def attention(figures, forward, length, rows, width, sight="BySizes", seen=1.0, walked=1.0):
    """Of bf16, causal: each of its products takes, for an instruction of tensor cores (16 x 8 x 16) on a quarter of a
    multiprocessor, the larger of its clocks there and of those that all instructions beside it take to issue. `seen`
    and `walked`: pairs of a query and a key that are seen, and those of the tiles that are computed, to as many without
    documents."""
    used = 2.0 * rows * length * width / 2 * seen  # operations of a product; the causal mask hides half
    kernels, clocks = (("Forward", 2),) if forward else (("QueryGradient", 3), ("KeyGradients", 4)), 0
    beside = []
    for which, products in kernels:
        _, one = find(figures, f"attention_mma::{which}<bf16, 64, attention_mma::{sight}>")
        tensor = 4096 / (MMA * TENSOR / PROCESSORS / 4 / CLOCK)
        clocks += products * used / seen * walked / 4096 * max(tensor, one.instructions / one.tensor)
        beside.append(f"{one.instructions / one.tensor:.1f} instructions for one of {tensor:.1f} clocks")
    seconds = clocks / (PROCESSORS * 4 * CLOCK) / OVERLAP
    products = 2 if forward else 5
    name = "attention_mma, " + ("forward" if forward else "backward") + ("" if sight == "BySizes" else f", {sight}")
    return Part(name, seconds + LAUNCH * (1 if forward else 3), "issue, mma.sync",
                f"{'; '.join(beside)}: {products * used / seconds / 1e12:.0f} TFLOP/s of {products} products")


def size(dtype):
    return {"f32": 4, "bf16": 2}[dtype]


def row_kernels(figures, dtype, kind, rows, width):
    """What goes over rows, in words, whose rows fit in registers or are read once."""
    type_ = {"f32": "float", "bf16": "bf16"}[dtype]
    name, tensors = {"norm": (f"WarpRows<row_norm::Forward<{type_}>>", 2),
                     "norm_gradient": (f"WarpRows<row_norm::InputGradient<{type_}>>", 3),
                     "norm_sums": (f"row_norm::BlockSumsOfWords<{type_}>", 2),
                     "softmax": (f"WarpRows<softmax::Forward<{type_}, true>>", 2),
                     "sum": (f"reduce::SumColumns<{type_}>", 1),
                     "bias": (f"matmul::BlockSumsOfWords<{type_}>", 1)}[kind]
    return kernel(figures, name, tensors * rows * width * size(dtype))


def batch_norm(figures, type_, map_, tail):
    """Forward and backward of batch norm and what follows it, over `map_` bytes: x is read for the statistics and again for the
    result; backward reads x and dy twice. With a residual that is read, and its gradient written."""
    more = map_ if tail == "add_relu" else 0
    # The two kernels of eights read coefficients for each number.
    eight = 8 * {"float": 4, "bf16": 2}[type_]
    part = lambda name, bytes_, trip=None: kernel(figures, f"channel_norm::{name}<{type_}>", bytes_, trip)
    return ([part("StretchMomentsOfWords", map_), part("NormalizeEights", 2 * map_ + more, 3 * eight + 1)],
            [part("StretchSumsOfWords", 2 * map_), part("InputGradientsEights", 3 * map_ + more, 4 * eight + 1)])


def convolution(passes, operations, bytes_, share):
    """Of `passes` that each do as many operations and move as many bytes."""
    seconds = {"tensor cores": operations / (share * TENSOR), "memory": bytes_ / (COPY * BANDWIDTH)}
    bound = max(seconds, key=seconds.get)
    return Part("cuDNN", passes * (seconds[bound] + LAUNCH), bound, f"{share:.2f} of the rate")


def operators(figures):
    """{(operator, dtype): parts} of bench/benchmarks/gpu_benchmark.cpp's lines."""
    found, rows, width = {}, 16384, 1024
    for dtype, type_ in (("f32", "float"), ("bf16", "bf16")):
        n = rows * width * size(dtype)
        rate = (PRODUCT, TENSOR) if dtype == "bf16" else (PLAIN_PRODUCT, PLAIN)
        found["matmul", dtype] = [product("cuBLASLt", 2.0 * 4096**3, *rate)]
        found["matmul_mlp", dtype] = [product("cuBLASLt", 2.0 * rows * 768 * 3072, *rate)]
        found["add", dtype] = [kernel(figures, f"elementwise::Dense<ops::Add, -1, {type_}>", 3 * n)]
        found["gelu", dtype] = [kernel(figures, f"elementwise::Dense<ops::GeluTanh, -1, {type_}>", 2 * n)]
        found["softmax", dtype] = [row_kernels(figures, dtype, "softmax", rows, width)]
        found["sum_rows", dtype] = [row_kernels(figures, dtype, "sum", rows, width)]
        found["layer_norm", dtype] = [row_kernels(figures, dtype, "norm", rows, width)]
        forward, backward = batch_norm(figures, type_, 32 * 56 * 56 * 256 * size(dtype), "relu")
        found["batch_norm_relu", dtype] = forward
        found["batch_norm_relu_pass", dtype] = forward + backward
        found["dropout", dtype] = [kernel(figures, f"random::DropWords<{type_}>", 2 * n)]
    found["attention", "bf16"] = [attention(figures, True, 1024, 16 * 12 * 1024, 64)]
    found["attention_grad", "bf16"] = [attention(figures, False, 1024, 16 * 12 * 1024, 64)]
    # Four documents of 256 tokens (docs/gpu.md): 0.80 of the pairs in their tiles are seen forward and 0.89 backward;
    # without documents, 0.94 and 0.97.
    for forward, end, walked in ((True, "", 0.25 * 0.94 / 0.80), (False, "_grad", 0.25 * 0.97 / 0.89)):
        found["attention_documents" + end, "bf16"] = [
            attention(figures, forward, 1024, 16 * 12 * 1024, 64, "ByDocuments", 0.25, walked)]
        # Boolean masks: numeric masks take another path through the same code, which the figures do not separate.
        found["attention_padding" + end, "bf16"] = [attention(figures, forward, 1024, 16 * 12 * 1024, 64, "ByMask")]
    found["adam", "f32"] = [kernel(figures, "optimizer::UpdatesOfEights<AdamRule<float>>",
                                   28 * rows * width)]
    for whole in (1024, 2048, 4096, 8192):
        found[f"linear_{whole}", "bf16"] = [product("cuBLASLt", 2.0 * whole**3, PRODUCT)]
    return found


def gpt2(figures):
    """[(what, parts, times)] of a step of GPT-2 124M: batch 16, T 1024, bf16 with f32 masters, no dropout, all kept."""
    rows, width, layers, words = 16 * 1024, 768, 12, 50257
    x, wide, logits = 2 * rows * width, 2 * rows * 4 * width, 2 * rows * words
    parameters = 124.4e6
    one = lambda *a, **k: kernel(figures, *a, **k)
    dense = lambda functor, which, must: one(f"elementwise::Dense<ops::{functor}, {which}, bf16>", must)
    cross = lambda which: one(f"cross_entropy::{which}<bf16, true>", logits * (1 if which == "Forward" else 2))
    return [
        ("products of the layers, forward and both gradients", [product("cuBLASLt", 3 * 24.0 * rows * width**2, PRODUCT)], layers),
        ("head's product, forward and both gradients", [product("cuBLASLt", 3 * 2.0 * rows * width * words, UNALIGNED)], 1),
        ("attention, forward", [attention(figures, True, 1024, 16 * 12 * 1024, 64)], layers),
        ("attention, backward", [attention(figures, False, 1024, 16 * 12 * 1024, 64)], layers),
        ("gelu, forward, behind the product", [one("matmul::ActivateWords<bf16>", 2 * wide)], layers),
        ("gelu, backward", [dense("GeluTanh", 0, 3 * wide)], layers),
        ("layer norms, forward", [row_kernels(figures, "bf16", "norm", rows, width)], 2 * layers + 1),
        ("layer norms, gradient of x", [row_kernels(figures, "bf16", "norm_gradient", rows, width)], 2 * layers + 1),
        ("layer norms, gradients of scale and shift", [row_kernels(figures, "bf16", "norm_sums", rows, width)], 2 * layers + 1),
        ("gradients of biases", [row_kernels(figures, "bf16", "bias", rows, n * width) for n in (3, 1, 4, 1)], layers),
        ("residual sums, forward", [dense("Add", -1, 3 * x)], 2 * layers + 1),
        ("sums of gradients, backward", [dense("Add", -1, 3 * x)], 2 * layers),
        ("copies of q, k, v's gradients into one", [one("copy::MoveDense", 2 * 3 * x)], layers),
        ("cross entropy, forward", [cross("Forward")], 1),
        ("cross entropy, backward", [cross("Backward")], 1),
        ("embedding and its gradient", [one("gather::SumRow<float>", 2 * x + 2 * words * width)], 1),
        ("length of the gradients", [one("clip::SumStretchesOfWords<bf16>", 2 * parameters)], 1),
        ("AdamW", [one("optimizer::UpdatesOfEights<AdamRule<float>>", 28 * parameters)], 1),
    ]


def resnet50(figures):
    """[(what, parts, times)] of a step of ResNet-50: batch 256, 224 x 224, bf16 with f32 masters, all kept."""
    batch, convs, norms, joins = 256, [], [], []
    def conv(before, side, inputs, outputs, field, tail):
        convs.append((2.0 * batch * side**2 * inputs * outputs * field**2, 2 * batch * (before**2 * inputs + side**2 * outputs)))
        norms.append((2 * batch * side**2 * outputs, tail))
    conv(224, 112, 3, 64, 7, "relu")
    inputs, side = 64, 56
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            before, side = side, side // 2 if block == 0 and stage > 0 else side
            conv(before, before, inputs, width, 1, "relu")
            conv(before, side, width, width, 3, "relu")
            conv(side, side, width, 4 * width, 1, "add_relu")
            if block == 0:
                conv(before, side, inputs, 4 * width, 1, "none")
            joins.append(2 * batch * before**2 * inputs)
            inputs = 4 * width
    pairs = [batch_norm(figures, "bf16", *norm) for norm in norms]
    pool = lambda name, bytes_: kernel(figures, f"pool::{name}OfWords<bf16>", bytes_)
    large, small = 2 * batch * 112**2 * 64, 2 * batch * 56**2 * 64
    both = ("forward and both gradients", "forward and the gradient of its filters")
    return [
        (f"convolutions, {both[0]}", [convolution(3, *one, CONVOLUTION) for one in convs[1:]], 1),
        (f"the first one, {both[1]}", [convolution(2, *convs[0], STEM)], 1),
        ("batch norms, statistics", [forward[0] for forward, _ in pairs], 1),
        ("batch norms, relu, residual sums", [forward[1] for forward, _ in pairs], 1),
        ("batch norms, sums of gradients", [backward[0] for _, backward in pairs], 1),
        ("batch norms, gradients of x and of residuals", [backward[1] for _, backward in pairs], 1),
        ("sums of gradients where blocks begin", [kernel(figures, "elementwise::Dense<ops::Add, -1, bf16>", 3 * n) for n in joins], 1),
        ("max pooling", [pool("Max", large + small * 1.5)], 1),
        ("its gradient", [pool("MaxGradient", large + small * 1.5)], 1),
        ("SGD with momentum", [kernel(figures, "optimizer::UpdatesOfEights<SgdRule<float, 1>>", 20 * 25.6e6)], 1),
    ]


def total(parts):
    return sum(part.seconds for part in parts)


def main():
    if len(sys.argv) not in (2, 4) or len(sys.argv) == 4 and sys.argv[2] != "--tsv":
        sys.exit("gpu_expected.py: FIGURES [--tsv FILE]")
    figures = {}
    with open(sys.argv[1]) as file:
        for line in file:
            name, *numbers = line.rstrip("\n").split("\t")
            figures[name] = Figures(*map(int, numbers))
    listed, steps = operators(figures), {"GPT-2": gpt2(figures), "ResNet-50": resnet50(figures)}
    print("| operator | ms | bound by | kernel | instructions of a trip, bytes |\n|---|--:|---|---|---|")
    for (name, dtype), parts in listed.items():
        for part in parts:
            print(f"| {name} {dtype} | {1e3 * part.seconds:.4f} | {part.bound} | `{part.name}` | {part.why} |")
    sums = {}
    for model, step in steps.items():
        print(f"\n| a step of {model} | times | ms | bound by | kernel |\n|---|--:|--:|---|---|")
        sums[model] = 1e3 * sum(times * total(parts) for _, parts, times in step)
        for what, parts, times in step:
            bounds = ", ".join(dict.fromkeys(part.bound for part in parts))
            print(f"| {what} | {times * len(parts)} | {1e3 * times * total(parts):.2f} | {bounds} | `{parts[0].name}` |")
        print(f"| **all** | | **{sums[model]:.1f}** | | |")
    if len(sys.argv) == 4:
        with open(sys.argv[3], "w") as file:
            for (name, dtype), parts in listed.items():
                file.write(f"{name} {dtype} {1e3 * total(parts):.5f}\n")
            for name, model in (("gpt2", "GPT-2"), ("resnet50", "ResNet-50")):
                file.write(f"{name} step {sums[model]:.3f}\n")


if __name__ == "__main__":
    main()
