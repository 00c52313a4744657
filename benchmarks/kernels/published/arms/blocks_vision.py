"""Blocks of vision models: one or two of the repeated parts each, in the layout of the images (batch, channels, h, w).

Stochastic depth and dropout are 0, as in the blocks of language models.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.kernels.published.arms.blocks_common import Block, Chain, Layer, activations, wide
from benchmarks.kernels.published.arms.blocks_language import Attention, Mlp, PreNorm, join_heads, split_heads


def conv(into: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution without bias and its batch norm."""
    return [
        nn.Conv2d(into, out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
    ]


class Bottleneck(Layer):
    """ResNet's: 1x1, 3x3 and 1x1 convolutions with batch norms, inside of a residual."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.body = Chain(
            *conv(channels, inner, 1), nn.ReLU(), *conv(inner, inner, 3), nn.ReLU(), *conv(inner, channels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


class SqueezeExcite(Layer):
    """Scale each channel by a function of the means of all."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.expand(F.silu(self.reduce(x.mean((2, 3), keepdim=True))))
        return x * torch.sigmoid(scale)


class MbConv(Layer):
    """EfficientNet's inverted bottleneck: expand, filter each channel, excite, project."""

    def __init__(self, channels: int, expansion: int, kernel: int) -> None:
        super().__init__()
        inner = channels * expansion
        self.body = Chain(
            *conv(channels, inner, 1),
            nn.SiLU(),
            *conv(inner, inner, kernel, groups=inner),
            nn.SiLU(),
            SqueezeExcite(inner, max(1, channels // 4)),
            *conv(inner, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class ConvNext(Layer):
    """A depthwise 7x7 convolution, LayerNorm over channels, an MLP and a scale, inside of a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm, self.mlp = nn.LayerNorm(channels, eps=1e-6), Mlp(channels, 4 * channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))  # 1e-6 at first in training; that hides the block

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.mlp(y) * self.scale).permute(0, 3, 1, 2)


class Mixer(Layer):
    """MLP-Mixer: an MLP over the tokens, then one over the channels."""

    def __init__(self, tokens: int, columns: int, token_inner: int, inner: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(columns) for _ in range(2))
        self.across, self.along = Mlp(tokens, token_inner), Mlp(columns, inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norms[1](x))


class Swin(Layer):
    """Swin's shifted windows of 7x7: attention with a learned bias inside of each, then an MLP."""

    window = 7
    index: Tensor
    mask: Tensor

    def __init__(self, columns: int, heads: int, side: int) -> None:
        super().__init__()
        self.side, self.head = side, columns // heads
        self.norms = nn.ModuleList(nn.LayerNorm(columns) for _ in range(2))
        self.qkv, self.out = nn.Linear(columns, 3 * columns), nn.Linear(columns, columns)
        self.mlp = Mlp(columns, 4 * columns)
        span = 2 * self.window - 1
        self.bias = nn.Parameter(torch.randn(span * span, heads) * 0.02)
        places = torch.stack(torch.meshgrid(*[torch.arange(self.window)] * 2, indexing="ij")).flatten(1)
        apart = places[:, :, None] - places[:, None, :] + self.window - 1
        self.register_buffer("index", apart[0] * span + apart[1])
        self.register_buffer("mask", self._mask())

    def _mask(self) -> Tensor:
        """Minus infinity, nearly, between tokens that the shift brought together: (windows, tokens, tokens)."""
        edges = torch.tensor([0] * (self.side - self.window) + [1] * (self.window - self.window // 2))
        edges = F.pad(edges, (0, self.window // 2), value=2)
        regions = edges[:, None] * 3 + edges[None, :]
        windows = self._windows(regions[None, :, :, None]).squeeze(-1)
        return (windows[:, None, :] != windows[:, :, None]) * -100.0

    def _windows(self, x: Tensor) -> Tensor:
        """(batch, side, side, columns) to (windows of all, tokens of one, columns)."""
        count = self.side // self.window
        tiled = torch.unflatten(torch.unflatten(x, 2, (count, self.window)), 1, (count, self.window))
        return tiled.transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def _whole(self, windows: Tensor) -> Tensor:
        count = self.side // self.window
        tiled = torch.unflatten(torch.unflatten(windows, 1, (self.window, self.window)), 0, (-1, count, count))
        return tiled.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        shift = self.window // 2
        normed = self.norms[0](x).roll((-shift, -shift), (1, 2))
        mixed = self._attention(self._windows(normed))
        x = x + self._whole(mixed).roll((shift, shift), (1, 2))
        return x + self.mlp(self.norms[1](x))

    def _attention(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(one, self.head) for one in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) * self.head**-0.5 + self.bias[self.index].permute(2, 0, 1)
        by_image = torch.unflatten(scores, 0, (-1, self.mask.shape[0])) + self.mask[:, None]
        weights = wide(by_image.flatten(0, 1)).softmax(-1).to(v.dtype)
        found: Tensor = self.out(join_heads(weights @ v))
        return found


class Dense(Layer):
    """DenseNet's: each layer reads what all before it made."""

    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Chain(
                nn.BatchNorm2d(channels + growth * number),
                nn.ReLU(),
                *conv(channels + growth * number, 4 * growth, 1),
                nn.ReLU(),
                nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            for number in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat((x, layer(x)), 1)
        return x


def _vit(columns: int, heads: int, inner: int) -> Layer:
    norms = (nn.LayerNorm(columns, eps=1e-6), nn.LayerNorm(columns, eps=1e-6))
    return PreNorm(norms, Attention(columns, heads, causal=False), Mlp(columns, inner))


def _resnet(channels: int, inner: int) -> Chain:
    return Chain(Bottleneck(channels, inner), Bottleneck(channels, inner))


def _convnext(channels: int) -> Chain:
    return Chain(ConvNext(channels), ConvNext(channels))


BLOCKS: Mapping[str, Block] = {
    "resnet": Block(
        "ResNet-50, two bottlenecks of conv3: 512 channels, 128 inner, 28 x 28 (arXiv 1512.03385); 64 images",
        _resnet,
        activations((512, 128), 64, 512, 28, 28),
        activations((16, 4), 4, 16, 8, 8),
    ),
    "vit": Block(
        "ViT B/16, a layer: 768 columns, 12 heads, 3072 inner, 197 tokens (arXiv 2010.11929); 64 images",
        _vit,
        activations((768, 12, 3072), 64, 197, 768),
        activations((32, 2, 64), 4, 17, 32),
    ),
    "convnext": Block(
        "ConvNeXt tiny, two blocks of stage 3: 384 channels, 14 x 14 (arXiv 2201.03545); 128 images",
        _convnext,
        activations((384,), 128, 384, 14, 14),
        activations((16,), 4, 16, 8, 8),
    ),
    "efficientnet": Block(
        "EfficientNet B0, an MBConv6 of stage 4: 40 channels, 5 x 5, 28 x 28 (arXiv 1905.11946); 128 images",
        MbConv,
        activations((40, 6, 5), 128, 40, 28, 28),
        activations((8, 2, 3), 4, 8, 8, 8),
    ),
    "mixer": Block(
        "MLP-Mixer B/16, a layer: 196 tokens, 768 columns, 384 and 3072 inner (arXiv 2105.01601); 64 images",
        Mixer,
        activations((196, 768, 384, 3072), 64, 196, 768),
        activations((9, 32, 16, 64), 4, 9, 32),
    ),
    "swin": Block(
        "Swin tiny, a shifted block of stage 1: 96 columns, 3 heads, 56 x 56, windows of 7 x 7 (arXiv 2103.14030); "
        "32 images",
        Swin,
        activations((96, 3, 56), 32, 56, 56, 96),
        activations((16, 2, 14), 4, 14, 14, 16),
    ),
    "densenet": Block(
        "DenseNet-121, three layers of block 2: 128 channels, growth 32, 28 x 28 (arXiv 1608.06993); 64 images",
        Dense,
        activations((128, 32, 3), 64, 128, 28, 28),
        activations((8, 4, 2), 4, 8, 8, 8),
    ),
}
