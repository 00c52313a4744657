"""Norms where a model calls them: tokens/s of a decoder, and us of a chain of norms and matrix products.  Needs a GPU.

The decoder has blocks as Qwen3 (arXiv 2505.09388): a norm with a residual before attention and MLP, and norms of the
heads of queries and keys.  Each step is one token of each sequence, with a cache of keys and values.  The sides differ
in their norms alone, take turns, and are only timed if they agree.

    python -m benchmarks.kernels.models --out DIR
"""

import argparse
import importlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.kernels.host_time import EPS, Function, by_turns, right, rms_functions, table
from benchmarks.kernels.trials import say
from kernels.norms import forward as forward_module
from kernels.norms.calls.again import FORWARD

HIDDEN, HEADS, KEY_HEADS, HEAD, MLP, LAYERS, CACHED = 4096, 32, 8, 128, 12288, 4, 512
BATCHES = (1, 64)
CHAIN, CHAIN_ROWS = 32, (1, 8, 64)  # pairs of a norm and a matrix product in a graph
LATE = "ours, launched late"
STEPS_S = 0.05  # of a turn
TOLERANCE = 0.05  # of the largest output, in bf16, after LAYERS blocks


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
    head = list(dict.fromkeys(name for sides in measured.values() for name in sides))
    text = table(measured, "", head, ".4g")
    say(text)
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "models.json").write_text(json.dumps(measured, indent=1))
        (chosen.out / "models.md").write_text(text)


# -- the sides ---------------------------------------------------------------------------------------------------------


def norms() -> dict[str, Function]:
    """f(x, residual or None, weight, None) by side: y, or (y, x + residual); those whose package is here."""
    functions = rms_functions()
    sides = {"ours": functions["ours"], "torch": functions["eager"]}
    if "quack" in functions:

        def of_quack(x: Tensor, residual: Tensor | None, weight: Tensor, _: None) -> Any:
            rows, added = x.reshape(-1, x.shape[-1]), residual if residual is None else residual.view(-1, x.shape[-1])
            outputs = functions["quack"](rows, added, weight, None)
            if residual is None:
                return outputs.view(x.shape)
            return tuple(output.view(x.shape) for output in outputs)

        sides["quack"] = of_quack
    with suppress(ImportError):
        flashinfer: Any = importlib.import_module("flashinfer.norm")

        def of_flashinfer(x: Tensor, residual: Tensor | None, weight: Tensor, _: None) -> Any:
            if residual is None:
                return flashinfer.rmsnorm(x, weight, EPS)
            flashinfer.fused_add_rmsnorm(x, residual, weight, EPS)  # into both, also the input of the decoder
            return x, residual

        sides["flashinfer"] = of_flashinfer
    return sides


class Block(nn.Module):
    def __init__(self, norm: Function, batch: int) -> None:
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
        y, residual = self.norm(x, residual, self.first, None)
        q, k, v = self.qkv(y).view(batch, -1, HEAD).split([HEADS, KEY_HEADS, KEY_HEADS], 1)
        q = self.norm(q.contiguous(), None, self.of_q, None)[:, :, None]
        k = self.norm(k.contiguous(), None, self.of_k, None)[:, :, None]
        keys, values = torch.cat([self.keys, k], 2), torch.cat([self.values, v[:, :, None]], 2)
        attended = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        y, residual = self.norm(self.out(attended.reshape(batch, -1)), residual, self.second, None)
        gate, up = self.up(y).chunk(2, -1)
        return self.down(F.silu(gate) * up), residual


class Decoder(nn.Module):
    def __init__(self, norm: Function, batch: int) -> None:
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
    eager = right({name: partial(model, x) for name, model in models.items()}, TOLERANCE)
    yield "eager", eager
    yield "eager in a graph", {**{name: graph(step) for name, step in eager.items()}, LATE: late(eager["ours"])}
    torch.compiler.reset()
    compiled = right({name: partial(torch.compile(models[name], dynamic=False), x) for name in eager}, TOLERANCE)
    yield "compiled in a graph", {name: graph(step) for name, step in compiled.items()}


def chains(rows: int) -> dict[str, Callable[[], Any]]:
    """Graphs of CHAIN norms with a residual, each followed by a matrix product."""
    torch.manual_seed(0)
    x, residual = torch.randn(2, rows, HIDDEN, device="cuda", dtype=torch.bfloat16).unbind()
    weight = torch.rand(HIDDEN, device="cuda", dtype=torch.bfloat16) + 0.5
    matrices = torch.randn(CHAIN, HIDDEN, HIDDEN, device="cuda", dtype=torch.bfloat16) / HIDDEN**0.5

    def chain(norm: Function) -> Tensor:
        y, total = x.clone(), residual.clone()
        for matrix in matrices:
            y, total = norm(y, total, weight, None)
            y = y @ matrix
        return y

    sides = right({name: partial(chain, norm) for name, norm in norms().items()}, TOLERANCE)
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
    steps = {name: partial(seconds, step, counts[name]) for name, step in sides.items()}
    return by_turns(steps, rounds, lambda timed: timed())


def seconds(step: Callable[[], Any], count: int) -> float:
    """Of one of `count` steps in a row, until the device has done them all."""
    step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


if __name__ == "__main__":
    main()
