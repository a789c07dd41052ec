"""The models as PyTorch modules, written from their papers; names and layouts are those of the public files."""

import math

import torch
from torch import nn
from torch.nn import functional as F


relu_distances = []  # of every relu since it was cleared: how near to 0 its nearest input was


def relu(x):
    relu_distances.append(x.detach().abs().min().item())
    return F.relu(x)


class InOutLinear(nn.Module):
    """x W + b with W (in, out), as GPT-2's files have it."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = InOutLinear(width, 3 * width)
        self.c_proj = InOutLinear(width, width)

    def forward(self, x):  # (B, T, C)
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)  # (B, H, T, D)
                   for part in self.c_attn(x).split(width, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)  # (B, H, T, T)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        shares = scores.masked_fill(later, -math.inf).softmax(dim=3)
        return self.c_proj((shares @ v).transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = InOutLinear(width, 4 * width)
        self.c_proj = InOutLinear(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """GPT-2 (Radford et al. 2019) with the head tied to the token table."""

    def __init__(self, layers, heads, width, sequence, vocabulary):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(sequence, width)
        self.h = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, ids):  # (B, T) -> (B, T, V)
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


class ResnetBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        return relu(y + (x if self.downsample is None else self.downsample(x)))


class Resnet18(nn.Module):
    """He et al. 2015 (arXiv:1512.03385) with the stem for small images: a 3x3 convolution of stride 1, no pool."""

    def __init__(self, width, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage in range(4):
            outputs = width << stage
            self.add_module(f"layer{stage + 1}", nn.Sequential(ResnetBlock(inputs, outputs, 1 if stage == 0 else 2),
                                                               ResnetBlock(outputs, outputs, 1)))
            inputs = outputs
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):  # (N, 3, H, W) -> (N, K)
        x = relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))
