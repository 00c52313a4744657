"""Facts of Triton kernels without a GPU: what the plans of our norms compile to, and what makes code the same."""

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

import kernels
from kernels.arena import protocol
from kernels.cases import NORMS, Case, Direction
from kernels.norms.calls import native
from kernels.norms.plans import BackwardPlan, ForwardPlan
from tests.kernels.norms import occupancy
from tests.pairwise import pairwise

ROOT = Path(kernels.__file__).parents[1]


# -- the chosen plans ------------------------------------------------------------------------------------------------

# The GPU tests run the plans for sm_90 on an H100 or H200.  Nothing else compiles those for sm_100: by day some, such
# that each pair of properties that a plan may have is in one; at night all, for both.
EACH = pytest.mark.parametrize(
    ("architecture", "every"),
    [("sm_100", False), *(pytest.param(one, True, marks=pytest.mark.long) for one in occupancy.ARCHITECTURES)],
)


def every_one_of(cases, architecture):
    """Those of an architecture, where every pair of architecture, op, dtypes and plan, filled or not, has one."""
    named = {}
    for case, each in product(cases, occupancy.ARCHITECTURES):
        plan = occupancy.plan_of(case)
        tiles = (case.direction, replace(plan, team=min(plan.team, 2)), plan.span * plan.team == case.cols)
        named[each, case.op, (case.dtype, case.weight_dtype), tiles] = case
    return [named[chosen] for chosen in pairwise(named) if chosen[0] == architecture]


def some_of(cases):
    """The narrowest case with each pair of properties."""
    named = {}
    for case in sorted(cases, key=lambda case: case.cols):
        plan = occupancy.plan_of(case)
        alone = (plan.team > 1, plan.blocks > 1, min(plan.stages, 3), plan.programs > 0, plan.weights, plan.keep)
        named.setdefault((case.op, (case.dtype, case.weight_dtype), case.direction, *alone), case)
    return [named[chosen] for chosen in pairwise(named)]


