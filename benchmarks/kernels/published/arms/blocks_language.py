"""Blocks of language models: one layer each, and the loss over a vocabulary.

Dropout is 0, since the random masks of two arms would differ and their results could not be compared.
"""

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.kernels.published.arms.blocks_common import Block, Given, Layer, Size, activations, wide


class RmsNorm(Layer):
    """As in Llama: normalised in fp32, scaled in the dtype of the weight; `offset` is added to the weight."""

    def __init__(self, columns: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((columns,), 1.0 - offset))
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        x32 = wide(x)
        normed = (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        return normed * (self.weight + self.offset)


def split_heads(x: Tensor, columns: int) -> Tensor:
    """(batch, sequence, heads * columns) to (batch, heads, sequence, columns)."""
    return torch.unflatten(x, -1, (-1, columns)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(-2)


def rotated(x: Tensor, base: float = 10000.0) -> Tensor:
    """Rotary position embedding of (batch, heads, sequence, columns), as in Llama."""
    sequence, columns = x.shape[-2], x.shape[-1]
    steps = torch.arange(0, columns, 2, device=x.device, dtype=torch.float32) / columns
    angles = torch.arange(sequence, device=x.device, dtype=torch.float32)[:, None] * base**-steps
    angles = torch.cat((angles, angles), -1)
    left, right = x.chunk(2, -1)
    turned = torch.cat((-right, left), -1)
    return (x * angles.cos() + turned * angles.sin()).to(x.dtype)


class Attention(Layer):
    """Causal or full attention with rotary positions or none, grouped key and value heads, and a norm of q and k."""

    def __init__(
        self,
        columns: int,
        heads: int,
        key_heads: int | None = None,
        head: int | None = None,
        *,
        bias: bool = True,
        causal: bool = True,
        rotary: float = 0.0,
        norm_qk: bool = False,
    ) -> None:
        super().__init__()
        self.head = head or columns // heads
        self.key_heads = key_heads or heads
        self.widths = [heads * self.head, self.key_heads * self.head, self.key_heads * self.head]
        self.qkv = nn.Linear(columns, sum(self.widths), bias)
        self.out = nn.Linear(heads * self.head, columns, bias)
        self.norms = nn.ModuleList(RmsNorm(self.head) for _ in range(2)) if norm_qk else None
        self.causal, self.rotary, self.grouped = causal, rotary, self.key_heads != heads

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(one, self.head) for one in self.qkv(x).split(self.widths, -1))
        if self.norms is not None:
            q, k = self.norms[0](q).to(v.dtype), self.norms[1](k).to(v.dtype)
        if self.rotary:
            q, k = rotated(q, self.rotary), rotated(k, self.rotary)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=self.grouped)
        found: Tensor = self.out(join_heads(mixed))
        return found


class Mlp(Layer):
    """Two matrices around an activation."""

    def __init__(
        self, columns: int, inner: int, activation: Callable[[Tensor], Tensor] = F.gelu, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(columns, inner, bias), nn.Linear(inner, columns, bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.activation(self.up(x)))
        return found


class GatedMlp(Layer):
    """As in Llama (SiLU) and Gemma (GELU): the activation of one product scales another."""

    def __init__(self, columns: int, inner: int, activation: Callable[[Tensor], Tensor] = F.silu) -> None:
        super().__init__()
        self.gate_up = nn.Linear(columns, 2 * inner, bias=False)
        self.down = nn.Linear(inner, columns, bias=False)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        found: Tensor = self.down(self.activation(gate) * up)
        return found


class PreNorm(Layer):
    """Attention and MLP, each after a norm and inside of a residual."""

    def __init__(self, norms: tuple[Layer | nn.LayerNorm, Layer | nn.LayerNorm], attention: Layer, mlp: Layer) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norms)
        self.attention, self.mlp = attention, mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class PostNorm(Layer):
    """As in BERT: a norm after each residual."""

    def __init__(self, columns: int, attention: Layer, mlp: Layer) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(columns, eps=1e-12) for _ in range(2))
        self.attention, self.mlp = attention, mlp

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x + self.attention(x))
        found: Tensor = self.norms[1](x + self.mlp(x))
        return found


