"""Study 2: regional Inductor for the fused RMSNorm, alone and in the training of a small transformer.

The training is on one device, and sharded over two.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from ..arena.protocol import built_in
from ..arena.session import Pace
from ..cases import Case, Metric
from .records import CONTROL
from .results import Estimate, Results
from .s1 import EAGER, INDUCTOR, arm_of_study
from .study import PACE, Arm, Conclusion, Source, Study, StudyReport, StudyStep, StudyTable
from .tabulating import NONE, because, microseconds, percent, times, whole

# The rows of a step of Llama 3 8B with two sequences of 8,192 tokens, and its columns: the source does not say its own.
NORM = "rmsnorm.fwdbwd.16384x4096.bf16"
NORM_ON_CPU = "rmsnorm.fwdbwd.256x512.fp32"
# Two layers of the width of Llama 3 8B: five processes share the memory of the GPU.
MODEL, MODEL_ON_CPU = "llama.2x4096.2x4096.bf16", "llama.1x256.2x32.fp32"
_SHARDED = ".fsdp2"  # each of two ranks trains with as many sequences as the one device
PEAK_TFLOP_S = {"h100": 989.4, "h200": 989.4, "b200": 2250.0}  # dense bf16 products, from the datasheets
LOSS_TOLERANCE = 0.01  # of a loss; arms round at other places, and 20 steps add that up

# What the source tunes its regions with.  It also makes each region one operator, which changes no kernel.
CONFIGS: Mapping[str, Any] = {"max_autotune": True, "coordinate_descent_tuning": True}
# ms of an isolated RMSNorm, forward and backward, in two runs on an H100
PUBLISHED_MS = {"eager": (26.13, 25.73), "make-fx": (21.99, 22.03), "regional": (14.35, 14.17)}
PUBLISHED_SPEED = 1.82
# Llama 3 8B on 8 x H100 (FSDP over 4, tensors over 2) without and with the pass: tokens/s, model FLOPs utilisation
PUBLISHED_TRAINING = {"make-fx": (6538, 0.3829), "regional": (6600, 0.3865)}

MAKE_FX = arm_of_study("make-fx", "make_fx, not compiled", "norms:MakeFx")
REGIONAL = arm_of_study("regional", "regional Inductor", "norms:TaggedGraph", configs=CONFIGS)
REGIONAL_DEFAULT = Arm("regional-default", "regional Inductor, not tuned", built_in("inductor-regional"))


def _trained(name: str, title: str, **spec: Any) -> Arm:
    return Arm(name, title, {"workload": "training:whole", "way": name, **spec})


TRAINED = (
    _trained("eager", "eager"),
    _trained("make-fx", "make_fx, not compiled"),
    _trained("regional", "regional Inductor", configs=CONFIGS),
    _trained("inductor", "full Inductor"),
)
PARALLEL = tuple(replace(arm, spec={**arm.spec, "workload": "parallel:ParallelTraining"}) for arm in TRAINED)


def steps(device: str, quick: bool) -> list[StudyStep]:
    if device == "cpu":
        pace = Pace(rounds=2)
        # Compilers of C++ take most of the time, so that the quick form has full Inductor once.
        full = () if quick else (INDUCTOR,)
        trials = 1 if quick else 2
        return [
            StudyStep("norm", (EAGER, MAKE_FX, REGIONAL, *full), (NORM_ON_CPU,), trials, pace),
            StudyStep("training", TRAINED, (MODEL_ON_CPU,), trials, pace, models=True),
            # Three processes an arm share the cores, so that a second trial or another compiler takes too long.
            StudyStep("parallel", PARALLEL[:-1], (f"{MODEL_ON_CPU}{_SHARDED}",), 1, pace, models=True),
        ]
    norms = (NORM, f"{NORM}.{Metric.CALL}")
    arms = (EAGER, MAKE_FX, REGIONAL_DEFAULT, REGIONAL, INDUCTOR)
    trials = 1 if quick else 2
    return [
        StudyStep("norm", arms, norms, trials, PACE),
        StudyStep("training", TRAINED, (MODEL,), trials, PACE, models=True),
        StudyStep("parallel", PARALLEL, (f"{MODEL}{_SHARDED}",), trials, PACE, models=True),  # the last: two GPUs
    ]


# -- what follows ----------------------------------------------------------------------------------------------------


def report(results: Results) -> StudyReport:
    norms = [case for case in results.cases if not _is_model(case)]
    models = [case for case in results.cases if _is_model(case)]
    return StudyReport(
        findings=tuple(
            [*(_norm_finding(results, case) for case in norms if Case.parse(case).metric is Metric.KERNEL)]
            + [finding for case in models for finding in _training_findings(results, case)]
        ),
        tables=tuple(
            [_norm_table(results, case) for case in norms]
            + [
                table
                for case in models
                for table in (_speed_table(results, case), _bits_table(results, case), _loss_table(results, case))
            ]
        ),
    )


def _is_model(case: str) -> bool:
    return case.startswith("llama.")


def _is_sharded(case: str) -> bool:
    return case.endswith(_SHARDED)


def _on_gpu(results: Results) -> bool:
    """The source's claims about speed are about GPUs."""
    return all(session.device != "cpu" for session in results.sessions)