@EACH
def test_every_chosen_plan_compiles_without_spills_and_fits(architecture, every, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    chosen = occupancy.chosen_for()

    rows = occupancy.occupancies(
        [architecture], every_one_of(chosen, architecture) if every else some_of(chosen), tmp_path
    )

    assert {row.kernel for row in rows} == {"_forward", "_backward", "_sum_partials"}
    assert not (offenders := [row for row in rows if row.objection]), "\n" + "\n".join(occupancy.lines(offenders))


@EACH
def test_so_do_the_two_passes_of_rows_whose_team_can_exchange_nothing(architecture, every, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    chosen = occupancy.two_passes_for()
    few = [
        next(case for case in chosen if (case.op, case.direction) == one)
        for one in (("rmsnorm", Direction.FWD), ("layernorm", Direction.BWD))
    ]

    rows = occupancy.two_passes([architecture], every_one_of(chosen, architecture) if every else few, tmp_path)

    assert {"_forward_sums", "_backward_sums"} < {row.kernel for row in rows}
    assert not (offenders := [row for row in rows if row.objection]), "\n" + "\n".join(occupancy.lines(offenders))


def test_plans_are_told_by_what_is_not_usual_of_them():
    assert occupancy.describe_plan(ForwardPlan(4, 1024, 4)) == "4x1024 warps=4"
    assert occupancy.describe_plan(BackwardPlan(1, 16384, 16, team=2, programs=2, registers=64)) == (
        "1x16384 warps=16 team=2 programs=2 registers=64"
    )


@pytest.mark.parametrize(
    ("plan", "numbers", "trouble"),
    [
        (BackwardPlan(1, 4096, 8, programs=2), {}, None),
        (BackwardPlan(1, 4096, 8, programs=3), {}, "2 programs fit on an SM, 3 are launched"),
        (ForwardPlan(1, 4096, 8), {"spills": 4}, "4 spills at 128 registers"),
        (ForwardPlan(1, 4096, 8, team=2), {}, "a team for each tile: not all of them run at once"),
        (ForwardPlan(1, 4096, 8), {"over": "threads: asks for 2048 threads of 1024"}, "threads: asks for 2048"),
    ],
)
def test_what_speaks_against_a_plan(plan, numbers, trouble):
    known = {"registers": 128, "spills": 0, "shared": 512, "fitting": 2, "wanted": plan.programs, **numbers}
    row = occupancy.KernelUse("sm_90", Case.parse("rmsnorm.bwd.8x4096.bf16"), plan, "_backward", **known)
    assert row.objection is None if trouble is None else row.objection.startswith(trouble)


# -- what is told of them ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours(open_contender, tmp_path_factory):
    channel = open_contender(TRITON_CACHE_DIR=str(tmp_path_factory.mktemp("ours")))
    assert channel.ask(protocol.start(protocol.built_in("triton"), "sm_90", 1, None), 120)["ready"]
    return channel


def kernels_of(channel, text):
    answer = channel.ask(protocol.compile(Case.parse(text)), 120)
    assert (answer.get("state"), answer.get("reason")) == ("compiled", None), answer
    return answer["facts"]["kernels"]


@pytest.mark.parametrize("op", NORMS)
def test_every_op_has_facts_there_and_back(ours, op):
    first, *others = kernels_of(ours, f"{op}.fwdbwd.64x512.bf16-fp32")

    assert (first["name"], first["settings"]["CENTER"]) == ("_forward", NORMS[op].norm == "layernorm")
    assert others[0]["name"] == "_backward"


@pytest.mark.parametrize("direction", [Direction.FWD, Direction.BWD])
@pytest.mark.parametrize("cols", [1000, 65536])
def test_the_plan_is_in_the_facts(ours, direction, cols):
    case = Case("rmsnorm", direction, 4096, cols, "bf16", "fp32")
    plan, kernel = occupancy.plan_of(case), kernels_of(ours, str(case))[0]

    assert kernel["warps"] == plan.warps
    settings = {"COLS": cols, "ROWS": plan.rows, "BLOCK": plan.block, "TEAM": plan.team, "STAGES": plan.stages}
    assert kernel["settings"] | settings | {"WEIGHTS": plan.weights} == kernel["settings"]
    for option in ("maxnreg", "launch_cooperative_grid"):
        assert kernel["settings"].get(option) == plan.options.get(option)


@pytest.mark.parametrize(("shape", "early", "at_once"), [
    ("1x4096", True, True), ("33x4096", True, True), ("34x4096", True, False), ("4096x4096", True, False),
    ("64x65536", True, False), ("2x54536", True, True), ("1024x128", True, False), ("512x128", True, True),
])  # fmt: skip
def test_launches_start_early_and_small_ones_let_the_next_start_at_once(ours, shape, early, at_once):
    """33 programs of 8 warps are two warps for each of 132 SMs."""
    [kernel] = kernels_of(ours, f"rmsnorm.fwd.{shape}.bf16-fp32")
    assert (kernel["settings"]["EARLY"], kernel["settings"]["LAUNCH_DEPENDENTS"]) == (early, at_once)


@pytest.mark.parametrize(("shape", "early", "warps"), [
    ("4096x1000", True, 8), ("4096x16384", False, 4),  # 6 programs on an SM
    ("8x25600", True, 1), ("34x12288", False, 4), ("33x8192", True, 4), ("100x8192", True, 4), ("132x8192", True, 8),
])  # fmt: skip
def test_backward_teams_of_six_programs_or_of_34_to_132_rows_start_late_and_so_do_sums(ours, shape, early, warps):
    main, sums = kernels_of(ours, f"rmsnorm.bwd.{shape}.bf16-fp32")
    assert (main["settings"]["EARLY"], main["settings"]["LAUNCH_DEPENDENTS"]) == (early, early)
    assert (sums["settings"]["WAIT"], sums["warps"]) == (early, warps)


@pytest.mark.parametrize("op", ["rmsnorm", "layernorm_residual"])
@pytest.mark.parametrize("direction", Direction)
def test_heads_with_two_strides_are_not_copied(ours, op, direction):
    case = Case.parse(f"{op}.{direction}.64x8x128s2048.bf16")
    answer = ours.ask(protocol.compile(case), 120)
    facts = answer["facts"]

    assert (answer["state"], facts["extern"], facts["operators"]) == ("compiled", 0, [])
    kernels = [kernel for kernel in facts["kernels"] if kernel["name"] in ("_forward", "_backward")]
    assert len(kernels) == len(facts["kernels"]) - (direction is not Direction.FWD)  # the sums of the gradients
    assert [kernel["settings"]["HEADS"] for kernel in kernels] == [8] * len(kernels)
    assert {kernel["spills"] for kernel in kernels} == {0}


@pytest.mark.parametrize("dtypes", ["fp32", "bf16-fp32"])
@pytest.mark.parametrize("direction", [Direction.FWD, Direction.BWD])
def test_few_wide_heads_are_not_split_over_a_team(ours, direction, dtypes):
    answer = ours.ask(protocol.compile(Case.parse(f"rmsnorm.{direction}.2x2x7168s43008.{dtypes}")), 120)
    assert answer["state"] == "compiled"
    assert answer["facts"]["kernels"][0]["settings"]["TEAM"] == 1


AS_BEFORE = """
import re

import torch
from torch._subclasses.fake_tensor import FakeTensor
from kernels.facts.architectures import KNOWN
from kernels.facts.offline.launches import Launches
from kernels.facts.offline.pretend import become
from kernels.norms.calls import again as calls
from kernels.norms.backward import backward
from kernels.norms.forward import forward

mode, launches = become(KNOWN["sm_90"]), Launches(KNOWN["sm_90"])
torch._C._cuda_getDevice = lambda: 0  # torch without CUDA does not have it
calls.PLAIN = frozenset({FakeTensor})

def step(cols, center, stream):
    x, weight = torch.empty(3, 5, cols, dtype=torch.bfloat16, device="cuda"), torch.empty(cols, device="cuda")
    bias, residual = weight if center else None, None if stream is None else torch.empty_like(x, dtype=stream)
    y, residual_out, mean, rstd = forward(x, weight, bias, residual, eps=1e-5, center=center, statistics=True)
    normalised = x if residual is None else residual_out
    narrow_dx = None if stream in (None, y.dtype) else torch.empty_like(y)
    bias_dtype = None if bias is None else bias.dtype
    backward(y, normalised, weight, rstd, mean, residual_out, bias_dtype=bias_dtype, narrow_dx=narrow_dx)

def driven():
    seen, launches.seen = launches.seen, []
    return [
        (each.kernel, each.grid, [one.data_ptr() if isinstance(one, torch.Tensor) else one for one in each.arguments])
        for each in seen
    ]

with mode:
    for cols, center, stream in (
        (1000, False, None), (4096, True, torch.float32), (65536, False, torch.bfloat16), (65536, True, None)
    ):
        step(cols, center, stream)
        by_triton, names = driven(), []
        again = calls.Relaunch.again
        calls.Relaunch.again = lambda launch, *tensors: (names.append(launch), again(launch, *tensors))
        step(cols, center, stream)
        calls.Relaunch.again = again
        assert len(names) == len(by_triton) == 3, (names, by_triton)
        assert driven() == by_triton
        for launch in names:  # the parameters that `native` gives the driver; Triton's two for scratch memory follow
            *_, parameters = launch.described()
            given = [{4: "32", 8: "64"}[len(value) or 8] for _, value in parameters]
            entry = launch._compiled.asm["ptx"].partition(".entry")[2].partition(")")[0]
            assert re.findall(r"[.]param [.][a-z](\\d+)", entry) == [*given, "64", "64"], (given, entry)
"""


def pythons(script, folder):
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TRITON_CACHE_DIR": str(folder / "triton"),
            "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_call_as_before_gives_the_driver_what_triton_gave_it(tmp_path):
    pythons(AS_BEFORE, tmp_path)


# -- calls in C++ -----------------------------------------------------------------------------------------------------

KEPT = (
    AS_BEFORE.partition("def driven")[0]
    + """
import importlib.util
from kernels.norms.calls import native

native.build_calls()
spec = importlib.util.spec_from_file_location(native.library().stem, native.library())
library = importlib.util.module_from_spec(spec)
spec.loader.exec_module(library)
assert not library.is_complete()  # there is no driver
native._store, native.UNLIKE = library.Store(print), ()  # what it does not take is not passed over
with mode:
    for cols, center, stream in ((1000, False, None), (4096, True, torch.float32), (65536, False, torch.bfloat16)):
        step(cols, center, stream)
"""
)


@pytest.mark.long
def test_what_python_keeps_has_the_types_of_the_library(tmp_path):
    pythons(KEPT, tmp_path)


def test_a_compiler_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(RuntimeError, match=r"no C[+][+] compiler no-such-compiler \(.*\): install g[+][+]"):
        native.build_calls()
    assert not native.library().exists()


def test_what_the_compiler_says_is_passed_on(tmp_path, monkeypatch):
    (tmp_path / "c++").write_text("#!/bin/sh\necho 'Python.h: No such file' >&2\nexit 1\n")
    (tmp_path / "c++").chmod(0o755)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    with pytest.raises(RuntimeError, match=r"cannot compile .*native.cpp:\nPython.h: No such file"):
        native.build_calls()


def test_a_folder_that_cannot_be_searched_changes_nothing(monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "a" * 300)  # longer than a name may be
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(native, "_backward", None)
    with pytest.raises(OSError, match="too long"):
        native.library().exists()
    native.begin(print)
    assert native.norm is None


def test_a_library_that_cannot_be_loaded_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(native, "_backward", None)
    native.library().parent.mkdir()
    native.library().write_text("of another machine")
    with pytest.warns(UserWarning, match="cannot be loaded, so that calls take longer: .*; remove it"):
        native.begin(print)
    assert native.norm is None


# -- what makes code the same -----------------------------------------------------------------------------------------

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def copy(X, Y, N, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(Y + cols, tl.load(X + cols, cols < N) * FACTOR, cols < N)
"""
COMPILED = """
import sys
import textwrap
sys.path.insert(0, sys.argv[1])
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.facts.hashing import normalised_ptx

for name in ("here", "lower", "other"):
    kernel = __import__(name).copy
    source = ASTSource(kernel, {"X": "*fp32", "Y": "*fp32", "N": "i32", "BLOCK": "constexpr"}, {(3,): 256})
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert ".loc" in ptx
    print(hash(normalised_ptx(ptx)))
"""


LAUNCHED = """
import sys
import textwrap
sys.path.insert(0, sys.argv[1])
from contextlib import suppress
import torch, triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.facts.gather import _facts
from kernels.facts.trace import Seen, triton_launches
from here import copy

source = ASTSource(copy, {"X": "*fp32", "Y": "*fp32", "N": "i32", "BLOCK": "constexpr"}, {(3,): 256})
kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32))
before, hooks = type(kernel).launch_metadata, len(knobs.runtime.launch_enter_hook.calls)

def facts(grid=(4,), n=1000, x=0, operators=(), others=0):
    seen = Seen(operators=list(operators), described=list(operators))
    with triton_launches(seen):
        with suppress(Exception):  # there is no device here; what follows is what a launch does
            kernel.launch_metadata(grid, 0, torch.full([1000], float(x)), torch.empty(1000), n, 256)
        for _ in range(1 + others):
            knobs.runtime.launch_enter_hook(None)
    return _facts(seen, False, ())

usual = facts()
assert (usual["kind"], usual["kernels"]) == ("triton", 1), usual
assert usual["triton"][0]["name"] == "copy"
assert facts(x=1)["code"] == facts(grid=(4, 1))["code"] == usual["code"]  # other numbers in a tensor
assert facts(operators=["aten::empty"])["kind"] == "triton"
different = [facts(grid=(8,)), facts(n=999), facts(operators=["aten::add"])]
assert len({each["code"] for each in [usual, *different]}) == 4
for unknown in (facts(operators=["mylib::norm"]), facts(others=1)):
    assert (unknown["kind"], unknown["code"]) == (None, None)
assert (type(kernel).launch_metadata, len(knobs.runtime.launch_enter_hook.calls)) == (before, hooks)
"""


def test_the_same_code_is_the_same_kernel_launched_the_same_way(tmp_path):
    (tmp_path / "here.py").write_text(KERNEL.replace("FACTOR", "2"))

    spoken = subprocess.run(
        [sys.executable, "-c", LAUNCHED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert spoken.returncode == 0, spoken.stderr[-2000:]


def test_moving_a_kernel_in_its_file_does_not_change_its_code(tmp_path):
    (tmp_path / "here.py").write_text(KERNEL.replace("FACTOR", "2"))
    (tmp_path / "lower.py").write_text("# more\n" * 40 + KERNEL.replace("FACTOR", "2"))
    (tmp_path / "other.py").write_text(KERNEL.replace("FACTOR", "3"))

    spoken = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(COMPILED), str(tmp_path)],
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert spoken.returncode == 0, spoken.stderr[-2000:]
    here, lower, other = spoken.stdout.split()
    assert here == lower != other
