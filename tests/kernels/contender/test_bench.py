"""Checks besides the oracle: memory, repetition, new numbers, and tests of the checks themselves."""

import random

import pytest
import torch

from kernels.arena import protocol
from kernels.arena.repeatability import FULL_REPEATS, MIN_REPEATS, Repeats, combine, of_facts
from kernels.cases import Case
from kernels.checks import oracle, outputs
from kernels.checks.inputs import fresh_values, make, make_sets, refill
from kernels.checks.oracle import Finding, WrongShape
from kernels.checks.outputs import Untouched, Wrong, require_own_memory, require_working_oracle, same, snapshot
from kernels.contender.prepared import prepare
from kernels.metrics.bench import Bench
from kernels.metrics.caching import CachingTimes
from kernels.metrics.clocks import one_by_one
from kernels.metrics.determinism import GraphBits, graph_bits, repeat
from kernels.providers import forward_backward, open_provider

CPU = torch.device("cpu")
CASE = Case.parse("rmsnorm.fwd.12x32.fp32")
BACKWARD = Case.parse("rmsnorm.bwd.12x32.fp32")


@pytest.fixture(scope="module")
def eager():
    threads = torch.get_num_threads()
    yield Bench(protocol.built_in("eager"), CPU, 1)
    torch.set_num_threads(threads)


# -- a case from the beginning to the end ----------------------------------------------------------------------------

WORTH_A_LOOK = [
    "rmsnorm.fwd.12x64.bf16",
    "rmsnorm.bwd.12x64.fp32",
    "layernorm.bwd.12x64.fp32",
    "rmsnorm.fwdbwd.12x64.fp32",
    "rmsnorm_residual.fwd.12x64.bf16",
    "rmsnorm.fwd.12x64s80.bf16",
    "rmsnorm.fwd.12x3x64s200.bf16",
    "layernorm_residual.bwd.12x3x64s200.fp32",
    "rmsnorm_residual.fwdbwd.12x3x64s200.fp32",
    "rmsnorm.fwd.1x64.fp16",
]


@pytest.mark.parametrize("text", WORTH_A_LOOK)
@pytest.mark.parametrize("thorough", [True, False])
def test_honest_from_the_beginning_to_the_end(eager, text, thorough):
    at_case = prepare(eager, Case.parse(text), seed=3, thorough=thorough)
    samples = at_case.turn(warm=1, timed=2)
    at_case.check()

    assert len(samples) == 2
    told = at_case.describe()
    assert all(seconds >= 0 for seconds in told["spent"].values())
    if thorough:
        assert told["facts"]["repeatable"] is True
        assert told["facts"]["repeats"] == FULL_REPEATS
        assert told["facts"]["distinct"] == 1
        assert told["errors"].keys() == set(Case.parse(text).outputs)


def test_a_later_launch_looks_at_less(eager):
    first = prepare(eager, CASE, seed=3).describe()
    later = prepare(eager, CASE, seed=3, thorough=False).describe()

    assert first["spent"].keys() - later["spent"].keys() >= {"facts", "repeat"}
    assert later["facts"] == {}


KEEPS_THE_FIRST = """
import torch

KEPT = {}


def forward(x, weight, eps):
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    if not KEPT:
        KEPT[x.data_ptr()] = y.clone()
    return KEPT[x.data_ptr()].clone() if x.data_ptr() in KEPT else y
"""


def test_a_later_trial_checks_outputs_for_new_numbers(tmp_path, monkeypatch):
    (tmp_path / "keeps_the_first.py").write_text(KEEPS_THE_FIRST)
    monkeypatch.syspath_prepend(tmp_path)
    own = protocol.targets_own("norms", {"rmsnorm.fwd": "keeps_the_first:forward"})
    at_case = prepare(Bench(own, CPU, 1), CASE, seed=3, thorough=False)

    with pytest.raises(Wrong, match="after the timing, with other numbers in its inputs: y is wrong"):
        at_case.check()


def test_what_is_exact_is_computed_once_for_each_set(eager, monkeypatch):
    at_case = prepare(eager, CASE, seed=3, thorough=False)
    passes, errors = [], oracle.errors
    monkeypatch.setattr(
        oracle, "errors", lambda inputs, seen, *by: passes.append(len(seen)) or errors(inputs, seen, *by)
    )

    at_case.check()

    assert passes == [2, 1, 2]  # the last with what is allowed, the other, and the output that is wrong on purpose