def _faster(results: Results, speed: Estimate) -> bool | None:
    """Undecided on a CPU, from a single trial, and where the trials disagree."""
    return speed.above if _on_gpu(results) else None


def _arms_of(results: Results, case: str) -> list[str]:
    return [arm for arm in results.arms if results.of_arm(arm, case)]


# -- the norm alone --------------------------------------------------------------------------------------------------


def _norm_finding(results: Results, case: str) -> Conclusion:
    claim = (
        f"Regional Inductor makes an isolated RMSNorm faster than eager ({PUBLISHED_SPEED} times as fast in the source)"
    )
    found = {arm: results.ratio(arm, "eager", case) for arm in _arms_of(results, case) if arm != "eager"}
    speeds = {arm: one.inverse for arm, one in found.items() if one is not None}
    if "regional" not in speeds:
        return Conclusion(claim, "not measured", None)
    text = "; ".join(f"{arm}: {times(one)}" for arm, one in speeds.items())
    return Conclusion(claim, f"speed relative to eager at {case}: {text}", _faster(results, speeds["regional"]))


def _norm_table(results: Results, case: str) -> StudyTable:
    host = Case.parse(case).metric is Metric.CALL
    rows = []
    for arm in _arms_of(results, case):
        runs = [microseconds(one) for one in _by_run(results, arm, case)] or [because(results.why_not(arm, case))]
        ratio = results.ratio(arm, "eager", case)
        published = NONE if host else " and ".join(f"{ms:.2f} ms" for ms in PUBLISHED_MS.get(arm, ())) or NONE
        rows.append((arm, published, ", ".join(runs), times(ratio.inverse) if ratio else NONE))
    title = "Time of the host for one call" if host else "Forward and backward of one RMSNorm"
    columns = ("", "source, H100, two runs", "us, by run", "speed relative to eager")
    return StudyTable(f"{title}: {case}", columns, tuple(rows), _NORM_NOTE if not host else "")


_NORM_NOTE = (
    "A run is a set of fresh processes. The source times iterations of its own size with the host's part; here the "
    "calls are in a CUDA graph, so that only the device's part counts."
)


def _by_run(results: Results, arm: str, case: str) -> list[float]:
    """The median of each trial, in order."""
    found = []
    for one in sorted(results.of_arm(arm, case), key=lambda one: (one.step, one.trial)):
        found += [median(sample for sample in one.samples if sample)] if one.measured else []
    return found


# -- training --------------------------------------------------------------------------------------------------------


def _training_findings(results: Results, case: str) -> list[Conclusion]:
    if _is_sharded(case):
        return [_speed_finding(results, case)]
    return [
        _speed_finding(results, case),
        _bitwise_finding(results, case),
        _processes_finding(results, case),
        _losses_finding(results, case),
        _memory_finding(results, case),
    ]


