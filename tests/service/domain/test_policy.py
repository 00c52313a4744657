"""The policy: what holds at a case, who wins where several say something, and which version it is."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from service.db.engine import transaction
from service.db.models import PolicyRow
from service.domain.policy.policy import NOTHING, Policy, Written, read
from service.domain.policy.recipes import parse
from service.domain.states import GateAction, GateKind
from service.errors import BadInput
from service.ledger import policies
from service.settings import settings

CASE = "rmsnorm.fwd.4096x1024.bf16"
RECIPE = """
devices = ["h200", "cpu"]
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
[suites]
mine = ["rmsnorm.fwd.4096x1024.bf16", "rmsnorm.bwd.4096x1024.bf16"]
[suite]
default = "mine"
"""


def written(text: str) -> Written:
    return read(text, "policy.toml")


# -- what holds at a case


@pytest.mark.parametrize(
    ("given", "value", "smallest"),
    [
        ({}, 1000.0, 0.01),
        ({}, 80.0, 0.02),  # short: less than 100 us
        ({}, 1.0, 0.05),  # 50 ns of a microsecond
        ({"smallest_change_ns": 0}, 1.0, 0.02),
        ({"cases": {"rmsnorm.*": {"smallest_change": 0.005}}}, 80.0, 0.005),  # who names a case means it
        ({"cases": {"rmsnorm.*": {"smallest_change": 0.005}}}, 1.0, 0.05),  # … and nobody acts on nanoseconds,
        ({"cases": {"rmsnorm.*": {"smallest_change": 0.005, "smallest_change_ns": 0}}}, 1.0, 0.005),  # … unless told so
        ({"cases": {"layernorm.*": {"smallest_change": 0.005}}}, 1000.0, 0.01),
    ],
)
def test_the_smallest_relevant_change(given, value, smallest):
    assert Policy.model_validate(given).smallest_change_at(CASE, value) == pytest.approx(smallest)


def test_of_several_patterns_the_last_that_fits_counts():
    policy = Policy.model_validate(
        {"cases": {"rmsnorm.*": {"smallest_change": 0.03, "quarantine": "noisy"}, "*.bf16": {"behind_sota": 0.5}}}
    )
    assert (policy.at(CASE).smallest_change, policy.at(CASE).behind_sota, policy.quarantined(CASE)) == (0.01, 0.5, None)
    assert policy.quarantined("rmsnorm.fwd.4096x1024.fp16") == "noisy"


_SHARES = st.floats(0.001, 0.9)
_CASE_LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "smallest_change": _SHARES,
        "smallest_change_ns": st.floats(0, 1000),
        "control_limit": st.floats(0.1, 1),
        "behind_sota": _SHARES,
        "leak": _SHARES,
        "gate": st.dictionaries(st.sampled_from(GateKind), st.sampled_from(GateAction), max_size=2),
    },
)
_POLICIES = st.fixed_dictionaries(
    {
        "smallest_change": _SHARES,
        "leak": _SHARES,
        "behind_sota": _SHARES,
        "metrics": st.dictionaries(st.sampled_from(["call", "compile", "memory", "block"]), _SHARES, max_size=3),
        "cases": st.dictionaries(st.sampled_from(["*", "rmsnorm.*", "*.compile", "*.bf16"]), _CASE_LIMITS, max_size=3),
    }
).map(Policy.model_validate)
_CASES = st.sampled_from([CASE, *(f"{CASE}.{metric}" for metric in ("call", "compile", "memory", "block"))])


@given(_POLICIES, _CASES, st.floats(0, 1e4))
def test_the_policy_of_a_case_is_resolved_once(policy, case, value):
    resolved = policy.at(case)
    assert resolved.at(case).model_dump() == resolved.model_dump()
    assert policy.smallest_change_of(case) == resolved.smallest_change_of(case) == resolved.smallest_change
    assert resolved.smallest_change_at(case, value) == policy.smallest_change_at(case, value)


def test_the_policy_of_one_case_is_not_that_of_another():
    with pytest.raises(ValueError, match="This is the policy of rmsnorm"):
        Policy().at(CASE).at(f"{CASE}.call")


# -- who wins: the server, its device, the recipe, its device


@pytest.mark.parametrize(
    ("server", "recipe", "device", "smallest"),
    [
        ("", "", "cpu", 0.01),
        ("smallest_change = 0.03", "", "cpu", 0.03),
        ("smallest_change = 0.03\ndevices.cpu.smallest_change = 0.2", "", "cpu", 0.2),
        ("smallest_change = 0.03\ndevices.cpu.smallest_change = 0.2", "", "h200", 0.03),
        ("devices.cpu.smallest_change = 0.2", "smallest_change = 0.04", "cpu", 0.04),
        ("smallest_change = 0.03", "smallest_change = 0.04\ndevices.cpu.smallest_change = 0.1", "cpu", 0.1),
        ("smallest_change = 0.03", "smallest_change = 0.04\ndevices.cpu.smallest_change = 0.1", "h200", 0.04),
    ],
)
def test_who_wins(server, recipe, device, smallest):
    assert written(recipe).on(device, written(server)).smallest_change == smallest


def test_tables_are_taken_over_entry_by_entry():
    server = written('calibrate.every_h = 12\n[cases."*"]\nbehind_sota = 0.3\n[cases."rmsnorm.*"]\nbehind_sota = 0.2')
    recipe = written(
        "[calibrate]\nmin_comparisons = 40\n[metrics]\ncall = 0.04\n"
        '[devices.cpu]\nmetrics.block = 0.3\ncases."*".leak = 0.5'
    )
    policy = recipe.on("cpu", server)
    assert (policy.calibrate.every_h, policy.calibrate.min_comparisons) == (12, 40)
    assert {metric: limits.smallest_change for metric, limits in policy.metrics.items()} == {"call": 0.04, "block": 0.3}
    assert list(policy.cases) == ["rmsnorm.*", "*"], "the nearest pattern is asked last, so it wins"
    assert (policy.at(CASE).leak, policy.at(CASE).behind_sota) == (0.5, 0.05)


def test_what_a_noisy_recipe_takes_over_from_the_server_is_no_less_noisy_than_its_kernels():
    policy = written("smallest_change = 0.15").on("cpu", written("metrics = {call = 0.04, memory = 0.002}"))
    assert {metric: limits.smallest_change for metric, limits in policy.metrics.items()} == {
        "call": 0.15,
        "memory": 0.002,
    }


def test_each_layer_and_each_case_may_name_actions_of_the_gate():
    server = written('blocking = true\n[gate]\nregression = "warn"\nfailed = "warn"')
    recipe = written(
        '[gate]\nregression = "fail"\n[devices.cpu.gate]\ninconclusive = "pass"\n'
        '[cases."rmsnorm.*".gate]\nbehind-sota = "fail"'
    )
    cpu, h200 = (recipe.on(device, server) for device in ("cpu", "h200"))
    shown = list(GateKind)[:6]
    assert [cpu.action(kind) for kind in shown] == ["fail", "warn", "pass", "fail", "warn", "warn"]
    assert [h200.action(kind) for kind in shown] == ["fail", "warn", "fail", "fail", "warn", "warn"]
    assert [cpu.at(CASE).action(kind) for kind in shown] == ["fail", "fail", "pass", "fail", "warn", "warn"]
    assert Policy.model_validate(cpu.model_dump(mode="json")) == cpu, "as it is stored"


CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "smallest_change": st.floats(0.001, 0.9),
        "blocking": st.booleans(),
        "behind_sota": st.floats(0.001, 9),
        "metrics": st.dictionaries(st.sampled_from(["call", "block", "compile", "memory"]), st.floats(0.001, 0.9)),
        "cases": st.dictionaries(
            st.sampled_from(["*", "rmsnorm.*", "*.bf16"]), st.fixed_dictionaries({"leak": st.floats(0.001, 0.9)})
        ),
    },
)
LAYER = st.builds(Written, CHANGES, st.dictionaries(st.sampled_from(["cpu", "h200"]), CHANGES))


@given(LAYER, LAYER)
def test_what_is_valid_apart_is_valid_together_and_the_nearest_has_the_last_word(server: Written, recipe: Written):
    policy = recipe.on("cpu", server)
    for name in ("smallest_change", "blocking", "behind_sota"):
        layers = (recipe.devices.get("cpu", {}), recipe.shared, server.devices.get("cpu", {}), server.shared)
        said = next((layer[name] for layer in layers if name in layer), getattr(Policy(), name))
        assert getattr(policy, name) == said


@given(LAYER)
def test_where_the_server_says_nothing_a_recipe_is_as_it_is_written(recipe: Written):
    assert recipe.on("cpu", NOTHING) == Policy.model_validate(recipe.tables.get("cpu", recipe.shared))


# -- the server's file


def test_the_servers_policy_is_under_every_recipe(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recipe = parse(f"{RECIPE}\n[policy]\nblocking = true\n")
    assert policies.effective(recipe, "h200").smallest_change == 0.01
    file = tmp_path / "policy.toml"
    file.write_text("smallest_change = 0.04\nblocking = false\n")
    monkeypatch.setenv("KERNELWATCH_POLICY", str(file))
    settings.cache_clear()
    policy = policies.effective(recipe, "h200")
    assert (policy.smallest_change, policy.blocking) == (0.04, True)
    assert policy.digest != recipe.policy_on("h200").digest, "what counts is what holds, whoever said it"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("smallest_change = 3", "line 1: smallest_change: Input should be less than 1"),
        (
            "blocking = true\nsmalest_change = 0.1",
            "line 2: smalest_change: there is no such key; did you mean smallest_change?",
        ),
        ("[policy]\nbehind_sota = -1", "line 2: policy.behind_sota: Input should be greater than 0"),
        ("[devices.cpu]\nbehind_sota = -1", "line 2: devices.cpu.behind_sota: Input should be greater than 0"),
        ("[devices]\ncpu = 3", "line 2: devices.cpu: it must be a table, not 3"),
        ("devices = 3", "must be a table, and its devices a table of tables"),
        ("policy = 3", "must be a table"),
        ('[gate]\nregresion = "fail"', "line 2: gate.regresion.[key]: Input should be 'regression', 'behind-sota'"),
        ('[gate]\ninvalid = "block"', "line 2: gate.invalid: Input should be 'fail', 'warn' or 'pass'"),
        ("[policy", "is not TOML"),
    ],
)
def test_a_mistake_in_the_servers_policy_is_named_with_its_line(text, said):
    with pytest.raises(BadInput) as caught:
        read(text, "policy.toml")
    assert said in str(caught.value)
    assert "policy.toml" in str(caught.value)


def test_a_policy_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"missing\.toml cannot be read: No such file"):
        policies.policy_file(tmp_path / "missing.toml")


# -- versions


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({}, {"smallest_change": 0.01}, True),
        ({}, {"smallest_change": 0.011}, False),
        (
            {"cases": {"*": {"leak": 0.1}, "rms*": {"leak": 0.2}}},
            {"cases": {"rms*": {"leak": 0.2}, "*": {"leak": 0.1}}},
            False,
        ),
        ({"metrics": {"call": 0.1, "block": 0.2}}, {"metrics": {"block": 0.2, "call": 0.1}}, True),
    ],
)
def test_the_same_numbers_are_the_same_version(one, other, same):
    assert (Policy.model_validate(one).digest == Policy.model_validate(other).digest) is same


def test_another_method_makes_another_version(monkeypatch):
    before = Policy().digest
    monkeypatch.setattr("service.domain.policy.policy.METHOD", 99)
    assert Policy().digest != before


def test_a_version_is_kept_once_and_read_back_as_it_was(either):
    policy = Policy.model_validate({"cases": {"rms*": {"leak": 0.2}, "*": {"leak": 0.1}}, "metrics": {"call": 0.3}})
    with transaction() as session:
        first, again, other = (policies.version_of(session, one).id for one in (policy, policy, Policy()))
        assert first == again != other
        assert session.execute(select(func.count()).select_from(PolicyRow)).scalar_one() == 2
    with transaction() as session:
        kept = Policy.model_validate(session.get_one(PolicyRow, first).values)
    assert kept == policy
    assert kept.digest == policy.digest
