"""Norms where a model calls them: tokens/s of a decoder, and us of a chain of norms and matrix products.  Needs a GPU.

The decoder has blocks as Qwen3 (arXiv 2505.09388): a norm with a residual before attention and MLP, and norms of the
heads of queries and keys.  Each step is one token of each sequence, with a cache of keys and values.  The sides differ
in their norms alone, take turns, and are only timed if they agree.

    python -m benchmarks.kernels.models --out DIR
"""

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.kernels.trials import say
from kernels.norms import forward as forward_module
from kernels.norms.launching import FORWARD
from kernels.norms.modules import rms_norm

EPS = 1e-6
HIDDEN, HEADS, KEY_HEADS, HEAD, MLP, LAYERS, CACHED = 4096, 32, 8, 128, 12288, 4, 512
BATCHES = (1, 64)
CHAIN, CHAIN_ROWS = 32, (1, 8, 64)  # pairs of a norm and a matrix product in a graph
LATE = "ours, launched late"
STEPS_S = 0.05  # of a turn
TOLERANCE = 0.05  # of the largest output, in bf16, after LAYERS blocks

# f(x, weight, residual or None): y, or (y, x + residual)
Norm = Callable[[Tensor, Tensor, Tensor | None], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write models.json and models.md there")
    parser.add_argument("--rounds", type=int, default=9, help="%(default)s")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        say("Skipped: a decoder is timed on a GPU.")
        return
    measured: dict[str, dict[str, list[float]]] = {}
    with torch.no_grad():
        for batch in BATCHES:
            for mode, sides in decoders(batch):
                seconds = in_turns(sides, chosen.rounds)
                measured[f"tokens/s, batch {batch}, {mode}"] = {
                    name: [batch / each for each in taken] for name, taken in seconds.items()
                }
        for rows in CHAIN_ROWS:
            seconds = in_turns(chains(rows), chosen.rounds)
            measured[f"us of a norm and a product, {rows} rows, in a graph"] = {
                name: [each / CHAIN * 1e6 for each in taken] for name, taken in seconds.items()
            }
    text = table(measured)
    say(text)
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "models.json").write_text(json.dumps(measured, indent=1))
        (chosen.out / "models.md").write_text(text)


# -- the sides ---------------------------------------------------------------------------------------------------------


def norms() -> dict[str, Norm]:
    """By side; those whose package is here."""

    def ours(x: Tensor, weight: Tensor, residual: Tensor | None) -> Any:
        return rms_norm(x, weight, None, residual, eps=EPS)

    def eager(x: Tensor, weight: Tensor, residual: Tensor | None) -> Any:
        if residual is None:
            return F.rms_norm(x, (x.shape[-1],), weight, EPS)
        total = x + residual
        return F.rms_norm(total, (x.shape[-1],), weight, EPS), total

    sides: dict[str, Norm] = {"ours": ours, "torch": eager}
    with suppress(ImportError):
        quack: Any = importlib.import_module("quack.rmsnorm")

        def of_quack(x: Tensor, weight: Tensor, residual: Tensor | None) -> Any:
            rows = x.reshape(-1, x.shape[-1])
            if residual is None:
                return quack.rmsnorm(rows, weight, eps=EPS).view(x.shape)
            y, total = quack.rmsnorm(rows, weight, residual=residual.reshape(-1, x.shape[-1]), eps=EPS, prenorm=True)
            return y.view(x.shape), total.view(x.shape)

        sides["quack"] = of_quack
    with suppress(ImportError):
        flashinfer: Any = importlib.import_module("flashinfer.norm")

        def of_flashinfer(x: Tensor, weight: Tensor, residual: Tensor | None) -> Any:
            if residual is None:
                return flashinfer.rmsnorm(x, weight, EPS)
            flashinfer.fused_add_rmsnorm(x, residual, weight, EPS)  # into both
            return x, residual

        sides["flashinfer"] = of_flashinfer
    return sides


class Block(nn.Module):
    def __init__(self, norm: Norm, batch: int) -> None:
        super().__init__()
        self.norm = norm
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KEY_HEADS) * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 2 * MLP, bias=False)
        self.down = nn.Linear(MLP, HIDDEN, bias=False)
        for name, width in (("first", HIDDEN), ("second", HIDDEN), ("of_q", HEAD), ("of_k", HEAD)):
            setattr(self, name, nn.Parameter(torch.rand(width) + 0.5))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(batch, KEY_HEADS, CACHED, HEAD))

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        batch = x.shape[0]
        y, residual = self.norm(x, self.first, residual)
        q, k, v = self.qkv(y).view(batch, -1, HEAD).split([HEADS, KEY_HEADS, KEY_HEADS], 1)
        q = self.norm(q.contiguous(), self.of_q, None)[:, :, None]
        k = self.norm(k.contiguous(), self.of_k, None)[:, :, None]
        keys, values = torch.cat([self.keys, k], 2), torch.cat([self.values, v[:, :, None]], 2)
        attended = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        y, residual = self.norm(self.out(attended.reshape(batch, -1)), self.second, residual)
        gate, up = self.up(y).chunk(2, -1)
        return self.down(F.silu(gate) * up), residual


