"""RMSNorm and LayerNorm in Triton on a real GPU: right at real widths, alone or in teams, and the same bits each time.

What the interpreter cannot show: sums that programs exchange, workspaces that streams and graphs must not share, real
rounding, alignment, and offsets beyond 32 bits.
"""

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.cases import Case
from kernels.norms import plans, tuned_plans, wide, workspaces
from kernels.norms.backward import backward
from kernels.norms.forward import forward
from kernels.norms.launching import processors
from kernels.norms.plans import BackwardPlan, ForwardPlan, Sum
from kernels.suites import SUITES
from tests import common

from ..norms.truth import EDGES, EPS, Trial, inputs, lone_rows_differ, ours, wrong_by

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # of torch's imports
]
NORMS = ("rmsnorm", "layernorm")
ALL = "weight bias residual offset"
WIDE = (40000, 65536, 100000, 131072, 262144)
AWKWARD = (1152, 3000, 5120, 12288)

AT_REAL_WIDTHS = [
    Trial(40, cols, norm, *what)
    for cols, norm, what in product((4096, *WIDE), NORMS, (("bf16-fp32", ALL), ("bf16", "weight")))
]
AWKWARD_ONES = [
    *(
        Trial(33, cols, norm, "bf16-fp32", "weight residual", layout)
        for cols, norm, layout in product(AWKWARD, NORMS, ("dense", "apart", "odd", "unaligned"))
    ),
    *(Trial(rows, cols, norm, "bf16-fp32", "weight bias") for rows, cols, norm in product((0, 1), AWKWARD, NORMS)),
    *(Trial(33, 1000, norm, dtypes, ALL) for norm, dtypes in product(NORMS, ("fp32", "fp16", "fp32-bf16"))),
    *(
        Trial(21, 1152, norm, dtypes, "weight bias", edges=(*EDGES,))
        for norm, dtypes in product(NORMS, ("fp32", "bf16-fp32"))
    ),
]

# Widths of plans that no suite has; rows of 13000, 15000 and 30648 columns of 16 bits do not all begin
# on a boundary of 32 bytes.
CHOSEN = [
    Trial(rows, cols, "rmsnorm", dtypes, f"weight{residual}")
    for cols, dtypes, residual, rows in product(
        (80, 90, 448, 560, 760, 1280, 2560, 4680, 6784, 9000, 13000, 15000, 15360, 20000, 24576, 30648, 60000),
        ("bf16-fp32", "bf16", "fp32"),
        ("", " residual"),
        (20, 300),
    )
] + [
    Trial(rows, cols, "layernorm", dtypes, "weight bias")
    for cols, dtypes, rows in product(
        (80, 96, 120, 340, 440, 560, 760, 1280, 2560, 20000), ("bf16-fp32", "fp32"), (20, 300)
    )
]

# Few wide rows, which are split over several programs.
SPLIT = [
    *(
        Trial(rows, cols, norm, *what)
        for rows, cols, norm, what in product(
            (1, 3, 16), (12736, 25688, 100000, 262144), NORMS, (("bf16-fp32", ALL), ("bf16", "weight"), ("fp32", ALL))
        )
    ),
    *(Trial(rows, cols, norm, "bf16-fp32", ALL) for rows, cols, norm in product((50, 100), (5120, 8192), NORMS)),
    *(
        Trial(rows, cols, norm, *what)
        for rows, cols, norm, what in product(
            (34, 100), (13000, 20000, 26000, 60000), NORMS, (("bf16-fp32", "weight bias"), ("bf16", "weight residual"))
        )
    ),
]

# Teams at small widths, of which the last program may have fewer columns; 3 rows are fewer than teams and 700 are more.
# With one stage, rows are scheduled dynamically; the slots of 1700 rows of a team of 8 do not fit into a workspace.
TEAMS = [(2, 512), (4, 256), (8, 128), (16, 64)]
ROWS_AND_STAGES = [(1, 2), (3, 2), (700, 2), (3, 1), (1700, 1)]
# The largest team.
THERE_64 = ForwardPlan(1, 4096, 4, team=64, programs=4, stages=3, weights="held")
BACK_64 = BackwardPlan(1, 4096, 4, team=64, programs=3, stages=2, keep="cached", sum=Sum.LAST)


def in_teams(
    team: int, block: int, rows: int, cols: int, norm: str, dtypes: str, stages: int = 2, **more: Any
) -> Trial:
    there = ForwardPlan(rows=1, block=block, warps=2, team=team, programs=1, stages=stages, weights="held")
    back = BackwardPlan(rows=1, block=block, warps=2, team=team, programs=1, stages=2, weights="late", sum=Sum.LAST)
    return Trial(rows, cols, norm, dtypes, ALL, forward=there, backward=back, **more)


