"""Plans, launches and other implementations at cases, in turns in CUDA graphs: turns.py plans|rivals|early|few …"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any

import torch

from kernels.arena.protocol import built_in
from kernels.arena.sizes import calls_in_graph, sets_needed
from kernels.cases import Case
from kernels.checks.inputs import make_sets
from kernels.checks.oracle import Oracle, named
from kernels.checks.outputs import require_correct
from kernels.metrics.clocks import CudaClock
from kernels.norms.plans import BackwardPlan, ForwardPlan
from kernels.norms.tuned_plans import default_of
from kernels.norms.tuning import GRAPH_S, call_of
from kernels.providers import open_provider

MAX_SETS = 64  # so up to some cases stay in the L2
ROUNDS = 6
MODULES: Any = tuple(importlib.import_module(f"kernels.norms.{name}") for name in ("forward", "backward"))
F, B = ForwardPlan, BackwardPlan
BIAS_65536 = [
    F(1, 4096, 4, team=16, programs=4, weights="held"), F(1, 4096, 8, team=16, programs=4, weights="held"),
    F(1, 8192, 8, team=8, programs=2, weights="held"), F(1, 2048, 4, team=32, programs=8, weights="held"),
    F(1, 4096, 2, team=16, programs=4, stages=3, weights="held"),
]  # fmt: skip
BIAS_131072 = [
    F(1, 8192, 8, team=16, programs=2, weights="held"), F(1, 4096, 4, team=32, programs=4, weights="held"),
    F(1, 16384, 16, team=8, programs=1, weights="held"), F(1, 4096, 2, team=32, programs=4, stages=3, weights="held"),
]  # fmt: skip
PLANS: Mapping[str, Sequence[Any]] = {
    "rmsnorm_bias.fwd.8192x65536.bf16-fp32": BIAS_65536,
    "rmsnorm_bias.fwd.8192x65536.bf16": [F(1, 32768, 32, blocks=2), F(1, 16384, 32, blocks=4), *BIAS_65536[:3]],
    "rmsnorm_bias.fwd.4096x131072.bf16-fp32": BIAS_131072,
    "rmsnorm_bias.fwd.4096x131072.bf16": BIAS_131072,
    "rmsnorm_bias.fwd.8192x32768.fp32": [F(1, 32768, 32), F(1, 16384, 32, blocks=2), F(1, 8192, 32, blocks=4)],
    "layernorm_residual.bwd.32768x256.fp32": [B(4, 256, 2, programs=4, stages=4, held=2)],
    "layernorm_residual.bwd.2048x256.fp32": [B(4, 256, 2, programs=4, stages=4, held=2)],
} | {
    f"layernorm_residual.fwd.{rows}x{cols}.fp32": plans
    for rows, (cols, plans) in product(
        (512, 16384),
        {
            1280: [F(1, 2048, 4), F(1, 2048, 4, weights="early"), F(1, 2048, 8)],
            1792: [F(1, 2048, 4), F(1, 2048, 4, weights="early"), F(1, 2048, 8)],
            3072: [F(1, 4096, 8), F(1, 4096, 4), F(1, 4096, 8, weights="early"), F(1, 1024, 8, blocks=3)],
            5120: [F(1, 8192, 16), F(1, 8192, 8), F(1, 8192, 16, weights="early")],
            6144: [F(1, 8192, 16), F(1, 8192, 8), F(1, 2048, 8, blocks=3)],
            8192: [F(1, 8192, 16), F(1, 8192, 16, weights="early"), F(1, 8192, 8)],
        }.items(),
    )
}
RIVALS = (
    "rmsnorm.fwd.1x4096.bf16", "rmsnorm.fwd.64x4096.bf16", "rmsnorm.fwd.512x8192.bf16", "rmsnorm.fwd.4096x4096.bf16",
    "rmsnorm.fwd.32768x4096.bf16", "rmsnorm_residual.fwd.64x4096.bf16", "rmsnorm_residual.fwd.4096x8192.bf16",
    "layernorm.fwd.4096x4096.bf16-fp32", "rmsnorm.fwd.32768x16384.bf16",
)  # fmt: skip
EARLY = (
    "rmsnorm.fwd.1x4096.bf16", "rmsnorm.fwd.64x4096.bf16", "rmsnorm.fwd.512x8192.bf16", "rmsnorm.fwd.4096x4096.bf16",
    "rmsnorm.fwd.32768x256.bf16", "rmsnorm.fwd.32768x1024.bf16", "rmsnorm.fwd.22x27848.bf16-fp32",
    "rmsnorm.bwd.64x4096.bf16", "rmsnorm.bwd.8x1024.bf16-fp32", "rmsnorm.bwd.4096x1024.bf16-fp32",
)  # fmt: skip
FEW = ("rmsnorm.fwd.22x27848.bf16-fp32", "layernorm.fwd.8x27848.bf16-fp32", "rmsnorm.fwd.1x131072.bf16-fp32")

device = torch.device("cuda", 0)
about: Any = torch.cuda.get_device_properties(device)
stream: Any = torch.cuda.Stream()


def sets_of(case: Case) -> list[Any]:
    most = sets_needed(case, case.set_bytes, int(about.L2_cache_size), int(about.total_memory), GRAPH_S)
    return make_sets(case, device, 1, min(MAX_SETS, most))


def clock_of(case: Case, sets: Sequence[Any], bind: Callable[[Any], Callable[[], Any]]) -> CudaClock:
    calls = [bind(each) for each in sets]
    require_correct(Oracle(sets[0]), sets[0], named(case, calls[0]()))
    return CudaClock(calls, stream, calls_in_graph(case, len(calls), GRAPH_S))


def in_turns(clocks: Mapping[str, CudaClock]) -> dict[str, float]:
    """us of a call: the median of the rounds."""
    taken: dict[str, list[float]] = {name: [] for name in clocks}
    names = [*clocks]
    for number in range(ROUNDS):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            taken[name].append(median(clocks[name].turn(1, 3)))
    return {name: median(each) for name, each in taken.items()}


def compared(text: str, plans: Sequence[Any], providers: Sequence[str]) -> None:
    case = Case.parse(text)
    sets, default = sets_of(case), default_of(case, about.multi_processor_count)
    clocks = {}
    with torch.no_grad(), torch.cuda.stream(stream):
        for name, plan in {f"default {default}": default, **{str(plan): plan for plan in plans}}.items():
            clocks[name] = clock_of(case, sets, lambda each, plan=plan: call_of(case, plan, each))
        for name in providers:
            try:
                clocks[name] = clock_of(case, sets, open_provider(built_in(name)).ready(case, device))
            except Exception as error:
                print(f"   {name} is left out: {type(error).__name__} {str(error)[:160]}")
        times = in_turns(clocks)
    print(text)
    for name, us in sorted(times.items(), key=lambda item: item[1]):
        print(f"   {us:8.2f} us  {name}", flush=True)


def launched(text: str) -> None:
    """A kernel launched before the one before it ends, or after it, twice."""
    case = Case.parse(text)
    sets, default = sets_of(case), default_of(case, about.multi_processor_count)
    usual, clocks = MODULES[0].starts_early, {}
    with torch.no_grad(), torch.cuda.stream(stream):
        for name in ("late", "early", "late again"):
            for module in MODULES:
                module.starts_early = usual if name == "early" else lambda *_: False
            clocks[name] = clock_of(case, sets, lambda each: call_of(case, default, each))
        for module in MODULES:
            module.starts_early = usual
        times = in_turns(clocks)
    late = times["late"]
    print(
        f"{text}: late {late:.2f} us, " + ", ".join(f"{name} {us / late:.3f}" for name, us in times.items()), flush=True
    )


def teams(cols: int) -> list[ForwardPlan]:
    blocks = {team: 1 << (-(-cols // team) - 1).bit_length() for team in (2, 4, 8, 16)}
    return [
        F(1, block, block // (32 * elements), team=team, programs=1, weights="held")
        for (team, block), elements in product(blocks.items(), (8, 16, 32))
        if block * (team - 1) < cols and 1 <= block // (32 * elements) <= 32
    ]


for step in sys.argv[1:]:
    if step == "plans":
        for text, plans in PLANS.items():
            compared(text, plans, ("quack",))
    elif step == "few":
        for text in FEW:
            compared(text, teams(Case.parse(text).cols), ("quack",))
    elif step == "rivals":
        for text in RIVALS:
            compared(text, (), ("quack", "flashinfer", "vllm"))
    elif step == "early":
        for text in EARLY:
            launched(text)
