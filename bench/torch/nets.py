"""The nets that are trained in PyTorch beside ours: GPT-2, Llama, ResNets, and those of transformers and torchvision. GPT
and ResNets have the public files' names.
`rerun(block, x)` runs a block, with a checkpoint around it or without."""
import torch
from torch import nn
from torch.nn import functional as F


def run_once(block, x):
    return block(x)


def relu(x):  # parity.py replaces it to see its inputs
    return F.relu(x, inplace=True)


def heads_of(x, count):  # (B, T, C) -> (B, H, T, D)
    return x.view(*x.shape[:2], count, -1).transpose(1, 2)


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x):  # (B, T, C)
        parts = self.attn["c_attn"](self.ln_1(x)).split(x.shape[2], 2)
        y = F.scaled_dot_product_attention(*(heads_of(part, self.heads) for part in parts), is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2 (Radford et al. 2019) with the head tied to the token table."""

    def __init__(self, layers=6, heads=6, width=384, length=256, vocabulary=65, rerun=run_once):
        super().__init__()
        self.rerun = rerun
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, ids):  # (B, T) -> (B T, V)
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = self.rerun(block, x)
        return F.linear(self.ln_f(x), self.wte.weight).flatten(0, 1)


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

    def forward(self, x):  # (B, T, C)
        y = self.norm1(x)
        q, k = self.turned(heads_of(self.q(y), self.heads)), self.turned(heads_of(self.k(y), self.key_heads))
        y = F.scaled_dot_product_attention(q, k, heads_of(self.v(y), self.key_heads), is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, rerun=run_once, layers=6, heads=6, key_heads=2, width=384, hidden=1024, length=256, vocabulary=65):
        super().__init__()
        self.rerun = rerun
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, key_heads, hidden, length) for _ in range(layers))
        self.norm = nn.RMSNorm(width, 1e-5)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids):  # (B, T) -> (B T, V)
        x = self.tokens(ids)
        for block in self.blocks:
            x = self.rerun(block, x)
        return F.linear(self.norm(x), self.tokens.weight).flatten(0, 1)


def conv(cin, cout, kernel, stride=1):
    return nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False)


class ResnetBlock(nn.Module):
    def __init__(self, cin, planes, stride, expansion):
        super().__init__()
        cout = planes * expansion
        sizes = [(cin, planes, 3, stride), (planes, cout, 3)]
        if expansion > 1:
            sizes = [(cin, planes, 1), (planes, planes, 3, stride), (planes, cout, 1)]
        self.last = len(sizes)
        for i, size in enumerate(sizes, 1):
            self.add_module(f"conv{i}", conv(*size))
            self.add_module(f"bn{i}", nn.BatchNorm2d(size[1]))
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(conv(cin, cout, 1, stride), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = x
        for i in range(1, self.last):
            y = relu(getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y)))
        y = getattr(self, f"bn{self.last}")(getattr(self, f"conv{self.last}")(y))
        y += x if self.downsample is None else self.downsample(x)
        return relu(y)


class Resnet(nn.Module):
    """He et al. 2015 (arXiv:1512.03385); for small images the stem is a 3x3 convolution of stride 1, without a pool."""

    def __init__(self, counts, expansion, classes, is_small, width=64, rerun=run_once):
        super().__init__()
        self.rerun, self.is_small = rerun, is_small
        self.conv1, self.bn1 = conv(3, width, 3) if is_small else conv(3, width, 7, 2), nn.BatchNorm2d(width)
        self.stages, cin = [], width
        for stage, count in enumerate(counts):
            blocks = []
            for index in range(count):
                blocks.append(ResnetBlock(cin, width << stage, 2 if index == 0 and stage > 0 else 1, expansion))
                cin = (width << stage) * expansion
            self.stages.append(f"layer{stage + 1}")
            self.add_module(self.stages[-1], nn.Sequential(*blocks))
        self.fc = nn.Linear(cin, classes)

    def forward(self, x):  # (N, 3, H, W) -> (N, K)
        x = relu(self.bn1(self.conv1(x)))
        if not self.is_small:
            x = F.max_pool2d(x, 3, 2, 1)
        for stage in self.stages:
            for block in getattr(self, stage):
                x = self.rerun(block, x)
        return self.fc(x.mean((2, 3)))


def resnet18(classes=10, width=64, rerun=run_once):
    return Resnet((2, 2, 2, 2), 1, classes, True, width, rerun)


def resnet50(rerun=run_once):
    return Resnet((3, 4, 6, 3), 4, 1000, False, rerun=rerun)


def resnet101(rerun=run_once):
    return Resnet((3, 4, 23, 3), 4, 1000, False, rerun=rerun)


def gpt2(rerun=run_once):
    return Gpt(12, 12, 768, 1024, 50257, rerun)


class Bert(nn.Module):
    """BERT base with its head over the vocabulary, from transformers."""

    def __init__(self, rerun=None):
        super().__init__()
        import transformers
        self.net = transformers.BertForMaskedLM(transformers.BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0))

    def forward(self, ids):  # (B, T) -> (B T, V)
        return self.net(ids).logits.flatten(0, 1)


def vit_b16(rerun=None):
    import torchvision
    return torchvision.models.vit_b_16()


def googlenet(rerun=None):
    import torchvision
    return torchvision.models.googlenet(aux_logits=False, init_weights=False)


def is_text(net):
    return isinstance(net, (Gpt, Llama, Bert))


def random_batch(net, batch, size, device="cpu"):
    """Inputs and targets: texts of `size` tokens, images of `size` x `size`."""
    if not is_text(net):
        images = torch.randn(batch, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)
        classes = [m for m in net.modules() if isinstance(m, nn.Linear)][-1].out_features
        return images, torch.randint(0, classes, (batch,), device=device)
    vocabulary = next(net.parameters()).shape[0]
    return (torch.randint(0, vocabulary, (batch, size), device=device),
            torch.randint(0, vocabulary, (batch * size,), device=device))


def optimizer_of(net):
    """AdamW of texts, SGD with momentum of images."""
    fused = {"fused": True} if int(torch.__version__[0]) > 1 else {}
    if not is_text(net):
        return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, **fused)
    return torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1, **fused)