def _speed_finding(results: Results, case: str) -> Conclusion:
    training = "training over two devices" if _is_sharded(case) else "training"
    claim = f"Compiling the norms alone makes {training} 1 % faster than the graph that is not compiled"
    found = results.ratio("regional", "make-fx", case)
    if found is None:
        return Conclusion(claim, "not measured", None)
    speed = found.inverse
    full = results.ratio("inductor", "make-fx", case)
    text = f"speed of regional Inductor: {times(speed)}; of full Inductor: {times(full and full.inverse)}"
    return Conclusion(claim, text, _faster(results, speed))


def _bitwise_finding(results: Results, case: str) -> Conclusion:
    claim = "Two runs of 20 steps have the same bits in loss, gradients and weights"
    found = [
        (arm, one.facts["repeats"])
        for arm in _arms_of(results, case)
        for one in results.of_arm(arm, case)
        if "repeats" in one.facts
    ]
    if not found:
        return Conclusion(claim, "not measured", None)
    differ = [
        f"{arm}: {what} from step {step} on" for arm, whats in found for what, step in whats.items() if step is not None
    ]
    equal = dict.fromkeys(arm for arm, _ in found)
    text = "; ".join(dict.fromkeys(differ)) or f"all bits are equal, for {', '.join(equal)}"
    reasons = {arm: results.fact(arm, case, "not_deterministic") for arm in equal}
    text += "".join(f"; {arm}: {reason}" for arm, reason in reasons.items() if reason)
    return Conclusion(claim, text, not differ)


def _processes_finding(results: Results, case: str) -> Conclusion:
    """A tuner may choose other configurations in another process, and these sum in another order."""
    claim = "The bits are those of another process, too"
    by_arm = {arm: _digests(results, arm, case) for arm in _arms_of(results, case)}
    known = {arm: found for arm, found in by_arm.items() if len(found) > 1}
    if not known:
        return Conclusion(claim, "measured in one process of each arm", None)
    same = {arm: len(set(found)) == 1 for arm, found in known.items()}
    text = "; ".join(
        f"{arm}: {'equal' if same[arm] else 'other bits'} in {len(found)} processes" for arm, found in known.items()
    )
    return Conclusion(claim, text, all(same.values()))


def _digests(results: Results, arm: str, case: str) -> list[str]:
    """What 20 steps computed, for each process; the control is one more process of eager."""
    arms = (arm, CONTROL) if arm == "eager" else (arm,)
    records = [one for name in arms for one in results.of_arm(name, case)]
    return [repr(one.facts["digests"]) for one in records if "digests" in one.facts]


def _losses_finding(results: Results, case: str) -> Conclusion:
    claim = f"The losses of all arms agree within {LOSS_TOLERANCE:.0%} in each of the 20 steps"
    eager = results.fact("eager", case, "losses")
    others = {arm: results.fact(arm, case, "losses") for arm in _arms_of(results, case) if arm != "eager"}
    apart = {arm: _apart(eager, losses) for arm, losses in others.items() if eager and losses}
    if not apart:
        return Conclusion(claim, "not measured", None)
    text = "largest distance from eager: " + "; ".join(f"{arm} {one:.2e}" for arm, one in apart.items())
    return Conclusion(claim, text, max(apart.values()) <= LOSS_TOLERANCE)


def _apart(mine: Sequence[float | None], other: Sequence[float | None]) -> float:
    """The largest relative distance.  None is a loss that was not finite, and counts as infinitely far."""
    both = zip(mine, other, strict=True)
    return max((abs(a - b) / abs(a) if a and b is not None else math.inf for a, b in both), default=math.inf)


def _memory_finding(results: Results, case: str) -> Conclusion:
    claim = "Compiling the norms alone does not change the peak of the memory"
    found = {arm: results.fact(arm, case, "peak_bytes") for arm in ("make-fx", "regional")}
    before, after = found["make-fx"], found["regional"]
    if not before or not after:
        return Conclusion(claim, "not measured", None)
    return Conclusion(claim, f"{_gib(before)} before, {_gib(after)} after", abs(after / before - 1) < 0.01)


