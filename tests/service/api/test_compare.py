"""Any two revisions on one device: paired where a session measured both, and labelled where none did."""

import math
from typing import Any

import pytest

from service.db.engine import transaction
from service.db.models import Pull, Stack, Target
from service.domain.states import RunState
from tests import world
from tests.fakes.api import Api

CASE = "rmsnorm.fwd.4096x1024.bf16"
HALF = 0.01  # of each interval, as a logarithm


class Measured:
    """Sessions on one device: each measures a commit against its parent, and SOTA where it is named."""

    def __init__(self) -> None:
        self.target = world.target('devices = ["gpu"]\nsota = "quack"\n[providers.norms]\nrmsnorm.fwd = "a:b"\n')
        with transaction() as session:
            stacks = [Stack(digest=str(n) * 64, versions={"torch": f"2.1{n}.0"}) for n in range(2)]
            session.add_all(stacks)
            session.flush()
            self.stacks = [stack.id for stack in stacks]

    def commit(self, number: int, ratio: float, *, stack: int = 0, outcome: str = "steady", **more: Any) -> int:
        """A run of commit c`number` that took `ratio` times as long as its parent; returns its id."""
        sota, doubt = more.pop("sota", None), more.pop("doubt", None)
        with transaction() as session:
            commit = world.commit(session, self.target.id, number)
            run = world.run(session, commit, stack_id=self.stacks[stack], **ON_BOX | more)
            world.measured(session, run, CASE, 100.0 * ratio)
            if run.baseline:
                world.measured(session, run, CASE, 100.0, role="parent")
                world.judged(session, run, CASE, outcome=outcome, baseline=run.baseline, doubt=doubt, **interval(ratio))
            if sota:
                against = {"baseline_kind": "sota", "baseline": "quack"}
                world.judged(session, run, CASE, **against, **interval(sota))
            return run.id

    def compare(self, base: str, head: str, status: int = 200, device: str = "gpu", **asked: Any) -> Any:
        sent = {"base": base, "head": head, "device": device} | asked
        answer = Api().get("/targets/norms/compare", params=sent)
        assert answer.status_code == status, answer.text
        return answer.json()


ON_BOX = {"device": "gpu", "state": RunState.DONE, "worker": "box"}


def interval(ratio: float) -> dict[str, float]:
    return {"ratio": ratio, "low": ratio * math.exp(-HALF), "high": ratio * math.exp(HALF)}


@pytest.fixture
def sessions(either_nightly: str) -> Measured:
    return Measured()


def test_a_pair_has_its_stored_verdict(sessions: Measured) -> None:
    sessions.commit(0, 1.0)
    run = sessions.commit(1, 1.1, outcome="regression")
    found = sessions.compare("c0", "c1")
    [one] = found["cases"]
    assert (one["method"], one["outcome"], one["direction"], one["run_ids"]) == (
        "paired",
        "regression",
        "slower",
        [run],
    )
    assert (one["ratio"], one["change"]) == (pytest.approx(1.1), "10.0 % slower")
    assert (one["base_median"], one["head_median"]) == (100.0, pytest.approx(110.0))
    assert (found["counts"], found["methods"]) == ({"slower": 1}, {"paired": 1})


@pytest.mark.parametrize(("us", "said"), [(3.0, "same"), (300.0, "slower")])
def test_a_short_case_is_slower_by_what_matters_there(sessions: Measured, us: float, said: str) -> None:
    """Verdicts against the pinned baseline store no smallest change: 2 % from 2.5 to 100 us, 1 % above."""
    with transaction() as session:
        for number in range(3):
            run = world.run(session, world.commit(session, sessions.target.id, number), device="gpu", worker="box")
            run.state = RunState.DONE
            world.measured(session, run, CASE, us * 1.0135)
        world.measured(session, run, CASE, us, role="pinned")
        pinned = {"baseline_kind": "pinned", "baseline": "c0", "ratio": 1.0135, "low": 1.011, "high": 1.016}
        world.judged(session, run, CASE, **pinned)
    [one] = sessions.compare("c0", "c2")["cases"]
    assert (one["method"], one["direction"]) == ("paired", said)


@pytest.mark.parametrize(("us", "said"), [(3.0, "same"), (300.0, "slower")])
def test_so_is_one_that_no_session_measured_with_the_other(sessions: Measured, us: float, said: str) -> None:
    with transaction() as session:
        for number, ratio in enumerate((1.0, 1.0135)):
            run = world.run(session, world.commit(session, sessions.target.id, number), device="gpu", worker="box")
            run.state = RunState.DONE
            world.measured(session, run, CASE, us * ratio)
            sota = {"baseline_kind": "sota", "baseline": "quack", "ratio": ratio}
            world.judged(session, run, CASE, **sota, low=ratio * 0.999, high=ratio * 1.001)
    [one] = sessions.compare("c0", "c1")["cases"]
    assert (one["method"], one["direction"]) == ("sota", said)


def test_the_other_way_round_it_is_the_inverse(sessions: Measured) -> None:
    sessions.commit(0, 1.0)
    sessions.commit(1, 1.1, outcome="regression")
    [one] = sessions.compare("c1", "c0")["cases"]
    assert (one["outcome"], one["direction"]) == ("improvement", "faster")
    assert one["ratio"] == pytest.approx(1 / 1.1)
    assert one["low"] < one["ratio"] < one["high"]
    assert (one["base_median"], one["head_median"]) == (pytest.approx(110.0), 100.0)