class Decoder(nn.Module):
    def __init__(self, norm: Norm, batch: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(norm, batch) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        residual = torch.zeros_like(x)
        for block in self.blocks:
            x, residual = block(x, residual)
        return x + residual


def decoders(batch: int) -> Iterator[tuple[str, dict[str, Callable[[], Any]]]]:
    """(mode, a step of each side)."""
    torch.manual_seed(0)
    sides = norms()
    x = torch.randn(batch, HIDDEN, device="cuda", dtype=torch.bfloat16)
    first = Decoder(sides["ours"], batch).to("cuda", torch.bfloat16)
    models = {}
    for name, norm in sides.items():
        models[name] = Decoder(norm, batch).to("cuda", torch.bfloat16)
        models[name].load_state_dict(first.state_dict())
    eager = right({name: partial(model, x) for name, model in models.items()})
    yield "eager", eager
    yield "eager in a graph", {**{name: graph(step) for name, step in eager.items()}, LATE: late(eager["ours"])}
    torch.compiler.reset()
    compiled = right({name: partial(torch.compile(models[name], dynamic=False), x) for name in eager})
    yield "compiled in a graph", {name: graph(step) for name, step in compiled.items()}


def chains(rows: int) -> dict[str, Callable[[], Any]]:
    """Graphs of CHAIN norms with a residual, each followed by a matrix product."""
    torch.manual_seed(0)
    x, residual = torch.randn(2, rows, HIDDEN, device="cuda", dtype=torch.bfloat16).unbind()
    weight = torch.rand(HIDDEN, device="cuda", dtype=torch.bfloat16) + 0.5
    matrices = torch.randn(CHAIN, HIDDEN, HIDDEN, device="cuda", dtype=torch.bfloat16) / HIDDEN**0.5

    def chain(norm: Norm) -> Tensor:
        y, total = x.clone(), residual.clone()
        for matrix in matrices:
            y, total = norm(y, weight, total)
            y = y @ matrix
        return y

    sides = right({name: partial(chain, norm) for name, norm in norms().items()})
    return {**{name: graph(step) for name, step in sides.items()}, LATE: late(sides["ours"])}


def late(step: Callable[[], Any]) -> Callable[[], Any]:
    """A graph of ours without programmatic dependent launch: a norm starts when the kernel before it has ended."""
    early = forward_module.starts_early
    forward_module.starts_early = lambda *_: False
    FORWARD.clear()
    try:
        return graph(step)
    finally:
        forward_module.starts_early = early
        FORWARD.clear()


def right(sides: Mapping[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """The sides that run and give what ours does; the others are named."""
    kept: dict[str, Callable[[], Any]] = {}
    expected: Tensor | None = None
    for name, step in sides.items():
        try:
            y = step().float()
        except Exception as error:
            say(f"{name} is left out: {type(error).__name__}: {str(error)[:300]}")
            continue
        expected = y if expected is None else expected
        difference = float((y - expected).abs().max() / expected.abs().max())
        if difference < TOLERANCE:
            kept[name] = step
        else:
            say(f"{name} is left out: it differs from ours by {difference:.3f}")
    return kept


def graph(step: Callable[[], Any]) -> Callable[[], Any]:
    stream: Any = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    return captured.replay


# -- how they are timed ------------------------------------------------------------------------------------------------


def in_turns(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of a step of each side, one value a round; who begins changes with every round."""
    counts = {name: max(1, round(STEPS_S / min(seconds(step, 3) for _ in range(3)))) for name, step in sides.items()}
    taken: dict[str, list[float]] = {name: [] for name in sides}
    names = [*sides]
    for number in range(rounds):
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            taken[name].append(seconds(sides[name], counts[name]))
    return taken


def seconds(step: Callable[[], Any], count: int) -> float:
    """Of one of `count` steps in a row, until the device has done them all."""
    step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def table(measured: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    head = list(dict.fromkeys(name for sides in measured.values() for name in sides))
    lines = [f"| | {' | '.join(head)} |", f"|---|{'--:|' * len(head)}"]
    for what, sides in measured.items():
        cells = [
            f"{statistics.median(sides[name]):.4g} ({min(sides[name]):.4g} to {max(sides[name]):.4g})"
            if name in sides
            else "–"
            for name in head
        ]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
