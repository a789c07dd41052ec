"""PyTorch's operators on a GPU: the lines of gpu_benchmark, for bench/gpu_check.sh."""
import sys
import time

import torch
import torch.nn.functional as F

if not torch.cuda.is_available():
    sys.exit("gpu_torch.py: PyTorch has no GPU here")
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def seconds_of(call):
    call()
    torch.cuda.synchronize()
    best = 1e30
    for run in range(5):
        calls = 1 if run == 0 else min(max(int(0.05 / best), 1), 200)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def report(name, dtype, seconds, amount, unit):
    print(f"{name:<22} {dtype:<6} {1e3 * seconds:10.4f} ms {amount / seconds * 1e-9:9.1f} {unit}")


with torch.no_grad():
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        values = lambda *shape: torch.randn(*shape, device="cuda", dtype=dtype)
        a, b = values(4096, 4096), values(4096, 4096)
        report("matmul", name, seconds_of(lambda: a @ b), 2.0 * 4096**3, "Gop/s")
        x, y = values(16384, 1024), values(16384, 1024)
        size = x.numel() * x.element_size()
        report("add", name, seconds_of(lambda: x + y), 3 * size, "GB/s")
        report("gelu", name, seconds_of(lambda: F.gelu(x, approximate="tanh")), 2 * size, "GB/s")
        report("softmax", name, seconds_of(lambda: torch.softmax(x, -1)), 2 * size, "GB/s")
        report("sum_rows", name, seconds_of(lambda: x.sum(0)), size, "GB/s")
        weight, bias = torch.ones(1024, device="cuda", dtype=dtype), torch.zeros(1024, device="cuda", dtype=dtype)
        report("layer_norm", name, seconds_of(lambda: F.layer_norm(x, (1024,), weight, bias)), 2 * size, "GB/s")
        q, k, v, dy = (values(16, 12, 1024, 64) for _ in range(4))
        product = 16.0 * 12 * 1024 * 1024 * 64
        attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        report("attention", name, seconds_of(attend), 2 * product, "Gop/s")
        with torch.enable_grad():
            y = F.scaled_dot_product_attention(*(x.requires_grad_() for x in (q, k, v)), is_causal=True)
        report("attention_grad", name, seconds_of(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)),
               5 * product, "Gop/s")
        pixels = values(32, 64, 56, 56).to(memory_format=torch.channels_last)
        filters = values(64, 64, 3, 3).to(memory_format=torch.channels_last)
        report("conv3x3", name, seconds_of(lambda: F.conv2d(pixels, filters, padding=1)),
               2.0 * pixels.numel() * 9 * 64, "Gop/s")

# Linear layers of n to n features for n rows. FP8: torch._scaled_mm, with and without the rounding of both operands under
# their own amax; its passes are not PyTorch's own, so they have no line. Integers: torch._int_mm, sums alone.
for n in (1024, 2048, 4096, 8192):
    x = torch.randn(n, n, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(n, n, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    work = 2.0 * n**3

    def layer_pass():
        x.grad = w.grad = None
        F.linear(x, w).backward(dy)

    def rounded(t):
        scale = (t.abs().amax().float() / 448).clamp(min=2.0**-60)
        return (t * (1 / scale)).clamp(-448, 448).to(torch.float8_e4m3fn), scale

    def product(a, b):
        return torch._scaled_mm(a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16)

    with torch.no_grad():
        report(f"linear_{n}", "bf16", seconds_of(lambda: F.linear(x, w)), work, "Gop/s")
    report(f"linear_pass_{n}", "bf16", seconds_of(layer_pass), 3 * work, "Gop/s")
    with torch.no_grad():
        if torch.cuda.get_device_capability() >= (8, 9):
            x8, w8 = rounded(x), rounded(w)
            report(f"fp8_current_{n}", "f8e4m3", seconds_of(lambda: product(rounded(x), rounded(w))), work, "Gop/s")
            report(f"fp8_product_{n}", "f8e4m3", seconds_of(lambda: product(x8, w8)), work, "Gop/s")
        xi = torch.randint(-127, 128, (n, n), device="cuda", dtype=torch.int8)
        wi = torch.randint(-127, 128, (n, n), device="cuda", dtype=torch.int8)
        report(f"int8_{n}", "i8", seconds_of(lambda: torch._int_mm(xi, wi.t())), work, "Gop/s")