def test_a_chain_multiplies_ratios_and_widens_the_interval(sessions: Measured) -> None:
    for number, ratio in enumerate((1.0, 1.1, 1.05, 1.0)):
        sessions.commit(number, ratio)
    [one] = sessions.compare("c0", "c3")["cases"]
    assert (one["method"], one["direction"], one["outcome"]) == ("chain", "slower", None)
    assert one["ratio"] == pytest.approx(1.1 * 1.05)
    assert math.log(one["high"] / one["ratio"]) == pytest.approx(math.sqrt(3) * HALF)
    assert len(one["run_ids"]) == 3


def test_a_commit_that_left_the_code_the_same_adds_nothing_to_a_chain(sessions: Measured) -> None:
    for number, ratio in enumerate((1.0, 1.1, 1.0)):
        sessions.commit(number, ratio)
    with transaction() as session:
        run = world.run(session, world.commit(session, sessions.target.id, 3), stack_id=sessions.stacks[0], **ON_BOX)
        world.measured(session, run, CASE, 100.0)
        world.judged(session, run, CASE, baseline="c2", reason_code="equal_code", reason_args={"trials": 1})
    [one] = sessions.compare("c0", "c3")["cases"]
    assert (one["method"], one["ratio"], len(one["run_ids"])) == ("chain", pytest.approx(1.1), 3)
    assert math.log(one["high"] / one["ratio"]) == pytest.approx(math.sqrt(2) * HALF)


def test_a_common_sota_is_narrower_than_a_long_chain(sessions: Measured) -> None:
    for number in range(5):
        sessions.commit(number, 1.0, sota=1.2 if number == 4 else 1.0)
    [one] = sessions.compare("c0", "c4")["cases"]
    assert (one["method"], one["via"], one["ratio"]) == ("sota", "quack", pytest.approx(1.2))
    assert math.log(one["high"] / one["ratio"]) == pytest.approx(math.sqrt(2) * HALF)


def test_two_pull_requests_share_their_base(sessions: Measured) -> None:
    sessions.commit(0, 1.0)
    for number, ratio in ((7, 1.1), (8, 1.0)):
        sessions.commit(number, ratio, baseline="c0", pull=number)
        with transaction() as session:
            session.add(Pull(target_id=sessions.target.id, number=number, head=f"c{number}"))
    found = sessions.compare("pull/8", "pull/7")
    [one] = found["cases"]
    assert (one["method"], one["via"], one["ratio"]) == ("baseline", "c0", pytest.approx(1.1))
    assert (found["base"]["pull"], found["head"]["revision"]) == (8, "c7")
    assert "No pull request of norms 9." in sessions.compare("pull/9", "c0", 404)["detail"]


@pytest.mark.parametrize("name", ["mainline", "trunk"])
def test_the_mainline_is_its_newest_measured_revision(sessions: Measured, name: str) -> None:
    with transaction() as session:
        session.get_one(Target, sessions.target.id).branch = "trunk"
    assert "No revision of the mainline of norms was measured" in sessions.compare(name, "c0", 409)["detail"]
    for number, ratio in enumerate((1.0, 1.1)):
        sessions.commit(number, ratio)
    with transaction() as session:
        world.commit(session, sessions.target.id, 2)  # not measured yet
    assert sessions.compare("c0", name)["head"]["revision"] == "c1"


@pytest.mark.parametrize("why", [{"stack": 1}, {"doubt": "control"}], ids=["another stack", "controls were off"])
def test_what_cannot_be_paired_has_two_medians_and_no_ratio(sessions: Measured, why: dict[str, Any]) -> None:
    sessions.commit(0, 1.0)
    sessions.commit(1, 1.0, **why)
    sessions.commit(2, 1.1)
    found = sessions.compare("c0", "c2")
    [one] = found["cases"]
    assert (one["method"], one["ratio"], one["direction"]) == ("unpaired", None, "unknown")
    assert one["reason"].startswith("no session measured both")
    assert (one["base_median"], one["head_median"]) == (100.0, pytest.approx(110.0))


def test_other_stacks_and_recipes_are_labelled(sessions: Measured) -> None:
    sessions.commit(0, 1.0)
    with transaction() as session:
        recipe = world.recipe_of(session, sessions.target.id, "").id
    sessions.commit(1, 1.1, stack=1, recipe_id=recipe)
    found = sessions.compare("c0", "c1")
    assert (found["stack_changes"], found["recipe_changed"]) == (["torch 2.10.0 → 2.11.0"], True)
    assert found["cases"][0]["method"] == "paired", "one session measured both, on one stack"


def test_other_devices_and_machines_are_refused_with_the_reason(sessions: Measured) -> None:
    sessions.commit(0, 1.0)
    sessions.commit(1, 1.0, device="cpu", worker="elsewhere")
    sessions.commit(3, 1.0, worker="other box")
    refused = sessions.compare("c0", "c1", 409)["detail"]
    assert "c1 was not measured on gpu, only on cpu: times of other devices are not comparable" in refused
    refused = sessions.compare("c0", "c3", 409)["detail"]
    assert "c0 was measured by box and c3 by other box: times of two machines are not comparable" in refused
    assert sessions.compare("c0", "c9", 404)["title"] == "Not Found"


def test_cases_are_filtered_and_the_document_is_not_sent_again(sessions: Measured) -> None:
    sessions.commit(0, 1.0)
    sessions.commit(1, 1.1)
    assert sessions.compare("c0", "c1", case="layernorm*")["cases"] == []
    path = "/targets/norms/compare?base=c0&head=c1&device=gpu"
    first = Api().get(path)
    assert Api().get(path, headers={"If-None-Match": first.headers["etag"]}).status_code == 304