class Parallel(Layer):
    """As in Falcon: attention and MLP of the same normalised input."""

    def __init__(self, columns: int, attention: Layer, mlp: Layer) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp = nn.LayerNorm(columns), attention, mlp

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return x + self.attention(normed) + self.mlp(normed)


class ByDistance(Layer):
    """T5's attention: written out, unscaled, with a learned bias by the distance of two tokens."""

    buckets = 32
    far = 128  # tokens; all distances beyond share a bucket

    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.head = columns // heads
        self.qkv, self.out = nn.Linear(columns, 3 * columns, bias=False), nn.Linear(columns, columns, bias=False)
        self.bias = nn.Embedding(self.buckets, heads)
        nn.init.normal_(self.qkv.weight, std=columns**-0.5 * self.head**-0.25)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(one, self.head) for one in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) + self.bias(self.bucket(x)).permute(2, 0, 1)
        weights = wide(scores).softmax(-1).to(v.dtype)
        found: Tensor = self.out(join_heads(weights @ v))
        return found

    def bucket(self, x: Tensor) -> Tensor:
        """Half of the buckets for each direction; near distances have one each, far ones share them."""
        places = torch.arange(x.shape[1], device=x.device)
        distance = places[None, :] - places[:, None]
        half = self.buckets // 2
        near = half // 2
        away = distance.abs()
        share = torch.log(away.clamp(min=1).float() / near) / math.log(self.far / near)
        beyond = (near + (share * (half - near)).long()).clamp(max=half - 1)
        return (distance > 0).long() * half + torch.where(away < near, away, beyond)


class Loss(Layer):
    """GPT-2's end: the last norm, the product with the vocabulary, the cross-entropy."""

    def __init__(self, columns: int, vocabulary: int) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(columns), nn.Linear(columns, vocabulary, bias=False)

    def forward(self, x: Tensor, following: Tensor) -> Tensor:
        logits = self.head(self.norm(x))
        return F.cross_entropy(wide(logits).flatten(0, 1), following.flatten())


def _bert(columns: int, heads: int, inner: int) -> Layer:
    return PostNorm(columns, Attention(columns, heads, causal=False), Mlp(columns, inner))


def _gpt2(columns: int, heads: int, inner: int) -> Layer:
    norms = (nn.LayerNorm(columns), nn.LayerNorm(columns))
    mlp = Mlp(columns, inner, lambda x: F.gelu(x, approximate="tanh"))
    return PreNorm(norms, Attention(columns, heads), mlp)


def _opt(columns: int, heads: int, inner: int) -> Layer:
    norms = (nn.LayerNorm(columns), nn.LayerNorm(columns))
    return PreNorm(norms, Attention(columns, heads), Mlp(columns, inner, F.relu))


def _t5(columns: int, heads: int, inner: int) -> Layer:
    mlp = Mlp(columns, inner, F.relu, bias=False)
    return PreNorm((RmsNorm(columns), RmsNorm(columns)), ByDistance(columns, heads), mlp)


def _llama(columns: int, heads: int, key_heads: int, inner: int) -> Layer:
    attention = Attention(columns, heads, key_heads, bias=False, rotary=500000.0)
    return PreNorm((RmsNorm(columns), RmsNorm(columns)), attention, GatedMlp(columns, inner))


def _qwen3(columns: int, heads: int, key_heads: int, head: int, inner: int) -> Layer:
    attention = Attention(columns, heads, key_heads, head, bias=False, rotary=1000000.0, norm_qk=True)
    return PreNorm((RmsNorm(columns), RmsNorm(columns)), attention, GatedMlp(columns, inner))