def test_one_call_at_a_time_each_after_its_set_is_given_new_numbers():
    told = []
    calls = [lambda number=number: told.append(f"call {number}") for number in range(3)]

    for number, _ in one_by_one(calls, lambda number: told.append(f"before {number}")):
        told.append(f"look at {number}")

    assert told == ["before 1", "call 1", "look at 1", "before 2", "call 2", "look at 2"]


# -- memory ----------------------------------------------------------------------------------------------------------


def test_outputs_have_memory_of_their_own():
    one, two = make_sets(CASE, CPU, 1, 2)
    buffer = torch.zeros(24, 32)

    require_own_memory(CASE, [(one, torch.zeros(12, 32)), (two, torch.zeros(12, 32))])
    require_own_memory(CASE, [(one, buffer[:12]), (two, buffer[12:])])
    with pytest.raises(Wrong, match="y shares memory with its input x"):
        require_own_memory(CASE, [(one, one["x"])])
    with pytest.raises(Wrong, match="y shares memory with the y that an earlier call returned"):
        require_own_memory(CASE, [(one, buffer[:12]), (two, buffer[11:23])])


def test_a_snapshot_stays_what_it_is():
    y = torch.ones(12, 32)
    seen = snapshot(CASE, y)
    y.zero_()

    assert seen["y"].sum() == 12 * 32
    with pytest.raises(WrongShape):
        snapshot(CASE, y[:5])


def test_bits_are_compared_and_not_numbers():
    nan, zero = torch.full((2,), torch.nan), torch.zeros(2)

    assert same({"y": nan}, {"y": nan.clone()})
    assert not same({"y": zero}, {"y": -zero})
    assert outputs.digest(nan) == outputs.digest(nan.clone())
    assert outputs.digest(zero) != outputs.digest(-zero)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_digest_sees_what_is_swapped_and_not_how_it_lies(dtype):
    y = torch.arange(24, dtype=torch.float32).reshape(4, 6).to(dtype)
    for other in (y.flip(0), y.flip(1), y[:, [1, 0, 2, 3, 4, 5]]):
        assert outputs.digest(other) != outputs.digest(y)
    assert outputs.digest(y.T.contiguous().T) == outputs.digest(y)
    assert outputs.digest(torch.cat([y[:1, :1].flatten(), y.flatten()])[1:].view(4, 6)) == outputs.digest(y)


@pytest.mark.parametrize("name", ["x", "weight"])
def test_a_write_into_an_input_is_named(name):
    sets = make_sets(CASE, CPU, 1, 3)
    untouched = Untouched(sets, [0, 2])

    untouched.check()
    sets[2][name].data.view(-1)[5] += 1
    with pytest.raises(Wrong, match=f"changed its input {name}"):
        untouched.check()


# -- the checks are checked ------------------------------------------------------------------------------------------


def test_a_fingerprint_that_misses_changes_is_detected():
    sets = make_sets(CASE, CPU, 1, 1)
    untouched = Untouched(sets, [0])

    with pytest.raises(Wrong, match="the checks were tampered with"):
        untouched.require_change(0)  # nothing changed
    refill(sets[0], fresh_values(CASE, sets[0], 1, 9))
    untouched.require_change(0)


@pytest.mark.parametrize("text", [*WORTH_A_LOOK, "rmsnorm.bwd.3x1.bf16", "layernorm.bwd.1x1.fp32"])
def test_an_oracle_that_calls_everything_right_is_found_out(monkeypatch, text):
    case = Case.parse(text)
    require_working_oracle(case, CPU, 1)

    monkeypatch.setattr(outputs.Oracle, "judge", lambda *_: Finding(None, {}))
    with pytest.raises(Wrong, match="the checks were tampered with"):
        require_working_oracle(case, CPU, 1)


# -- repetition ------------------------------------------------------------------------------------------------------


def test_the_same_each_time():
    inputs = make(CASE, CPU, 1)

    found = repeat(CASE, lambda: inputs["x"] * 2, None)

    assert found == Repeats(calls=FULL_REPEATS, distinct=1)
    assert found.repeatable is True
    assert of_facts(found.facts) == found


