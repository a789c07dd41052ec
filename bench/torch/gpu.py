"""PyTorch's half of bench/gpu_first.sh.

gpu.py operators [--device D] [--scale N]    the lines of gpu_benchmark for PyTorch's operators
gpu.py train gpt2|resnet50 [--batch N ...]   the figures of gpu_step_benchmark for a training step, as JSON

A step of GPT-2: scaled_dot_product_attention (fused where it can), AdamW fused, gradients clipped to 1. Of ResNet-50:
channels last, momentum fused. --dtype autocast: parameters in f32, bf16 by torch.autocast; bf16: all in bf16.
`peak_bytes` is what tensors took at most, `reserved_bytes` what the allocator held for them, `device_used_bytes` what the
device says is in use.
"""
import argparse
import json
import sys

import torch
from torch.nn import functional as F

import nets
from timing import best_s, wait


def operators(device, scale):
    def seconds_of(call):
        call()
        return best_s(call, 0, device)

    def report(name, dtype, seconds, amount, unit):
        print(f"{name:<22} {dtype:<6} {1e3 * seconds:10.4f} ms {amount / seconds * 1e-9:9.1f} {unit}", flush=True)

    def small(size, least=8):
        return max(least, size // scale)

    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        def values(*shape):
            return torch.randn(*shape, device=device, dtype=dtype)

        n, rows, width = small(4096), small(16384), 1024
        a, b = values(n, n), values(n, n)
        report("matmul", name, seconds_of(lambda: a @ b), 2.0 * n**3, "Gop/s")
        left, weight = values(rows, 768), values(768, 3072)
        report("matmul_mlp", name, seconds_of(lambda: left @ weight), 2.0 * rows * 768 * 3072, "Gop/s")
        x, y = values(rows, width), values(rows, width)
        size = x.numel() * x.element_size()
        report("add", name, seconds_of(lambda: x + y), 3 * size, "GB/s")
        report("gelu", name, seconds_of(lambda: F.gelu(x, approximate="tanh")), 2 * size, "GB/s")
        report("softmax", name, seconds_of(lambda: torch.softmax(x, -1)), 2 * size, "GB/s")
        report("sum_rows", name, seconds_of(lambda: x.sum(0)), size, "GB/s")
        scale_, bias = torch.ones(width, device=device, dtype=dtype), torch.zeros(width, device=device, dtype=dtype)
        report("layer_norm", name, seconds_of(lambda: F.layer_norm(x, (width,), scale_, bias)), 2 * size, "GB/s")
        length = small(1024, 16)
        q, k, v, dy = (values(16, 12, length, 64) for _ in range(4))
        product = 16.0 * 12 * length * length * 64
        attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        report("attention", name, seconds_of(attend), 2 * product, "Gop/s")
        with torch.enable_grad():
            y = F.scaled_dot_product_attention(*(x.requires_grad_() for x in (q, k, v)), is_causal=True)
        report("attention_grad", name, seconds_of(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)),
               5 * product, "Gop/s")
        image = small(56)
        pixels = values(32, 64, image, image).to(memory_format=torch.channels_last)
        filters = values(64, 64, 3, 3).to(memory_format=torch.channels_last)
        report("conv3x3", name, seconds_of(lambda: F.conv2d(pixels, filters, padding=1)),
               2.0 * pixels.numel() * 9 * 64, "Gop/s")

        def one_pass(operand, call):
            operand = operand.detach().requires_grad_()
            with torch.enable_grad():
                out = call(operand)
            return torch.autograd.grad(out, operand, out.detach())

        maps = values(32, 256, image, image).to(memory_format=torch.channels_last)
        gain, shift = torch.ones(256, device=device), torch.zeros(256, device=device)
        norm = lambda t: F.relu(F.batch_norm(t, None, None, gain, shift, training=True))
        size_of_maps = maps.numel() * maps.element_size()
        report("batch_norm_relu", name, seconds_of(lambda: norm(maps)), 3 * size_of_maps, "GB/s")
        report("batch_norm_relu_pass", name, seconds_of(lambda: one_pass(maps, norm)), 8 * size_of_maps, "GB/s")
        report("dropout", name, seconds_of(lambda: F.dropout(x, 0.1)), 2 * size, "GB/s")
        words = small(50304, 16)
        logits, table = values(rows // 4, words), values(words, 768)
        targets = torch.tensor([1 if i % 8 == 0 else i * 7919 % words for i in range(rows // 4)], device=device)
        report("cross_entropy", name, seconds_of(lambda: F.cross_entropy(logits, targets)),
               logits.numel() * logits.element_size(), "GB/s")
        report("embedding_pass", name, seconds_of(lambda: one_pass(table, lambda t: F.embedding(targets, t))),
               (3 * (rows // 4) * 768 + table.numel()) * table.element_size(), "GB/s")

    linear_layers(device, scale, seconds_of, report)


def linear_layers(device, scale, seconds_of, report):
    """Layers of n to n features for n rows. FP8: torch._scaled_mm, with and without the rounding of both operands under
    their own amax; its passes are not PyTorch's own, so they have no line. Integers: torch._int_mm, sums alone."""
    for whole in (1024, 2048, 4096, 8192):
        n = max(32, whole // scale // 16 * 16)
        x = torch.randn(n, n, device=device, dtype=torch.bfloat16, requires_grad=True)
        w = torch.randn(n, n, device=device, dtype=torch.bfloat16, requires_grad=True)
        dy = torch.randn(n, n, device=device, dtype=torch.bfloat16)
        work = 2.0 * n**3

        def layer_pass():
            x.grad = w.grad = None
            with torch.enable_grad():
                F.linear(x, w).backward(dy)

        def rounded(t):
            unit = (t.abs().amax().float() / 448).clamp(min=2.0**-60)
            return (t * (1 / unit)).clamp(-448, 448).to(torch.float8_e4m3fn), unit

        def product(a, b):
            return torch._scaled_mm(a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16)

        with torch.no_grad():
            report(f"linear_{n}", "bf16", seconds_of(lambda: F.linear(x, w)), work, "Gop/s")
        report(f"linear_pass_{n}", "bf16", seconds_of(layer_pass), 3 * work, "Gop/s")
        with torch.no_grad():
            if device == "cuda" and torch.cuda.get_device_capability() >= (8, 9):
                x8, w8 = rounded(x), rounded(w)
                report(f"fp8_current_{n}", "f8e4m3", seconds_of(lambda: product(rounded(x), rounded(w))), work, "Gop/s")
                report(f"fp8_product_{n}", "f8e4m3", seconds_of(lambda: product(x8, w8)), work, "Gop/s")
            xi = torch.randint(-127, 128, (n, n), device=device, dtype=torch.int8)
            wi = torch.randint(-127, 128, (n, n), device=device, dtype=torch.int8)
            report(f"int8_{n}", "i8", seconds_of(lambda: torch._int_mm(xi, wi.t())), work, "Gop/s")


def train(options):
    device, is_text = options.device, options.model == "gpt2"
    if is_text:
        model = nets.Gpt(options.layers, options.heads, options.width, options.seq, 50257)
    else:
        model = nets.resnet50().to(memory_format=torch.channels_last)
    model = model.to(device)
    inputs, targets = nets.random_batch(model, options.batch, options.seq if is_text else options.image, device)
    if options.dtype == "bf16":
        model = model.to(torch.bfloat16)
        inputs = inputs if is_text else inputs.to(torch.bfloat16)
    optimizer = nets.optimizer_of(model)
    run_model = torch.compile(model) if options.compile else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=options.dtype == "autocast"):
            loss = F.cross_entropy(run_model(inputs).float(), targets)
        loss.backward()
        if is_text:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def steps():
        for _ in range(options.steps):
            step()
        wait(device)

    for _ in range(3):
        step()
    wait(device)
    best = best_s(steps, 0) / options.steps
    items = options.batch * (options.seq if is_text else 1)
    figures = {"model": options.model, "batch": options.batch, "dtype": options.dtype, "tf32": options.tf32,
               "compiled": options.compile, "torch": torch.__version__,
               "parameters": sum(p.numel() for p in model.parameters()), "best_ms": 1e3 * best,
               "items_per_s": items / best}
    if options.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        figures |= {"peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved(),
                    "device_used_bytes": total - free}
    print(json.dumps(figures, indent=2))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    both.add_argument("--tf32", action="store_true")
    one = commands.add_parser("operators", parents=[both])
    one.add_argument("--scale", type=int, default=1)
    other = commands.add_parser("train", parents=[both])
    other.add_argument("model", choices=("gpt2", "resnet50"))
    for flag, number in (("batch", 16), ("seq", 1024), ("image", 224), ("layers", 12), ("heads", 12), ("width", 768),
                         ("steps", 10)):
        other.add_argument(f"--{flag}", type=int, default=number)
    other.add_argument("--dtype", default="f32", choices=("f32", "bf16", "autocast"))
    other.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu.py: PyTorch has no GPU here")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.backends.cudnn.allow_tf32 = options.tf32
    if options.command == "train":
        return train(options)
    with torch.no_grad():
        operators(options.device, options.scale)


if __name__ == "__main__":
    main()
