"""S2: its report on literal records, the transformer that it trains, and a run with processes on a CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kernels.cases import Case  # noqa: E402
from kernels.checks.inputs import make  # noqa: E402
from kernels.checks.oracle import Oracle, named  # noqa: E402
from kernels.providers import Unsupported  # noqa: E402
from kernels.providers.eager import Eager  # noqa: E402
from kernels.studies.published import run, s2  # noqa: E402
from kernels.studies.published.arms import llama, training  # noqa: E402
from kernels.studies.published.arms.norms import MakeFx  # noqa: E402
from kernels.studies.published.records import CONTROL, Note, Record, Session, StudyFile  # noqa: E402
from kernels.studies.published.results import Results  # noqa: E402

CPU = torch.device("cpu")
TINY = "llama.1x256.1x16.fp32"
NO_REPEATS: dict[str, int | None] = {"loss": None, "gradients": None, "weights": None}


def trained(arm: str, us: float, trial: int = 0, **facts: Any) -> Record:
    known = {
        "tokens": 8192,
        "flops": 5e13,
        "peak_bytes": 10 * 2**30,
        "compile_s": 20.0,
        "losses": [10.0, 9.0],
        "digests": {"loss": ["a", "b"]},
        "repeats": NO_REPEATS,
    }
    return Record("training", trial, s2.MODEL, arm, "measured", samples=(us,) * 3, facts={**known, **facts})


def report_of(*records: Record) -> s2.StudyReport:
    session = Session("s2", "2026-11-24T12:00:00+00:00", "h200", quick=False)
    ceilings = Note("ceilings", {"copy_gb_s": 4200.0, "matmul_tflop_s": 800.0})
    return s2.report(Results.of([StudyFile(session, records, (ceilings,))]))


def claims(report: s2.StudyReport) -> dict[str, tuple[bool | None, str]]:
    return {one.claim: (one.holds, one.found) for one in report.findings}


def found_about(report: s2.StudyReport, words: str) -> tuple[bool | None, str]:
    return next(found for claim, found in claims(report).items() if words in claim)


# -- the report ------------------------------------------------------------------------------------------------------


def test_the_norm_has_both_runs_next_to_those_of_the_source() -> None:
    us = {"eager": 400.0, "make-fx": 390.0, "regional": 200.0}
    report = report_of(
        *(
            Record("norm", trial, s2.NORM, arm, "measured", samples=(time * (1 + trial / 100),) * 3)
            for trial in range(2)
            for arm, time in us.items()
        )
    )

    assert found_about(report, "isolated RMSNorm")[0] is True
    rows = {row[0]: row for row in report.tables[0].rows}
    assert rows["regional"][1:3] == ("14.35 ms and 14.17 ms", "200.0, 202.0")
    assert rows["regional"][3].startswith("2.000")


def test_training_has_speed_and_utilisation() -> None:
    times = {"eager": 125e3, "make-fx": 110e3, "regional": 100e3}
    report = report_of(*(trained(arm, us, trial) for arm, us in times.items() for trial in range(2)))

    row = next(row for row in report.tables[0].rows if row[0] == "regional")
    assert row[3] == "81,920"  # 8,192 tokens in 0.1 s
    assert row[5:9] == ("500.0", "50.5%", "62.5%", "10.00 GiB")  # 5e13 in 0.1 s; of 989.4, and of 800
    assert found_about(report, "1 % faster")[0] is True
    assert found_about(report, "peak of the memory") == (True, "10.00 GiB before, 10.00 GiB after")


@pytest.mark.parametrize(
    ("us", "holds"),
    [
        ([100e3], None),  # one trial says nothing about how trials differ
        ([100e3, 120e3], None),
        ([100e3, 100.1e3], True),
        ([120e3, 120.1e3], False),
    ],
)
def test_training_is_faster_if_the_trials_agree(us: list[float], holds: bool | None) -> None:
    report = report_of(
        *(trained("make-fx", 110e3, trial) for trial in range(len(us))),
        *(trained("regional", one, trial) for trial, one in enumerate(us)),
    )
    assert found_about(report, "1 % faster")[0] is holds


@pytest.mark.parametrize(
    ("facts", "words", "holds"),
    [
        ({}, "same bits", True),
        ({"repeats": {**NO_REPEATS, "gradients": 3}}, "same bits", False),
        ({}, "within 1%", True),
        ({"losses": [10.0, 8.8]}, "within 1%", False),
        ({"losses": [10.0, None]}, "within 1%", False),  # a NaN is null in the answer of a process
        ({"peak_bytes": 11 * 2**30}, "peak of the memory", False),
    ],
)
def test_what_is_said_about_results(facts: dict[str, Any], words: str, holds: bool) -> None:
    report = report_of(trained("eager", 100e3), trained("make-fx", 100e3), trained("regional", 100e3, **facts))
    assert found_about(report, words)[0] is holds


def test_the_first_step_with_other_bits_is_named() -> None:
    report = report_of(trained("eager", 100e3), trained("regional", 100e3, repeats={**NO_REPEATS, "weights": 7}))
    assert found_about(report, "same bits")[1] == "regional: weights from step 7 on"
    assert report.tables[1].rows[1] == ("regional", "equal", "equal", "differ from step 7 on", "1 in 1")


def test_processes_are_compared_by_what_they_computed() -> None:
    others = {"digests": {"loss": ["a", "c"]}}
    report = report_of(
        *(trained("eager", 100e3, trial) for trial in range(2)),
        trained(CONTROL, 100e3),
        trained("regional", 90e3),
        trained("regional", 90e3, trial=1, **others),
    )
    holds, text = found_about(report, "another process")
    assert holds is False
    assert text == "eager: equal in 3 processes; regional: other bits in 2 processes"


def test_training_over_two_devices_has_tables_and_a_claim_of_its_own() -> None:
    sharded = s2.steps("h200", False)[-1].cases[0]
    us = {"eager": 130e3, "make-fx": 120e3, "regional": 110e3}
    report = report_of(
        *(trained(arm, 100e3, trial) for arm in us for trial in range(2)),
        *(
            replace(trained(arm, one, trial), step="parallel", case=sharded)
            for arm, one in us.items()
            for trial in range(2)
        ),
    )

    assert found_about(report, "makes training 1 % faster")[0] is None
    assert found_about(report, "over two devices 1 % faster")[0] is True
    table = next(table for table in report.tables if table.title == f"Training of {sharded}")
    assert "of the slower one" in table.note
    assert next(row for row in table.rows if row[0] == "regional")[2:4] == ("110,000, 110,000", "74,473")
    assert sum(sharded in table.title for table in report.tables) == 3  # speed, bits, loss


@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_hosts_with_one_gpu_lose_nothing_to_the_step_for_two(device: str) -> None:
    steps = s2.steps(device, False)
    assert [step.name for step in steps] == ["norm", "training", "parallel"]
    assert all(llama.LlamaSize.parse(case).ranks == 2 for case in steps[-1].cases)


# -- the transformer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["llama", "llama.1x300.2x64.fp32", "llama.0x256.2x64.fp32", "llama.1x256.2x64.fp8"])
def test_an_unknown_model_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"llama\.LAYERSx|multiple of 256"):
        llama.LlamaSize.parse(text)


def test_flops_are_those_of_the_matrices_and_of_causal_attention() -> None:
    size = llama.LlamaSize.parse(s2.MODEL)
    block = 4096 * (6144 + 4096 + 3 * 14336)
    matrices = 2 * block + 4096 * 32768
    assert size.flops == 8192 * (6 * matrices + 2 * 6 * 4096 * 4096)


def test_a_digest_sees_one_bit_and_an_exchange() -> None:
    one = torch.arange(8192.0)
    flipped, exchanged = one.clone(), one.clone()
    flipped[5000] += 2**-10
    exchanged[[1, 4097]] = one[[4097, 1]]
    assert training.digest([one]) == training.digest([one.clone()])
    assert len({training.digest([each]) for each in (one, flipped, exchanged, one.view(-1, 2).t())}) == 4


def workload(way: str, case: str = TINY) -> training.Training:
    return training.whole(case, {"way": way}, "cpu", 1)


@pytest.fixture
def plain_torch():
    """A workload chooses deterministic algorithms for its process."""
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("plain_torch")
def test_a_traced_step_trains_like_eager_and_repeats() -> None:
    eager, graph = workload("eager"), workload("make-fx")

    assert eager.facts["repeats"] == graph.facts["repeats"] == NO_REPEATS
    assert graph.facts["losses"] == pytest.approx(eager.facts["losses"], rel=1e-5)
    assert len(set(eager.facts["digests"]["weights"])) == 20  # every step changes the weights
    assert all(us > 0 for us in graph.turn(1, 2))
    assert graph.check() is None


class TooLarge(training.Whole):
    """The first attempt has too little memory; the second one would have enough."""

    tries = 0

    def loss(self, weights, batch):
        self.tries += 1
        if self.tries == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().loss(weights, batch)


@pytest.mark.usefixtures("plain_torch")
def test_a_lack_of_memory_is_not_taken_for_a_lack_of_determinism() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        training.Training(TooLarge(llama.LlamaSize.parse(TINY), "cpu"), {"way": "eager"})


class Scattered(training.Whole):
    """Its loss uses an operator that has no deterministic form."""

    def loss(self, weights, batch):
        torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2))
        return super().loss(weights, batch)


@pytest.mark.filterwarnings("ignore:put_ does not have a deterministic implementation")
@pytest.mark.usefixtures("plain_torch")
def test_an_operator_without_a_deterministic_form_is_named_and_the_others_demand_it() -> None:
    found = training.Training(Scattered(llama.LlamaSize.parse(TINY), "cpu"), {"way": "eager"})
    assert "put_" in found.facts["not_deterministic"]
    assert len(found.facts["losses"]) == 20

    assert "not_deterministic" not in workload("eager").facts
    assert not torch.is_deterministic_algorithms_warn_only_enabled()

    report = report_of(trained("eager", 100.0, not_deterministic="put_ is not deterministic"))
    assert found_about(report, "same bits") == (True, "all bits are equal, for eager; eager: put_ is not deterministic")


@pytest.mark.usefixtures("plain_torch")
def test_a_wrong_gradient_is_found() -> None:
    one = workload("eager")
    right = one._step
    one._step = lambda weights, batch: (*right(weights, batch)[:-1], 1.01 * right(weights, batch)[-1])
    assert one.check().startswith("head of the first step is wrong by 1.0e-02")


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ValueError, match="known: eager, make-fx, regional, inductor"):
        training._way(training.Whole(llama.LlamaSize.parse(TINY), "cpu").loss, {"way": "magic"}, [], [])


# -- the arms of the norm --------------------------------------------------------------------------------------------


def test_a_traced_norm_is_right_for_every_input_set() -> None:
    case = Case.parse("rmsnorm.fwdbwd.64x96.fp32")
    bind = MakeFx().joint(case, CPU)
    for number in range(2):
        inputs = make(case, CPU, 1, number)
        with torch.no_grad():
            outputs = named(case, bind(inputs)())
        assert Oracle(inputs).judge(inputs, outputs).reason is None


@pytest.mark.parametrize(
    "text", ["rmsnorm.fwd.64x96.fp32", "layernorm.fwdbwd.64x96.fp32", "rmsnorm.fwdbwd.8x96.bf16-fp32"]
)
def test_a_case_without_the_fused_operator_is_refused(text: str) -> None:
    with pytest.raises(Unsupported, match="with one dtype"):
        MakeFx().joint(Case.parse(text), CPU)


def test_a_provider_goes_through_autograd_by_default() -> None:
    case = Case.parse("rmsnorm.fwdbwd.64x96.fp32")
    inputs = make(case, CPU, 1)
    outputs = named(case, Eager().joint(case, CPU)(inputs)())
    assert set(outputs) == {"y", "dx", "dweight"}


# -- a run -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_regional_inductor_trains_in_its_own_process(tmp_path: Path) -> None:
    steps = {step.name: step for step in s2.steps("cpu", True)}
    arms = tuple(arm for arm in s2.TRAINED if arm.name in ("eager", "regional"))
    step = replace(steps["training"], arms=arms, cases=(TINY,))
    study = replace(s2.STUDY, steps=lambda _device, _quick: [step])

    found = run.run(study, tmp_path / "s2.jsonl", device="cpu", quick=True)

    assert {one.arm: (one.state, one.reason) for one in found.records} == {
        "eager": ("measured", None),
        "regional": ("measured", None),
        CONTROL: ("measured", None),
    }
    by_arm = {one.arm: one for one in found.records}
    assert by_arm["regional"].facts["tagged"] == 6  # three norms, forward and backward
    assert by_arm["eager"].facts["digests"] == by_arm[CONTROL].facts["digests"]
    report = s2.report(Results.of([found]))
    assert found_about(report, "same bits")[0] is True
    assert found_about(report, "within 1%")[0] is True
    assert found_about(report, "1 % faster")[0] is None  # a claim about GPUs