def varying(inputs, often, seed=3):
    """A kernel whose last bit is another one `often` (of each call the probability)."""
    chance = random.Random(seed)

    def call():
        y = inputs["x"] * 2
        y.view(torch.int32)[11, 31] ^= chance.random() < often
        return y

    return call


def test_one_bit_is_seen_however_seldom_it_differs_down_to_the_stated_rate():
    """One call in ten: missed in at most 1 % of all estimates.  Half of the calls: in none."""
    inputs = make(CASE, CPU, 1)
    seldom = [repeat(CASE, varying(inputs, 0.1, seed), None) for seed in range(60)]
    often = [repeat(CASE, varying(inputs, 0.5, seed), None) for seed in range(20)]

    assert sum(found.repeatable is not False for found in seldom) <= 3
    assert {(found.distinct, found.repeatable) for found in often} == {(2, False)}


def test_few_calls_that_agree_prove_nothing():
    inputs = make(CASE, CPU, 1)

    assert repeat(CASE, varying(inputs, 0.0), None, MIN_REPEATS).repeatable is None
    assert Repeats(MIN_REPEATS, 2).repeatable is False
    assert combine([Repeats(5, 1), Repeats(FULL_REPEATS - 4, 1)]) == Repeats(FULL_REPEATS, 1)
    assert combine([Repeats(FULL_REPEATS, 1), Repeats(5, 3)]).repeatable is False


@pytest.mark.parametrize(
    "written", [{}, {"repeats": 5}, {"repeats": 5, "distinct": 6}, {"repeats": True, "distinct": 1}, {"repeats": "5"}]
)
def test_what_a_stranger_writes_instead_of_an_estimate_is_none(written):
    assert of_facts(written) is None


def test_other_bits_in_a_graph_differ_from_varying_bits():
    inputs = make(CASE, CPU, 1)
    same, other, by_chance = (lambda: inputs["x"] * 2), (lambda: inputs["x"] * 3), varying(inputs, 0.5)

    assert graph_bits(CASE, same, same) is GraphBits.SAME
    assert graph_bits(CASE, other, same) is GraphBits.OTHER
    seen = {graph_bits(CASE, by_chance, same) for _ in range(20)} | {graph_bits(CASE, other, by_chance)}
    assert seen == {GraphBits.SAME, GraphBits.VARYING}


# -- numbers never seen ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "new", "caught"),
    [
        ((100, 100, 100), (101, 300, 99), False),
        ((100, 100, 400), (124, 300, 150), False),  # slow once or twice is an interrupt
        ((100, 100, 400), (170, 300, 150), True),
        ((8, 8, 8), (12, 12, 12), False),  # a few microseconds are nothing
        ((8, 8, 8), (30, 29, 28), True),
    ],
)
def test_what_is_too_fast_on_known_numbers(known, new, caught):
    found = CachingTimes(known, new, 0, {})

    if caught:
        with pytest.raises(Wrong, match="does less on numbers it has seen before"):
            found.check()
    else:
        found.check()


def test_autograd_follows_numbers_that_change_unseen():
    case = Case.parse("rmsnorm.fwdbwd.12x64.fp32")
    inputs = make(case, CPU, 1)
    call = forward_backward(case, open_provider(protocol.built_in("eager")).differentiable(case, CPU))(inputs)
    before = snapshot(case, call())

    refill(inputs, fresh_values(case, inputs, 1, 9))

    assert not torch.equal(before["y"], call()[0])


def test_a_later_trial_on_a_gpu_judges_one_set_and_rejects_nan_in_all(eager, monkeypatch):
    at_case = prepare(eager, CASE, seed=3, thorough=False)
    right = [(inputs, {"y": call()}) for inputs, call in zip(at_case.sets, at_case.calls, strict=True)]
    passes, errors = [], oracle.errors
    monkeypatch.setattr(
        oracle, "errors", lambda inputs, seen, *by: passes.append(len(seen)) or errors(inputs, seen, *by)
    )
    at_case._check_one_of(right)
    assert passes == [2]

    left_out = {"y": torch.full_like(right[0][1]["y"], torch.nan)}
    for _ in range(4):
        with pytest.raises(Wrong, match=r"after the timing, with other numbers in its inputs: y has .* not finite"):
            at_case._check_one_of([right[0], (right[1][0], left_out)])
