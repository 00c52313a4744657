"""A tiny literal session of study 3, as a GPU host would write it."""

from collections.abc import Mapping

from kernels.studies.records import CONTROL, Note, Record, Session, StudyFile

NARROW, WIDE = "rmsnorm.bwd.4096x256.bf16-fp32", "rmsnorm.bwd.4096x2048.bf16-fp32"
TIMES = {  # us, by case and arm
    NARROW: {"separate": 20.0, "last": 16.0, "tree": 18.0, "triton": 16.0, "quack": 21.0, CONTROL: 20.1},
    WIDE: {"separate": 40.0, "last": 44.0, "tree": 38.0, "triton": 38.0, "quack": 40.0, CONTROL: 40.2},
}
# Enough cases for an answer: fused is faster in all but the last, and our choice by size in all.
_MORE = tuple(f"rmsnorm.bwd.{4096 << power}x{cols}.bf16-fp32" for cols in (512, 1024) for power in range(5))
GRID = {**TIMES, **dict.fromkeys(_MORE, TIMES[NARROW]), _MORE[-1]: {**TIMES[NARROW], "last": 22.0, "tree": 22.0}}
STACK = {"python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0", "device": {"kind": "cuda", "name": "NVIDIA H200"}}


def session_file(
    *,
    trials: int = 2,
    began: str = "2026-11-20T03:02:00+00:00",
    device: str = "h200",
    speed: float = 1.0,
    times: Mapping[str, Mapping[str, float]] = TIMES,
) -> StudyFile:
    """Trials differ by 1 %; the times of `last` are divided by `speed`."""
    records = [
        Record("dweight", trial, case, arm, "measured", samples=tuple(_rounds(arm, us, trial, speed)))
        for trial in range(trials)
        for case, arms in times.items()
        for arm, us in arms.items()
    ]
    about = Session("s3", began, device, False, {"processor": "one"}, {"kernels": "0123456789ab", "revision": "v1"})
    notes = (Note("stack", {"arm": "separate", **STACK}), Note("ceilings", {"copy_gb_s": 4100.0}))
    return StudyFile(about, tuple(records), notes)


def _rounds(arm: str, us: float, trial: int, speed: float) -> list[float]:
    return [round(us * (1 + 0.01 * trial + 0.001 * turn) / (speed if arm == "last" else 1), 4) for turn in range(3)]


def hostile_file(text: str) -> StudyFile:
    """A session of study 1 in which everything that may be any text is this one."""
    cases = [f"rmsnorm.fwd.32768x{columns}.bf16-fp32" for columns in (256, 512, 1024)]
    records = [
        Record("reset", 0, case, arm, "measured", samples=(us, us, us))
        for case in cases
        for arm, us in (("quack", 20.0), ("inductor", 22.0), (text[:80], 25.0))
    ]
    records += [Record("reset", 0, case, "without-reset", "failed", text) for case in cases]
    about = Session("s1", "2026-11-20T03:02:00+00:00", "h200", False, {"processor": text}, {"revision": text})
    notes = (Note("stack", {"arm": text, "torch": text, "device": {"name": text}}),)
    return StudyFile(about, tuple(records), notes)
