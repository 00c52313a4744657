"""Checks on a real GPU: repetition while other work runs, graphs like calls, new numbers as fast as known ones."""

from statistics import median

import pytest
import torch

from kernels.arena import protocol
from kernels.arena.repeatability import FULL_REPEATS, MIN_REPEATS
from kernels.cases import Case
from kernels.contender.prepared import prepare
from kernels.metrics import caching
from kernels.metrics.bench import Bench
from kernels.metrics.determinism import repeat

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # compilers in this process, with the warnings of their imports
]
CASES = [
    "rmsnorm.fwd.1x4096.bf16",
    "rmsnorm.fwd.1024x512.bf16-fp32",
    "rmsnorm.fwd.4096x1024.bf16",
    "rmsnorm.fwd.32768x1024.bf16-fp32",
    "rmsnorm.fwd.8192x8192.bf16",
    "rmsnorm.bwd.4096x1024.bf16-fp32",
    "rmsnorm.bwd.32768x4096.bf16",
]
PROVIDERS = ["triton", "eager", "inductor"]


@pytest.fixture(scope="module")
def benches():
    return {name: Bench(protocol.built_in(name), torch.device("cuda"), 4) for name in PROVIDERS}


@pytest.mark.alone  # others on the GPU would change its times
@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("text", CASES)
def test_honest_from_the_beginning_to_the_end(benches, name, text, monkeypatch):
    """And the room there is: the fastest on new numbers against the median on known ones is near one."""
    taken, take = [], caching.measure

    def noted(*arguments):
        taken.append(take(*arguments))
        return taken[-1]

    monkeypatch.setattr(caching, "measure", noted)
    at_case = prepare(benches[name], Case.parse(text), seed=5)
    assert min(at_case.turn(warm=2, timed=3)) > 0.5
    at_case.check()

    told = at_case.describe()
    assert MIN_REPEATS <= told["facts"]["repeats"] <= FULL_REPEATS
    if name != "eager" or ".fwd." in text:  # its backward pass may add up in any order
        assert told["facts"]["repeatable"] is True
        assert told["facts"]["graph_bits"] == "same"
    ratio = min(taken[0].new) / median(taken[0].known)
    print(f"{name} {text}: new/known {ratio:.3f}, {told['facts']['repeats']} repeats, spent {told['spent']}")
    assert ratio < 1.15


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_later_trial_prepares_only_what_it_times(benches, name):
    """It neither judges the results of that case again nor compiles to read facts: those take seconds."""
    case = Case.parse("rmsnorm.fwd.4096x1024.bf16")
    steps = []
    for seed, thorough in ((5, True), (6, False), (7, False)):
        at_case = prepare(benches[name], case, seed=seed, thorough=thorough)
        at_case.turn(warm=1, timed=2)
        at_case.check()
        spent = at_case.describe()["spent"]
        steps.append(set(spent))
        print(f"{name} {case}: {1e3 * sum(spent.values()):.1f} ms, {spent}")

    assert steps[0] == {"bind", "inputs", "facts", "oracle", "repeat", "clock"}
    assert steps[1] == steps[2] == {"bind", "inputs", "clock"}


def test_a_race_shows_while_other_work_runs():
    """Blocks that add to the same fp32 numbers in whatever order they come."""
    case = Case.parse("rmsnorm.bwd.32768x256.fp32")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        rows = torch.randn(case.rows, case.cols, device="cuda")
        where = torch.arange(case.cols, device="cuda").repeat(case.rows)

        def by_chance():
            return rows, torch.zeros(case.cols, device="cuda").index_add_(0, where, rows.flatten())

        def in_order():
            return rows, rows.sum(0)

        by_chance(), in_order()  # loaded
        raced, fixed = repeat(case, by_chance, stream), repeat(case, in_order, stream)
        stream.synchronize()

    assert raced.repeatable is False
    assert fixed.repeatable is True
    assert fixed.calls == FULL_REPEATS