def _gemma(columns: int, heads: int, key_heads: int, head: int, inner: int) -> Layer:
    attention = Attention(columns, heads, key_heads, head, bias=False, rotary=10000.0)
    mlp = GatedMlp(columns, inner, lambda x: F.gelu(x, approximate="tanh"))
    return PreNorm((RmsNorm(columns, 1.0), RmsNorm(columns, 1.0)), attention, mlp)


def _falcon(columns: int, heads: int, inner: int) -> Layer:
    attention = Attention(columns, heads, 1, bias=False, rotary=10000.0)
    return Parallel(columns, attention, Mlp(columns, inner, bias=False))


BLOCKS: Mapping[str, Block] = {
    "bert": Block(
        "BERT base, a layer: 768 columns, 12 heads, 3072 inner (arXiv 1810.04805); 32 x 512 tokens",
        _bert,
        activations((768, 12, 3072), 32, 512, 768),
        activations((32, 2, 64), 4, 16, 32),
        free=2,
    ),
    "t5": Block(
        "T5 base, an encoder layer: 768 columns, 12 heads, 3072 inner (arXiv 1910.10683); 16 x 512 tokens",
        _t5,
        activations((768, 12, 3072), 16, 512, 768),
        activations((32, 2, 64), 4, 16, 32),
        free=2,
    ),
    "llama": Block(
        "Llama 3 8B, a layer: 4096 columns, 32 heads, 8 for keys, 14336 inner (arXiv 2407.21783); 4 x 512 tokens",
        _llama,
        activations((4096, 32, 8, 14336), 4, 512, 4096),
        activations((32, 4, 2, 64), 4, 16, 32),
        free=2,
    ),
    "gpt2": Block(
        "GPT-2 small, a layer: 768 columns, 12 heads, 3072 inner (Radford et al. 2019); 16 x 1024 tokens",
        _gpt2,
        activations((768, 12, 3072), 16, 1024, 768),
        activations((32, 2, 64), 4, 16, 32),
        free=2,
    ),
    "qwen3": Block(
        "Qwen3 0.6B, a layer: 1024 columns, 16 heads of 128, 8 for keys, 3072 inner (arXiv 2505.09388); "
        "8 x 1024 tokens",
        _qwen3,
        activations((1024, 16, 8, 128, 3072), 8, 1024, 1024),
        activations((32, 4, 2, 16, 64), 4, 16, 32),
        free=2,
    ),
    "gemma": Block(
        "Gemma 2B, a layer: 2048 columns, 8 heads of 256, 1 for keys, 16384 inner (arXiv 2403.08295); 4 x 1024 tokens",
        _gemma,
        activations((2048, 8, 1, 256, 16384), 4, 1024, 2048),
        activations((32, 4, 1, 16, 64), 4, 16, 32),
        free=2,
    ),
    "falcon": Block(
        "Falcon 7B, a parallel layer: 4544 columns, 71 heads, 1 for keys, 18176 inner (arXiv 2311.16867); "
        "4 x 512 tokens",
        _falcon,
        activations((4544, 71, 18176), 4, 512, 4544),
        activations((48, 3, 64), 4, 16, 48),
        free=2,
    ),
    "opt": Block(
        "OPT 1.3B, a layer: 2048 columns, 32 heads, 8192 inner (arXiv 2205.01068); 4 x 1024 tokens",
        _opt,
        activations((2048, 32, 8192), 4, 1024, 2048),
        activations((32, 2, 64), 4, 16, 32),
        free=2,
    ),
    "gpt2_loss": Block(
        "GPT-2 small, norm and loss: 768 columns, a vocabulary of 50257 (Radford et al. 2019); 4 x 1024 tokens",
        Loss,
        Size((768, 50257), (Given((4, 1024, 768)), Given((4, 1024), 50257))),
        Size((32, 101), (Given((4, 16, 32)), Given((4, 16), 101))),
        free=2,
    ),
}