def _speed_table(results: Results, case: str) -> StudyTable:
    product = results.ceiling("matmul_tflop_s")
    peak = PEAK_TFLOP_S.get(results.sessions[0].device)
    rows = []
    for arm in _arms_of(results, case):
        us = results.value(arm, case)
        if us is None:
            rows.append((arm, NONE, because(results.why_not(arm, case)), *[NONE] * 7))
            continue
        tflop_s = results.fact(arm, case, "flops") / us / 1e6
        ratio = results.ratio(arm, "eager", case)
        published = PUBLISHED_TRAINING.get(arm)
        rows.append(
            (
                arm,
                f"{published[0]:,}, {published[1]:.2%}" if published else NONE,
                ", ".join(microseconds(one) for one in _by_run(results, arm, case)),
                whole(results.fact(arm, case, "tokens") / us * 1e6),
                times(ratio.inverse) if ratio else NONE,
                f"{tflop_s:,.1f}" if tflop_s >= 1 else f"{tflop_s:.4f}",
                percent(tflop_s / peak if peak else None),
                percent(tflop_s / product if product else None),
                _gib(results.fact(arm, case, "peak_bytes")),
                f"{results.fact(arm, case, 'compile_s'):.1f}",
            )
        )
    columns = (
        "",
        "source: tokens/s of each GPU, MFU",
        "us a step, by run",
        "tokens/s",
        "speed relative to eager",
        "TFLOP/s",
        "of the peak",
        "of a product",
        "peak memory",
        "first step, s",
    )
    note = f"{_TRAINING_NOTE} {_SHARDED_NOTE}" if _is_sharded(case) else _TRAINING_NOTE
    return StudyTable(f"Training of {case}", columns, tuple(rows), note)


_TRAINING_NOTE = (
    "A step is forward, backward and AdamW. The peak is that of the datasheet, the product a bf16 one that was "
    "measured in the session. The source trains Llama 3 8B on 8 H100."
)
_SHARDED_NOTE = (
    "Weights, gradients and AdamW's state are sharded over two devices, each with sequences of its own. A time is that "
    "of the slower one; tokens/s and TFLOP/s are of one, the memory is the larger peak."
)


def _gib(size: int | None) -> str:
    return NONE if size is None else f"{size / 2**30:.2f} GiB"


def _bits_table(results: Results, case: str) -> StudyTable:
    rows = []
    for arm in _arms_of(results, case):
        repeats = results.fact(arm, case, "repeats") or {}
        processes = _digests(results, arm, case)
        kinds = len(set(processes))
        rows.append(
            (
                arm,
                *(_repeat(repeats, what) for what in ("loss", "gradients", "weights")),
                f"{kinds} in {len(processes)}" if processes else NONE,
            )
        )
    columns = ("", "loss", "gradients", "weights", "different runs in processes")
    note = "Bits of two runs of 20 steps in one process, and how many different runs all processes had."
    return StudyTable(f"Bits from run to run: {case}", columns, tuple(rows), note)


def _repeat(repeats: Mapping[str, int | None], what: str) -> str:
    if what not in repeats:
        return NONE
    return "equal" if repeats[what] is None else f"differ from step {repeats[what]} on"


def _loss_table(results: Results, case: str) -> StudyTable:
    curves = {arm: losses for arm in _arms_of(results, case) if (losses := results.fact(arm, case, "losses"))}
    count = max(map(len, curves.values()), default=0)
    shown = [number for number in range(count) if number in (0, count - 1) or (number + 1) % 5 == 0]
    rows = [(str(number + 1), *(_loss(curve[number]) for curve in curves.values())) for number in shown]
    return StudyTable(f"Loss: {case}", ("step", *curves), tuple(rows))


def _loss(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.5f}"


STUDY = Study(
    "s2",
    "Regional Inductor for the fused RMSNorm",
    "What does it bring to compile the norms of a model and nothing else, and does it change the results?",
    Source("torchtitan, pull request 3132", "https://github.com/pytorch/torchtitan/pull/3132", "H100"),
    steps,
    report,
)
