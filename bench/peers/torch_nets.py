"""The models that benchmarks train in PyTorch: a GPT, a Llama and ResNets. `rerun(block, x)` runs a block, with a checkpoint around
it or without."""
import torch
from torch import nn
from torch.nn import functional as F


def run_once(block, x):
    return block(x)


class GptBlock(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)) == 0)

    def attend(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).split(c, 2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5
            y = F.softmax(scores.masked_fill(self.mask[:t, :t], float("-inf")), -1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers=6, heads=6, width=384, length=256, vocabulary=65, rerun=run_once):
        super().__init__()
        self.rerun = rerun
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads, length) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = self.rerun(block, x)
        return self.head(self.norm(x)).flatten(0, 1)


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, key_heads, hidden, length):
        super().__init__()
        self.heads, self.key_heads = heads, key_heads
        keys = width // heads * key_heads
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.q, self.k, self.v, self.out = (nn.Linear(width, n, bias=False) for n in (width, keys, keys, width))
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        half = width // heads // 2
        angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(half) / half)[None, :]
        self.register_buffer("cos", torch.cat([angles, angles], 1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], 1).sin())

    def turned(self, x):
        a, b = x.chunk(2, -1)
        t = x.shape[2]
        return x * self.cos[:t].to(x.dtype) + torch.cat([-b, a], -1) * self.sin[:t].to(x.dtype)

    def attend(self, x):
        b, t, c = x.shape
        q = self.turned(self.q(x).view(b, t, self.heads, -1).transpose(1, 2))
        k = self.turned(self.k(x).view(b, t, self.key_heads, -1).transpose(1, 2))
        v = self.v(x).view(b, t, self.key_heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.key_heads)
        return self.out(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, layers=6, heads=6, key_heads=2, width=384, hidden=1024, length=256, vocabulary=65,
                 rerun=run_once):
        super().__init__()
        self.rerun = rerun
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, key_heads, hidden, length) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, 1e-5), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = self.rerun(block, x)
        return self.head(self.norm(x)).flatten(0, 1)


def conv_norm(cin, cout, kernel, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(cout))


class ResnetBlock(nn.Module):
    def __init__(self, cin, planes, stride, expansion):
        super().__init__()
        out = planes * expansion
        if expansion == 1:
            sizes = [(cin, planes, 3, stride), (planes, out, 3, 1)]
        else:
            sizes = [(cin, planes, 1, 1), (planes, planes, 3, stride), (planes, out, 1, 1)]
        self.layers = nn.ModuleList(conv_norm(*size) for size in sizes)
        self.shortcut = conv_norm(cin, out, 1, stride) if stride != 1 or cin != out else None

    def forward(self, x):
        y = x
        for layer in self.layers[:-1]:
            y = F.relu(layer(y), inplace=True)
        y = self.layers[-1](y)
        y += x if self.shortcut is None else self.shortcut(x)
        return F.relu(y, inplace=True)


class Resnet(nn.Module):
    def __init__(self, counts, expansion, classes, is_small, rerun=run_once):
        super().__init__()
        self.rerun = rerun
        self.is_small = is_small
        self.stem = conv_norm(3, 64, 3) if is_small else conv_norm(3, 64, 7, 2)
        self.blocks, cin = nn.ModuleList(), 64
        for stage, count in enumerate(counts):
            for index in range(count):
                stride = 2 if index == 0 and stage > 0 else 1
                self.blocks.append(ResnetBlock(cin, 64 << stage, stride, expansion))
                cin = (64 << stage) * expansion
        self.fc = nn.Linear(cin, classes)

    def forward(self, x):
        x = F.relu(self.stem(x), inplace=True)
        if not self.is_small:
            x = F.max_pool2d(x, 3, 2, 1)
        for block in self.blocks:
            x = self.rerun(block, x)
        return self.fc(x.mean((2, 3)))
