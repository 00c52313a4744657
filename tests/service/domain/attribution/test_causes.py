"""Why it moved, as a table of stories: what was stored, and the sentence that a person reads."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.attribution.causes import CaseMove, Kind, cause
from service.domain.codefacts.measured import choices
from service.domain.verdicts.session_result import MachineReadings, same_code
from service.reports.words import of_cause

WIDE = "rmsnorm.bwd.2048x16384.bf16"
BASE = {"code": "a", "kind": "triton", "ops": [], "registers": 128, "spills": 0, "shared": 1024, "kernels": 1}
BASE |= {"triton": [{"name": "_backward", "warps": 8, "stages": 2, "settings": {"BLOCK": 4096}}], "sm_mhz": 1980}
OTHER = {**BASE, "code": "b"}
WARPS = [{"name": "_backward", "warps": 16, "stages": 2, "settings": {"BLOCK": 4096}}]
COMPILED = {"code": "g", "kind": "generated", "kernels": 2, "sm_mhz": 1980}
EAGER = {"code": "e", "kind": "operators", "kernels": 4}

SLOWER = CaseMove(WIDE, 1.08, confirmed=True, head=OTHER, baseline=BASE)
FASTER = replace(SLOWER, ratio=0.90)
SAME = replace(SLOWER, head=BASE, same_code=True, confirmed=False)
RELEASED = replace(
    SLOWER, head={**BASE, "replaced": {"triton": "3.7.1"}}, baseline={**BASE, "replaced": {"triton": "3.6.0"}}
)
LIGER = {"replaced": {"liger": "0.6.0"}}


def now(move: CaseMove = SLOWER, **facts: object) -> CaseMove:
    """The head has these facts beside another hash of its code."""
    return replace(move, head={**move.head, **facts})


def of_kernel(settings: dict[str, int], stores: dict[str, int]) -> list[dict[str, object]]:
    return [{"name": "_backward", "warps": 8, "stages": 2, "settings": settings, "stores": stores}]


SPILLS = "slower, probably because the kernel now spills 50 registers at N=16384"
OF_THE_CODE = [
    # -- the commit's own facts, the one that explains most first
    (now(spills=50), SPILLS),
    (
        replace(now(spills=50), case="rmsnorm.bwd.4096x32x128s6144.bf16"),
        "slower, probably because the kernel now spills 50 registers at N=128",
    ),
    (
        now(spills=50, registers=255),
        "slower, probably because the kernel now spills 50 registers at N=16384; also the kernel now takes "
        "255 registers a thread instead of 128",
    ),
    (
        replace(now(spills=50), baseline={**BASE, "spills": 20}),
        "slower, probably because the kernel now spills 50 registers instead of 20 at N=16384",
    ),
    (
        replace(now(FASTER), baseline={**BASE, "spills": 50}),
        "faster, probably because the kernel no longer spills (50 registers before) at N=16384",
    ),
    (now(triton=WARPS), "slower, probably because its configuration is num_warps=16 instead of num_warps=8 at N=16384"),
    (
        now(triton=WARPS, spills=12, registers=64, shared=2048),
        "slower, probably because its configuration is num_warps=16 instead of num_warps=8, and the kernel "
        "now spills 12 registers at N=16384; also the kernel now takes 2,048 bytes of shared memory instead "
        "of 1,024",
    ),
    (now(kernels=3), "slower, probably because it now launches 3 kernels instead of 1"),
    (
        replace(now(FASTER), baseline={**BASE, "kernels": 2}),
        "faster, probably because it now launches 1 kernel instead of 2",
    ),
    (
        replace(
            now(graph_breaks=3, code="h"), case="rmsnorm.fwd.64x4096.fp32.compile", baseline={**BASE, "graph_breaks": 0}
        ),
        "slower, probably because torch.compile now has 3 graph breaks instead of 0",
    ),
    # -- facts that explain it only perhaps
    (
        now(registers=168),
        "slower, probably because the kernel now takes 168 registers a thread instead of 128 at N=16384 "
        "(estimate: up to 14 %, of 8 %)",
    ),
    (
        now(shared=65536),
        "slower, probably because the kernel now takes 65,536 bytes of shared memory instead of 1,024 at N=16384",
    ),
    (
        now(replace(SLOWER, confirmed=False), spills=50),
        "slower, perhaps because the kernel now spills 50 registers at N=16384",
    ),
    # -- differences without a size are named where nothing explains
    (
        replace(
            now(triton=of_kernel({"BLOCK": 4096}, {"16": 40, "4": 2})),
            baseline={**BASE, "triton": of_kernel({"BLOCK": 4096, "rows": 63}, {"16": 40, "2": 2})},
        ),
        "slower, probably because the code changed (no constant rows=63 any more and stores of 2 → 4 bytes), with the "
        "same spills, registers, bytes of shared memory and number of kernels; nothing recorded explains its size",
    ),
    # -- facts that point the other way explain nothing, and are not named
    (
        replace(now(), baseline={**BASE, "spills": 50}),
        "slower, and nothing recorded explains it: the code changed, with the same registers, bytes of shared "
        "memory, number of kernels and configuration",
    ),
    (
        now(FASTER, registers=255),
        "faster, and nothing recorded explains it: the code changed, with the same spills, bytes of shared "
        "memory, number of kernels and configuration",
    ),
    (
        now(replace(SLOWER, case="rmsnorm.fwd.64x4096.fp32.memory"), spills=50),
        "more memory, and nothing recorded explains it: the code changed, with the same registers, bytes of "
        "shared memory, number of kernels and configuration",
    ),
    # -- only the hash changed
    (
        SLOWER,
        "slower, and nothing recorded explains it: the code changed, with the same spills, registers, bytes of "
        "shared memory, number of kernels and configuration",
    ),
    (
        replace(SLOWER, head={**EAGER, "code": "f"}, baseline=EAGER),
        "slower, and nothing recorded explains it: other operators ran, with the same number of kernels",
    ),
    (
        replace(SLOWER, head={"code": "b"}, baseline={"code": "a"}),
        "slower, and nothing recorded explains it: the code changed",
    ),
    # -- nothing is known
    (
        replace(SLOWER, head={}, baseline={}),
        "probably the code: both ran in turn on one machine and stack, and the compiled code is not known",
    ),
    # -- the same code
    (
        replace(SLOWER, case="rmsnorm.fwd.64x4096.fp32.call", head=BASE),
        "probably the Python code around the kernels: the compiled kernels are the same",
    ),
    (
        replace(SLOWER, head=EAGER, baseline=EAGER),
        "probably the Python code around the kernels: the same operators ran",
    ),
    # -- the revisions are releases
    (
        RELEASED,
        "slower with Triton 3.7.1 instead of 3.6.0, although the PTX of the kernels is the same; nothing recorded "
        "explains its size",
    ),
    (
        now(RELEASED, code="b", spills=50),
        "slower with Triton 3.7.1 instead of 3.6.0, probably because the kernel now spills 50 registers at N=16384",
    ),
    (
        now(RELEASED, spills=50),
        "slower with Triton 3.7.1 instead of 3.6.0, probably because the kernel now spills 50 registers at N=16384",
    ),  # from the same PTX, by another ptxas
    (
        now(RELEASED, code="b"),
        "slower with Triton 3.7.1 instead of 3.6.0, and nothing recorded explains it: the code changed, with the "
        "same spills, registers, bytes of shared memory, number of kernels and configuration",
    ),
    (
        replace(
            RELEASED,
            head={**COMPILED, "replaced": {"torch": "2.13.0", "triton": "3.7.1"}},
            baseline={**COMPILED, "replaced": {"torch": "2.12.0", "triton": "3.6.0"}},
        ),
        "slower with torch 2.13.0 instead of 2.12.0 and Triton 3.7.1 instead of 3.6.0, although torch.compile "
        "generated the same code; nothing recorded explains its size",
    ),
    (
        replace(RELEASED, head={"replaced": {"quack": "0.6.5"}}, baseline={"replaced": {"quack": "0.6.4"}}),
        "probably Quack 0.6.5 instead of 0.6.4: both ran in turn on one machine, and the compiled code is not known",
    ),
    (
        replace(SLOWER, head={**BASE, **LIGER}, baseline={**BASE, "replaced": {"liger": "0.5.9"}}, case=f"{WIDE}.call"),
        "probably the Python code around the kernels, with Liger 0.6.0 instead of 0.5.9: the compiled kernels are the "
        "same",
    ),
    # -- the session
    (
        now(replace(SLOWER, machine=MachineReadings(control=0.025)), spills=50),
        "slower, probably because the kernel now spills 50 registers at N=16384; but the A/A control differed "
        "by 2.5 % in this session",
    ),
    # -- readings that explain nothing are not named
    (now(replace(SLOWER, machine=MachineReadings(lost=0.12)), spills=50), SPILLS),
    (now(replace(SLOWER, machine=MachineReadings(same_code_moved=1)), spills=50), SPILLS),
    (now(spills=50, sm_mhz=2130), SPILLS),
    (now(replace(SLOWER, ratio=1.60), spills=50, sm_mhz=1860), SPILLS),
    # -- what strangers say
    (
        now(spills="many", registers=True, kernels=-3, shared=1e9),
        "slower, and nothing recorded explains it: the code changed, with the same configuration",
    ),
    (
        now(replace(SLOWER, case="a case of another version"), spills=50),
        "slower, probably because the kernel now spills 50 registers",
    ),
    (
        now(replace(SLOWER, case="rmsnorm.fwd.64x4096.fp32.memory"), kernels=3),
        "more memory, probably because it now launches 3 kernels instead of 1",
    ),
]
OF_THE_MACHINE = [
    # -- the same code
    (SAME, "probably the machine: both ran the same compiled kernels, launched the same way"),
    (replace(SLOWER, head=COMPILED, baseline=COMPILED), "probably the machine: torch.compile generated the same code"),
    # -- the revisions are releases
    (
        replace(RELEASED, machine=MachineReadings(control=0.031)),
        "probably the machine: the compiled kernels are the same, and the A/A control differed by 3.1 % in this "
        "session",
    ),
    # -- the session
    (
        replace(SLOWER, machine=MachineReadings(control=-0.025), confirmed=False),
        "probably the machine: the A/A control differed by 2.5 % in this session; the code changed as well",
    ),
    (
        replace(SLOWER, head={**OTHER, "sm_mhz": 1860}),
        "probably the machine: the SM clock was 6.1 % lower while the head ran; the code changed as well",
    ),
    (
        replace(FASTER, head={**OTHER, "sm_mhz": 2130}),
        "probably the machine: the SM clock was 7.6 % higher while the head ran; the code changed as well",
    ),
    (
        replace(SLOWER, confirmed=False, machine=MachineReadings(lost=0.12, throttled=("hw_thermal", "hw_slowdown"))),
        "probably the machine: throttling (hw_thermal and hw_slowdown) spoiled 12 % of the rounds; the code changed "
        "as well",
    ),
    (
        replace(SLOWER, machine=MachineReadings(same_code_moved=5)),
        "probably the machine: 5 other cases moved the same way although their code is the same; the code changed as "
        "well",
    ),
    (
        replace(SLOWER, machine=MachineReadings(elsewhere=("liger", "quack")), head={}, baseline={}),
        "probably the machine: liger and quack moved the same way on this machine at that time",
    ),
]
CERTAINLY_OF_THE_MACHINE = [
    (
        replace(SAME, head={**BASE, "sm_mhz": 1860}),
        "the machine: both ran the same compiled kernels, launched the same way, and the SM clock was 6.1 % lower "
        "while the head ran",
    ),
    (
        replace(SAME, machine=MachineReadings(control=0.031)),
        "the machine: both ran the same compiled kernels, launched the same way, and the A/A control differed by 3.1 % "
        "in this session",
    ),
]


def told(kind: Kind, certain: bool, stories: list[tuple[CaseMove, str]]) -> Iterator[Any]:
    for move, said in stories:
        yield pytest.param(move, kind, certain, said, id=said[:60])


STORIES = [
    *told(Kind.CODE, False, OF_THE_CODE),
    *told(Kind.MACHINE, False, OF_THE_MACHINE),
    *told(Kind.MACHINE, True, CERTAINLY_OF_THE_MACHINE),
    *told(
        Kind.UNKNOWN,
        False,
        [
            (
                replace(SLOWER, head={**COMPILED, "triton": WARPS}, baseline={**COMPILED, "triton": BASE["triton"]}),
                "not certain: torch.compile generated the same code, but its configuration is num_warps=16 instead of "
                "num_warps=8",
            )
        ],
    ),
    *told(
        Kind.NOISE,
        False,
        [(replace(SLOWER, confirmed=False, refuted=True), "probably noise: fresh trials did not repeat it")],
    ),
]


@pytest.mark.parametrize(("move", "kind", "certain", "said"), STORIES)
def test_why_it_moved(move: CaseMove, kind: Kind, certain: bool, said: str):
    found = cause(move)

    assert (found.kind, of_cause(found, move.case).words, found.certain) == (kind, said, certain)


def words_of(move: CaseMove) -> str:
    return of_cause(cause(move), move.case).words


FACTS = st.fixed_dictionaries(
    {},
    optional={
        "code": st.sampled_from(["a", "b"]),
        "kind": st.sampled_from(["triton", "generated", "operators", "pinned", None]),
        "spills": st.integers(0, 300),
        "registers": st.integers(16, 255),
        "shared": st.integers(0, 200_000),
        "kernels": st.integers(1, 9),
        "graph_breaks": st.integers(0, 3),
        "config": st.sampled_from(["num_warps=4", "num_warps=8"]),
        "sm_mhz": st.integers(1200, 1980),
        "replaced": st.sampled_from([{"triton": "3.6.0"}, {"triton": "3.7.1", "torch": "2.13.0"}, {}, "3.7.1", None]),
    },
)
MOVES = st.builds(
    CaseMove,
    st.sampled_from([WIDE, *(f"{WIDE}.{metric}" for metric in ("call", "compile", "memory"))]),
    st.floats(0.5, 2.0).filter(lambda ratio: ratio != 1),
    st.booleans(),
    head=FACTS,
    baseline=FACTS,
    refuted=st.booleans(),
    machine=st.builds(
        MachineReadings,
        st.none() | st.floats(-0.1, 0.1),
        st.floats(0, 1),
        st.lists(st.sampled_from(["hw_thermal", "hw_slowdown"]), max_size=2, unique=True).map(tuple),
        same_code_moved=st.integers(0, 5),
        elsewhere=st.lists(st.sampled_from(["quack", "liger"]), max_size=2, unique=True).map(tuple),
    ),
)


@given(MOVES, st.sampled_from(["a", "b"]), st.booleans())
def test_code_is_never_named_as_certain_when_its_hash_is_the_same(move, code, proven):
    equal = {"code": code, "kind": "triton"}
    found = cause(replace(move, head={**move.head, **equal}, baseline={**move.baseline, **equal}, same_code=proven))
    assert not (found.kind is Kind.CODE and found.certain)
    assert not (proven and found.kind is Kind.CODE)


@given(MOVES)
def test_what_is_certain_was_confirmed_or_is_not_the_code(move):
    found = cause(move)
    if found.certain and found.kind is Kind.CODE:
        assert move.confirmed
    hedged = ("probably", "perhaps", "not certain")
    said = of_cause(found, move.case).words
    assert found.certain is not any(word in said for word in hedged)


@given(MOVES)
def test_a_cause_is_one_sentence_without_its_full_stop(move):
    said = words_of(move)
    assert said == said.strip() != ""
    assert "\n" not in said
    assert not said.endswith(".")


@given(MOVES)
def test_spills_that_went_away_never_made_it_slower(move):
    slow = replace(move, ratio=1.2, head={**move.head, "spills": 0}, baseline={**move.baseline, "spills": 40})
    assert "because the kernel no longer spills" not in words_of(slow)


# -- a target's autotuner


def tuned(*chose: tuple[str, float]) -> dict[str, object]:
    """What each trial chose, and its median in us."""
    trials = [{"trial": n, "configuration": name, "median": us} for n, (name, us) in enumerate(chose, 1)]
    return {"tuned": trials}


EITHER = tuned(("BLOCK=64", 10.0), ("BLOCK=128", 10.02), ("BLOCK=64", 10.01))
SLOW_ONE = tuned(("BLOCK=64", 10.0), ("BLOCK=128", 11.0), ("BLOCK=64", 10.01))


def test_configurations_of_equal_speed_that_both_sides_ran_explain_nothing():
    move = replace(now(triton=WARPS, spills=50, **EITHER), baseline={**BASE, **EITHER})
    found = cause(move)
    assert (found.kind, found.certain) == (Kind.CODE, False)
    said = words_of(move)
    assert "num_warps" not in said
    assert "spills" not in said
    assert "nothing recorded explains it" in said


def test_a_session_whose_launches_ran_configurations_of_different_speeds_says_so():
    move = replace(now(triton=WARPS, **SLOW_ONE), baseline={**BASE, **EITHER})
    found = cause(move)
    assert (found.kind, found.certain) == (Kind.UNKNOWN, False)
    chose = "its autotuner chose 2 configurations of different speeds in 3 trials (BLOCK=64 in 2 and BLOCK=128 in 1)"
    assert words_of(move) == f"not certain: of the head, {chose}"


def test_what_each_side_always_ran_is_a_difference_between_them():
    always = tuned(("BLOCK=64", 10.0), ("BLOCK=64", 10.0)), tuned(("BLOCK=128", 11.0), ("BLOCK=128", 11.0))
    move = replace(now(triton=WARPS, **always[0]), baseline={**BASE, **always[1]})
    assert "num_warps=16 instead of num_warps=8" in words_of(move)


def test_equal_code_of_the_first_launch_proves_nothing_where_a_later_one_ran_other():
    assert same_code(BASE, BASE)
    assert not same_code({**BASE, **EITHER}, BASE)


def test_a_trial_that_reused_a_configuration_did_not_choose_it():
    *_, last = EITHER["tuned"]
    again = [{**last, "trial": number, "reused": True} for number in (4, 5)]
    assert "in 3 trials (BLOCK=64 in 2 and BLOCK=128 in 1)" in choices({"tuned": [*EITHER["tuned"], *again]}).words


@pytest.mark.parametrize("stored", [None, 5, "x", ["x"], [{}], [{"configuration": 3}], [{"configuration": "a"}] * 2])
def test_what_a_stranger_stores_as_choices_is_harmless(stored):
    assert choices({"tuned": stored}).words == ""


def ran(programs: int, blocks: int = 2, occupancy: float = 0.25) -> list[dict[str, object]]:
    """One kernel on 132 SMs that trials so many programs, of which `blocks` fit on an SM."""
    kernel = {"name": "_backward", "warps": 8, "registers": 110, "loads": {"16": 8}, "sass": "d", "sms": 132}
    return [{**kernel, "grid": [programs, 1, 1], "blocks": blocks, "occupancy": occupancy}]


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (264, 132, "slower, probably because its occupancy is now 12 % instead of 25 %: it launches 132 programs"),
        (2640, 1320, None),  # enough for every SM to be full both times
    ],
)
def test_a_grid_that_is_too_small_leaves_places_on_the_sms_empty(before, after, why):
    move = replace(SLOWER, ratio=1.45, head={**OTHER, "triton": ran(after)}, baseline={**BASE, "triton": ran(before)})
    found = words_of(move)
    assert found.startswith(why) if why else "occupancy" not in found


def test_a_grid_that_only_one_side_recorded_is_no_trouble():
    without = [{key: value for key, value in kernel.items() if key != "grid"} for kernel in ran(132)]
    move = replace(SLOWER, ratio=1.45, head={**OTHER, "triton": without}, baseline={**BASE, "triton": ran(132)})
    assert "programs" not in words_of(move)


def sized(registers: int, programs: int, occupancy: float = 0.25, name: str = "_backward", **settings: int):
    [kernel] = ran(programs, occupancy=occupancy)
    return [{**kernel, "name": name, "registers": registers, "sass": f"{registers}", "settings": settings}]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        pytest.param(sized(110, 132), sized(180, 132), "", id="one block on each SM either way"),
        pytest.param(
            sized(110, 2640), sized(180, 2640), "(estimate: up to 5.1 %, of 4 %)", id="as many warps either way"
        ),
        pytest.param(
            sized(110, 2640), sized(180, 2640, occupancy=0.125), "its occupancy is now 12 %", id="fewer warps on an SM"
        ),
    ],
)
def test_registers_explain_no_more_than_the_places_on_the_sms_that_they_take(before, after, told):
    found = words_of(replace(SLOWER, ratio=1.04, head={**OTHER, "triton": after}, baseline={**BASE, "triton": before}))

    assert told in found
    assert "180 registers a thread" in found or "registers" not in told


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        pytest.param(
            0.8, "its occupancy is now 25 % instead of 12 %: it launches 264 programs instead of 132", id="faster"
        ),
        pytest.param(
            1.07, "it now launches 264 programs instead of 132 at N=16384", id="slower, against the occupancy"
        ),
    ],
)
def test_a_doubled_grid_is_named_whatever_it_did(ratio, told):
    before, after = ({**BASE, "triton": sized(110, programs)} for programs in (132, 264))
    assert told in words_of(replace(SLOWER, ratio=ratio, head={**OTHER, **after, "code": "other"}, baseline=before))


def test_another_kernel_is_named_as_another_kernel():
    before = sized(110, 2640, name="_by_blocks", BLOCK_ROW=32, BLOCK=1024)
    after = sized(112, 2640, name="_by_rows", BLOCK=4096)
    found = words_of(replace(SLOWER, ratio=1.5, head={**OTHER, "triton": after}, baseline={**BASE, "triton": before}))

    assert "_by_rows runs instead of _by_blocks" in found
    assert "none" not in found


def test_a_constant_that_only_one_side_has_is_no_setting_of_the_other():
    """Liger's pull request 945 gave the kernel of LayerNorm backward a loop over rows, and took its atomics away."""
    before = sized(110, 4096, BLOCK=1024)
    before[0] |= {"work": {"atomic": 16_800_000}}
    after = sized(112, 132, BLOCK=1024, ROWS_PER_PROGRAM=32)
    found = words_of(replace(SLOWER, ratio=0.6, head={**OTHER, "triton": after}, baseline={**BASE, "triton": before}))

    assert "0 atomic operations instead of 16.8 million" in found
    assert "none" not in found
