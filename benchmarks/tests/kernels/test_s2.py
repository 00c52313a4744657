"""S2: the transformer that it trains, and a run with processes on a CPU."""

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from benchmarks.kernels.published import run  # noqa: E402
from benchmarks.kernels.published.arms import llama, training  # noqa: E402
from benchmarks.kernels.published.arms.norms import MakeFx  # noqa: E402
from kernels.cases import Case  # noqa: E402
from kernels.checks.inputs import make  # noqa: E402
from kernels.checks.oracle import Oracle, named  # noqa: E402
from kernels.providers import Unsupported  # noqa: E402
from kernels.providers.eager import Eager  # noqa: E402
from kernels.studies import s2  # noqa: E402
from kernels.studies.records import CONTROL  # noqa: E402
from kernels.studies.results import Results  # noqa: E402
from tests.kernels.studies.test_s2 import NO_REPEATS, found_about, report_of, trained  # noqa: E402

CPU = torch.device("cpu")
TINY = "llama.1x256.1x16.fp32"


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