IN_TEAMS = [
    *(
        in_teams(*team, rows, cols, norm, "fp32", stages)
        for team, cols, norm, (rows, stages) in product(TEAMS, (1024, 1000), NORMS, ROWS_AND_STAGES)
    ),
    *(
        in_teams(4, 256, 700, 1024, norm, "bf16-fp32", stages, edges=(*EDGES,))
        for norm, stages in product(NORMS, (1, 2))
    ),
    *(
        Trial(40, cols, norm, "bf16-fp32", ALL, forward=THERE_64, backward=BACK_64)
        for cols, norm in product((262144, 261144), NORMS)
    ),
]


def by_default(cols: int, norm: str) -> Trial:
    """Eight rows or so for each team."""
    there, back = (choose(cols, center=norm == "layernorm") for choose in (plans.forward, plans.backward))
    given = "weight bias" if norm == "layernorm" else "weight"
    return Trial(2**24 // cols, cols, norm, "bf16-fp32", given, forward=there, backward=back)


# Every way to add up, alone and in teams; forward, the teams exchange sums through the same words.
ALONE = BackwardPlan(rows=1, block=1024, warps=4, programs=2, stages=2)
TEAM = replace(ALONE, block=256, warps=2, team=4, programs=4)
TEAM_THERE = ForwardPlan(rows=1, block=256, warps=2, team=4, programs=4, stages=2, weights="held")
WAYS = [
    (there, replace(back, sum=way, group=12 if way is Sum.TREE else 0))
    for (there, back), way in product(((None, ALONE), (TEAM_THERE, TEAM)), Sum)
]
REPEATED = [
    *(
        Trial(4096, 1024, norm, "bf16-fp32", "weight bias", forward=there, backward=back)
        for norm, (there, back) in product(NORMS, WAYS)
    ),
    *(
        Trial(4096, 1024, norm, "bf16-fp32", "weight bias", forward=replace(TEAM_THERE, stages=1), backward=TEAM)
        for norm in NORMS
    ),
    *(by_default(65536, norm) for norm in NORMS),
    *(Trial(16, 25688, norm, "bf16-fp32", "weight bias") for norm in NORMS),
    *(Trial(64, 262144, norm, "bf16-fp32", "weight bias", forward=THERE_64, backward=BACK_64) for norm in NORMS),
]
# Of these, what meets through words of a workspace.
MEETING = [
    trial
    for trial in REPEATED
    if trial.backward and (trial.backward.team > 1 or trial.backward.sum is not Sum.SEPARATE)
]
LONE = [Trial(1, cols, norm, "bf16-fp32", ALL) for cols, norm in product((4096, 100000), NORMS)]

WIDTHS = sorted(
    {Case.parse(text).cols for name in ("quack", "pr101", "models", "small", "awkward") for text in SUITES[name]}
)
# A wider access would be possible to these rows than to dense ones, or a narrower one.
UNLIKE_DENSE = ((300, "aligned"), (1001, "aligned"), (3500, "aligned"), (3000, "odd"), (3500, "unaligned"))
# fp16 and fp32 round less than bf16, so their last bits show more.
NARROW = (90, 136, 200, 264, 340, 392, 449, 500, 512, 560, 640, 1000, 1152, 1600, 2000)


def together(cols: int, *what: Any, **more: Any) -> Trial:
    """More rows than are kept in registers because all are worked on at once."""
    return Trial(36_000 if cols <= 640 else 5000 if cols <= 65536 else 512, cols, *what, **more)


IN_BATCHES = [
    *(together(cols, norm, "bf16-fp32") for cols, norm in product(WIDTHS, NORMS)),
    *(
        together(cols, norm, dtypes, layout=layout)
        for (cols, layout), norm, dtypes in product(UNLIKE_DENSE, NORMS, ("bf16-fp32", "fp16"))
    ),
    *(
        together(cols, norm, dtypes, given)
        for cols, norm, (dtypes, given) in product(
            NARROW, NORMS, (("fp16", "weight"), ("fp32", "weight bias residual"))
        )
    ),
    *(
        together(cols, "layernorm", dtypes, given)
        for cols, dtypes, given in product(
            (3000, 4100, 7168, 9296, 14000), ("fp16-fp32", "fp32"), ("weight bias", "weight residual")
        )
    ),
    *(
        together(cols, "rmsnorm", dtypes, given)
        for cols, (dtypes, given) in product(
            [cols for cols in WIDTHS if 2048 < cols <= 65536],
            (("bf16", "weight"), ("bf16", "weight residual"), ("bf16-fp32", "weight residual")),
        )
    ),
    *(  # widths of plans that no suite has, which have another plan for few rows
        together(cols, "rmsnorm", dtypes, given)
        for cols, dtypes, given in product(
            (3500, 6000, 14000, 20000, 27848), ("bf16-fp32", "bf16", "fp16"), ("weight", "weight residual")
        )
    ),
]


def there_only(trial: Trial, given: dict[str, Tensor], rows: slice = slice(None)) -> Tensor:
    residual = given["residual"][rows] if "residual" in given else None
    return forward(
        given["x"][rows], given["weight"], given.get("bias"), residual=residual, eps=EPS, center=trial.center
    ).y


def dx_of_rows(trial: Trial, given: dict[str, Tensor]) -> Callable[[slice], Tensor]:
    """Backward of some rows, with the statistics of all."""
    x = given["x"]
    out = forward(x, given["weight"], eps=EPS, center=trial.center, statistics=True)

    def dx(rows: slice) -> Tensor:
        mean = None if out.mean is None else out.mean[rows]
        return backward(x[rows], x[rows], given["weight"], out.rstd[rows], mean).dx

    return dx


SMS_AND_MORE = 300  # rows
# Tests that launch something else than `ours` of a trial.
IN_PARTS: dict[str, Callable[[Trial, dict[str, Tensor]], object]] = {
    "test_a_row_does_not_depend_on_its_batch": there_only,
    "test_the_dx_of_a_row_does_not_depend_on_its_batch": lambda trial, given: dx_of_rows(trial, given)(slice(None)),
}
FEW = 8  # trials; the processes first import torch


def _launch(test: str, trial: Trial) -> None:
    """What the test launches, or most of it, into Triton's cache.  What fails here fails in the test as well."""
    with suppress(Exception):
        if test not in IN_PARTS:
            ours(trial, inputs(trial, "cuda"))
            return
        tuned_plans.set_batch_invariant(True)
        for rows in (1, trial.rows):  # fewer than SMs, and more
            given = inputs(replace(trial, rows=rows), "cuda")
            IN_PARTS[test](trial, given)


@pytest.fixture(scope="module", autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    """The kernels of the tests that were chosen, by many processes at once.  A few tests are done sooner without."""
    chosen = {
        (item.originalname if item.originalname in IN_PARTS else "", item.callspec.params["trial"])
        for item in request.session.items
        if item.path == request.path and "trial" in item.fixturenames
    }
    if len(chosen) > FEW:
        common.made_once("compiled-norms", lambda _: _launch_all(sorted(chosen, key=str)))


def _launch_all(chosen: list[tuple[str, Trial]]) -> None:
    with ProcessPoolExecutor(min(12, os.cpu_count() or 1), get_context("spawn")) as pool:
        list(pool.map(_launch, *zip(*chosen, strict=True), chunksize=4))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Every counter of every workspace is zero again, and no device refused to have all programs of a team."""
    yield
    torch.cuda.synchronize()
    assert not any(words[1 : workspaces.SLOTS].any() for words in workspaces._of_streams.values())
    assert not wide._refused


@pytest.fixture
def batch_invariant() -> Iterator[None]:
    tuned_plans.set_batch_invariant(True)
    yield
    tuned_plans.set_batch_invariant(False)


@pytest.mark.parametrize("trial", [*AT_REAL_WIDTHS, *AWKWARD_ONES, *CHOSEN, *SPLIT, *IN_TEAMS], ids=str)
def test_it_is_right(trial):
    given = inputs(trial, "cuda")
    before = {name: tensor.clone() for name, tensor in given.items()}
    found = wrong_by(trial, given, ours(trial, given))

    assert {name: by for name, by in found.items() if not by <= 1} == {}, "times what is allowed"
    assert all(torch.equal(given[name].nan_to_num(), before[name].nan_to_num()) for name in given)


@pytest.mark.parametrize("trial", [trial for trial in IN_TEAMS if not trial.edges and trial.rows >= 700], ids=str)
def test_a_team_gives_what_one_program_gives(trial):
    given = inputs(trial, "cuda")
    alone = replace(
        trial,
        forward=ForwardPlan(rows=1, block=1024, warps=4),
        backward=BackwardPlan(rows=1, block=1024, warps=4, sum=Sum.SEPARATE),
    )
    in_team, by_one = ours(trial, given), ours(alone, given)

    for name, output in by_one.items():
        assert (output - in_team[name]).abs().max() <= 4e-6 * output.abs().max(), name


class Repeating:
    """Forward and backward again and again; `differ` counts what had other bits than the first, on the device."""

    def __init__(self, trial: Trial, seed: int = 1) -> None:
        given = inputs(trial, "cuda", seed)
        self._call = partial(ours, trial, given)
        self.first = self._call()
        over = wrong_by(trial, given, self.first)
        assert all(by <= 1 for by in over.values()), over
        self.differ = torch.zeros((), dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()

    def __call__(self) -> None:
        for name, now in self._call().items():
            self.differ += (now != self.first[name]).sum()

    def captured(self, calls: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                self()
        return graph


class Beside:
    """Another stream, kept busy: a call adds about a fifth of a millisecond of work on all SMs."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self._c = torch.empty_like(self._a)
        torch.cuda.synchronize()

    def work(self) -> None:
        with torch.cuda.stream(self._stream):
            torch.mm(self._a, self._a, out=self._c)


@pytest.mark.parametrize("trial", REPEATED, ids=str)
def test_a_thousand_calls_beside_other_work_give_the_same_bits(trial):
    again, beside = Repeating(trial), Beside()
    for number in range(1000):
        if number % 4 == 0:
            beside.work()
        again()

    assert again.differ.item() == 0


@pytest.mark.parametrize("trial", REPEATED, ids=str)
def test_a_thousand_calls_in_a_graph_give_the_same_bits(trial):
    again, beside = Repeating(trial), Beside()
    graph = again.captured(10)
    for _ in range(100):
        beside.work()
        graph.replay()

    torch.cuda.synchronize()
    assert again.differ.item() == 0


@pytest.mark.parametrize("priority", [0, -1])
@pytest.mark.parametrize("trial", MEETING, ids=str)
def test_two_streams_do_not_meet(trial, priority):
    both = [Repeating(trial, seed) for seed in (1, 2)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream(priority=priority)]
    for _ in range(300):
        for again, stream in zip(both, streams, strict=True):
            with torch.cuda.stream(stream):
                again()

    torch.cuda.synchronize()
    assert [again.differ.item() for again in both] == [0, 0]
    places = [words.data_ptr() for words in workspaces._of_streams.values()]
    assert len({*places}) == len(places) >= 2


@pytest.mark.parametrize("trial", MEETING, ids=str)
def test_two_graphs_on_two_streams_do_not_meet(trial):
    both = [Repeating(trial, seed) for seed in (1, 2)]
    graphs = [again.captured(5) for again in both]
    streams = [torch.cuda.Stream() for _ in both]
    for _ in range(60):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()

    torch.cuda.synchronize()
    assert [again.differ.item() for again in both] == [0, 0]


@pytest.mark.parametrize("trial", MEETING, ids=str)
def test_a_graph_beside_calls_of_the_stream_that_it_was_captured_beside(trial):
    inside, outside = Repeating(trial, 1), Repeating(trial, 2)
    graph, stream = inside.captured(5), torch.cuda.Stream()
    for _ in range(60):
        with torch.cuda.stream(stream):
            graph.replay()
        outside()

    torch.cuda.synchronize()
    assert (inside.differ.item(), outside.differ.item()) == (0, 0)


@pytest.mark.parametrize("trial", [MEETING[0], MEETING[-1]], ids=str)
def test_a_capture_that_finds_nothing_in_store_is_right_as_well(trial, monkeypatch):
    again = Repeating(trial)
    monkeypatch.setattr(workspaces, "_stores", {torch.cuda.current_device(): []})
    graph = again.captured(3)
    for _ in range(20):
        graph.replay()

    torch.cuda.synchronize()
    assert again.differ.item() == 0


@pytest.mark.parametrize("trial", [trial for trial in MEETING if trial.cols == 1024], ids=str)
def test_after_a_launch_that_failed_the_next_is_right(trial, monkeypatch):
    again = Repeating(trial)
    # More stages than shared memory has room for: Triton compiles it, and refuses to load it.
    monkeypatch.setattr("kernels.norms.backward.fitting", lambda plan, *_: plan)
    too_much = replace(trial.backward, block=8192, warps=8, programs=1, stages=9)
    x, each = torch.ones(8, 8192 * too_much.team, device="cuda"), torch.ones(8, device="cuda")
    with pytest.raises(Exception, match=r"out of resource: shared memory"):
        backward(x, x, x[0], each, each if trial.center else None, bias_dtype=torch.float32, plan=too_much)
    monkeypatch.undo()

    again()
    assert again.differ.item() == 0


@pytest.mark.usefixtures("batch_invariant")
@pytest.mark.parametrize("trial", IN_BATCHES, ids=str)
def test_a_row_does_not_depend_on_its_batch(trial):
    given = inputs(trial, "cuda")
    together, last, sms = there_only(trial, given), trial.rows - 1, processors(given["x"].device)

    for first, count in ((0, 1), (5, 1), (last, 1), (3, 7), (last - 6, 7), (64, 64), (9, sms), (9, sms + 1), (7, 400)):
        rows = slice(first, first + count)
        alone = there_only(trial, given, rows)
        assert torch.equal(alone, together[rows]), (first, count)
    if trial.layout != "dense":
        dense = {name: tensor.contiguous() for name, tensor in given.items()}
        assert torch.equal(there_only(trial, dense), together)


@pytest.mark.usefixtures("batch_invariant")
@pytest.mark.parametrize("trial", [trial for trial in IN_BATCHES if trial.layout == "dense"], ids=str)
def test_the_dx_of_a_row_does_not_depend_on_its_batch(trial):
    dx = dx_of_rows(trial, inputs(trial, "cuda"))
    together, last = dx(slice(None)), trial.rows - 1
    for first, count in ((0, 1), (last, 1), (4, 7), (64, 64), (8, 133)):
        rows = slice(first, first + count)
        assert torch.equal(dx(rows), together[rows]), (first, count)


@pytest.mark.parametrize("cols", [25688, 60000])
def test_a_call_as_before_is_another_one_when_a_row_has_to_have_the_bits_of_every_batch(cols):
    trial = Trial(SMS_AND_MORE, cols, "rmsnorm", "fp32")
    given = inputs(trial, "cuda")
    given["x"][:, 0] = 4096.0  # its square has no bits for those of its neighbours: the order of the sum matters
    rows = slice(0, 8)
    split = [there_only(trial, given, rows) for _ in range(3)]
    tuned_plans.set_batch_invariant(True)
    try:
        alone, whole = [there_only(trial, given, rows) for _ in range(3)], there_only(trial, given)
    finally:
        tuned_plans.set_batch_invariant(False)

    assert all(torch.equal(y, whole[rows]) for y in alone)
    assert not torch.equal(split[0], alone[0]), "else this tests nothing"
    assert all(torch.equal(y, split[0]) for y in [*split, there_only(trial, given, rows)])


@pytest.mark.parametrize("epoch", [-2, -1, 0])
def test_zeroed_slots_are_no_sums_when_the_epoch_overflows(epoch):
    """800 rows in teams of 16 need more slots than a workspace has; new ones are zero, and so would be their tag."""
    trial = Trial(800, 65536, "rmsnorm", "bf16-fp32", "weight")
    given = inputs(trial, "cuda")
    plan = plans.forward(trial.cols, center=False)
    assert plan.dynamic
    assert trial.rows * 2 * plan.team > workspaces.WORDS - workspaces.SLOTS
    y = there_only(trial, given)

    for words in workspaces._of_streams.values():
        words[0] = epoch

    assert torch.equal(there_only(trial, given), y)


@pytest.mark.parametrize("trial", LONE, ids=str)
def test_the_stride_of_a_lone_row_changes_nothing(trial):
    assert lone_rows_differ(trial, "cuda") == []


@pytest.fixture
def memory() -> Iterator[None]:
    """Give the memory of a large test back: other processes use the same GPU."""
    yield
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.alone  # 40 GiB: five processes that share a GPU of 80 GiB have less left for two of these
@pytest.mark.usefixtures("memory")
@pytest.mark.usefixtures("batch_invariant")
@pytest.mark.parametrize("norm", NORMS)
def test_offsets_go_beyond_32_bits(norm):
    """4.3e9 elements, of which three rows have a gradient."""
    trial, rows, cols = Trial(3, 131072, norm, "bf16-fp32", "weight bias"), 32768, 131072
    few = [0, 20000, rows - 1]
    given = inputs(trial, "cuda")
    x = torch.empty(rows, cols, dtype=torch.bfloat16, device="cuda").normal_()
    dy = torch.zeros_like(x)
    x[few], dy[few] = given["x"], given["dy"]

    whole = ours(trial, {**given, "x": x, "dy": dy})

    by_row = {name: whole[name][few] for name in ("y", "dx", "mean", "rstd") if name in whole}
    found = wrong_by(trial, given, {**whole, **by_row})
    assert {name: by for name, by in found.items() if not by <= 1} == {}
    assert torch.equal(by_row["y"], forward(given["x"], given["weight"], given["bias"], eps=EPS, center=trial.center).y)
