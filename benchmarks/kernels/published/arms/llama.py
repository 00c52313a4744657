"""A small transformer like Llama 3, with the fused RMSNorm operator: sizes, parameters, loss."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.published.arms.fused_norm import rms_norm
from kernels.checks.inputs import DTYPES

EPS = 1e-5
HEAD = 128  # columns of an attention head
SHARED_BY = 4  # query heads that share a key and a value
ROTATION = 500_000.0
VOCABULARY = 8  # tokens for each column: 32,768 at the width of Llama 3 8B, a quarter of its own

_TEXT = re.compile(r"llama\.(\d+)x(\d+)\.(\d+)x(\d+)\.(fp32|bf16)(?:\.fsdp(\d+))?")


@dataclass(frozen=True)
class LlamaSize:
    """`layers` blocks of `width` columns, trained with `batch` sequences of `sequence` tokens on each of `ranks`."""

    layers: int
    width: int
    batch: int
    sequence: int
    dtype: torch.dtype
    ranks: int = 1

    @classmethod
    def parse(cls, text: str) -> "LlamaSize":
        """`llama.LAYERSxWIDTH.BATCHxSEQUENCE.dtype`, where the dtype is fp32 or bf16; `.fsdp2` adds two ranks.

        Raises ValueError.
        """
        found = _TEXT.fullmatch(text)
        if not found:
            raise ValueError(
                f"{text!r} is not a model; write llama.LAYERSxWIDTH.BATCHxSEQUENCE.fp32 or .bf16, then .fsdp2 to shard"
            )
        layers, width, batch, sequence = map(int, found.groups()[:4])
        ranks = int(found[6] or 1)
        if not (layers and width and batch and sequence and ranks) or width % (2 * HEAD) or width % ranks:
            raise ValueError(
                f"{text!r}: the width must be a multiple of {2 * HEAD} and of the ranks, and nothing may be 0"
            )
        return cls(layers, width, batch, sequence, DTYPES[found[5]], ranks)

    @property
    def tokens(self) -> int:
        """Of a rank."""
        return self.batch * self.sequence

    @property
    def heads(self) -> int:
        return self.width // HEAD

    @property
    def key_heads(self) -> int:
        return max(1, self.heads // SHARED_BY)

    @property
    def vocabulary(self) -> int:
        return VOCABULARY * self.width

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The parameters by name, in the order of `parameters`."""
        width, inner = self.width, self.width * 7 // 2
        block = {
            "norm_1": (width,),
            "qkv": ((self.heads + 2 * self.key_heads) * HEAD, width),
            "out": (width, width),
            "norm_2": (width,),
            "gate_up": (2 * inner, width),
            "down": (width, inner),
        }
        blocks = {f"{number}.{name}": shape for number in range(self.layers) for name, shape in block.items()}
        ends = {"norm": (width,), "head": (self.vocabulary, width)}
        return {"embedding": (self.vocabulary, width), **blocks, **ends}

    @property
    def flops(self) -> int:
        """Model FLOPs of one step of a rank, as `blocks.Shape.flops` counts them; the embedding has none."""
        weights = sum(math.prod(shape) for name, shape in self.shapes.items() if name != "embedding" and len(shape) > 1)
        return self.tokens * (6 * weights + self.layers * 12 * self.width * self.sequence // 2)


def parameters(size: LlamaSize, device: str, seed: int) -> list[Tensor]:
    """Normal matrices that keep the size of activations, norms of ones; all require gradients."""
    generator = torch.Generator(device).manual_seed(seed)
    found = []
    for shape in size.shapes.values():
        if len(shape) == 1:
            one = torch.ones(shape, device=device, dtype=size.dtype)
        else:
            one = torch.randn(shape, generator=generator, device=device, dtype=size.dtype).mul_(shape[1] ** -0.5)
        found.append(one.requires_grad_())
    return found


def batches(size: LlamaSize, device: str, seed: int, count: int) -> list[tuple[Tensor, ...]]:
    """Tokens, the tokens that follow them, and the tables of the rotation.  Small tokens are more frequent."""
    generator = torch.Generator().manual_seed(seed)
    frequencies = 1 / torch.arange(1, size.vocabulary + 1)
    drawn = torch.multinomial(frequencies, count * size.batch * (size.sequence + 1), True, generator=generator)
    tables = _rotation(size, device)
    found: list[tuple[Tensor, ...]] = []
    for one in drawn.view(count, size.batch, size.sequence + 1).to(device):
        found.append((one[:, :-1].contiguous(), one[:, 1:].contiguous(), *tables))
    return found


def loss(size: LlamaSize, weights: Iterable[Tensor], batch: Sequence[Tensor]) -> Tensor:
    """The mean cross entropy of the next tokens, fp32.  The weights are taken block by block."""
    tokens, following, *rotation = batch
    given = iter(weights)
    x = F.embedding(tokens, next(given))
    for _ in range(size.layers):
        x = _block(size, x, given, rotation)
    logits = F.linear(rms_norm(x, next(given), EPS), next(given))
    return F.cross_entropy(logits.flatten(0, 1).float(), following.flatten())


def _block(size: LlamaSize, x: Tensor, given: Iterator[Tensor], rotation: Sequence[Tensor]) -> Tensor:
    norm_1, qkv, out, norm_2, gate_up, down = (next(given) for _ in range(6))
    x = x + F.linear(_attention(size, F.linear(rms_norm(x, norm_1, EPS), qkv), rotation), out)
    gate, up = F.linear(rms_norm(x, norm_2, EPS), gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down)


def _attention(size: LlamaSize, qkv: Tensor, rotation: Sequence[Tensor]) -> Tensor:
    heads = qkv.view(size.batch, size.sequence, -1, HEAD).transpose(1, 2)
    split: Any = heads.split  # not typed
    q, k, v = split([size.heads, size.key_heads, size.key_heads], dim=1)
    shared = size.heads // size.key_heads
    q, k = _rotated(q, *rotation), _rotated(k, *rotation).repeat_interleave(shared, 1)
    mixed = F.scaled_dot_product_attention(q, k, v.repeat_interleave(shared, 1), is_causal=True)
    return mixed.transpose(1, 2).reshape(size.batch, size.sequence, size.width)


def _rotation(size: LlamaSize, device: str) -> tuple[Tensor, Tensor]:
    """Cosines and sines: [sequence, HEAD / 2], fp32."""
    frequencies = ROTATION ** (-torch.arange(0, HEAD, 2, dtype=torch.float64) / HEAD)
    angles = torch.outer(torch.arange(size.sequence, dtype=torch.float64), frequencies)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of the halves of each head, in fp32."""
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)
