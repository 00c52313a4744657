"""Sessions of a study: what may be stored, how far each is, its report, and two of them compared.  Pure.

Times of two sessions were not taken in turns, so their ratio holds the difference of the machines as well.  The ratio
of an arm to the baseline was measured in turns in each session, so machines matter less to its change.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from kernels.studies.catalogue import STUDIES
from kernels.studies.records import CONTROL, Record, Session, StudyFile
from kernels.studies.results import Estimate, Results, sum_of_means
from kernels.studies.study import Study, StudyReport, missing
from service.errors import BadInput, NotFound

_DEVICE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")
_MAX = {"step": 80, "arm": 80, "case": 200, "state": 32, "unit": 16}  # characters, as the columns are wide
UNFINISHED = 3  # exit code: a part of what was asked for is measured
MAX_ROUNDS = 10_000  # samples of one record
_MAX_REASON = 10_000  # characters


@dataclass(frozen=True)
class StudyProgress:
    """How many turns of arms at a case a session has, of those that its study asks for.

    A turn is a case of a step in one trial, with all its arms.
    """

    done: int
    total: int

    @property
    def complete(self) -> bool:
        return self.done >= self.total


@dataclass(frozen=True)
class Claims:
    """How many claims of the source hold."""

    hold: int
    fail: int
    undecided: int

    @classmethod
    def of(cls, report: StudyReport) -> "Claims":
        held = [finding.holds for finding in report.findings]
        return cls(held.count(True), held.count(False), held.count(None))


def study_named(name: str) -> Study:
    """Raises NotFound, which lists all."""
    if name not in STUDIES:
        raise NotFound("study", name, f"Known: {', '.join(STUDIES)}.")
    return STUDIES[name]


def progress(study: Study, device: str, quick: bool, done: Collection[tuple[str, int, str]]) -> StudyProgress:
    """`done` has the keys of the records: step, trial and case."""
    steps = study.steps(device, quick)
    total = sum(step.trials * len(step.cases) for step in steps)
    return StudyProgress(total - sum(len(cases) for _, _, cases in missing(steps, done)), total)


def report(study: Study, results: Results) -> StudyReport:
    """Evaluate the results.

    Raises:
        BadInput: They are not results of this study, as this version knows it.
    """
    try:
        return study.report(results)
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise BadInput(
            f"This version cannot evaluate these results of study {study.name}: {type(error).__name__}: {error}."
        ) from error


def check(file: StudyFile) -> Study:
    """The study of a file that may be stored.

    Raises:
        NotFound: There is no such study.
        BadInput: The message says what is wrong with the file.
    """
    study = _check_session(file.session)
    for record in file.records:
        _check_record(record)
    for note in file.notes:
        if note.what in ("stack", "ceilings", "trial") and not isinstance(note.value, dict):
            raise BadInput(f"The note {note.what!r} is {note.value!r:.60}; it must be an object.")
        if note.what == "ceilings" and not all(type(ceiling) in (int, float) for ceiling in note.value.values()):
            raise BadInput(f"The ceilings are {note.value!r:.60}; each must be a number.")
    report(study, Results.of([file]))
    return study


def _check_session(session: Session) -> Study:
    if not isinstance(session.study, str):
        raise BadInput(f"The study of the session is {session.study!r:.60}; it must be a name such as s3.")
    study = study_named(session.study)
    if not isinstance(session.device, str) or not _DEVICE.fullmatch(session.device):
        raise BadInput(f"The device of the session is {session.device!r:.60}; name it as in h200 or cpu.")
    if not _is_time(session.began):
        raise BadInput(
            f"The session began at {session.began!r:.60}, which is no time such as 2026-11-21T03:02:00+00:00."
        )
    if not isinstance(session.quick, bool) or not all(
        isinstance(table, dict) for table in (session.machine, session.code)
    ):
        raise BadInput("The session must have `quick` as true or false, and `machine` and `code` as objects.")
    if not all(isinstance(text, str) for text in session.code.values()):
        raise BadInput("The `code` of the session must have texts only, such as its `revision`.")
    return study


def _is_time(text: object) -> bool:
    """Whether it is a time with its offset that fits the column and every calendar."""
    if not isinstance(text, str) or len(text) > 40:
        return False
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return False
    return time.tzinfo is not None and 1970 < time.year < 9999


def _check_record(record: Record) -> None:
    where = f"The record of {record.arm!s:.80} at {record.case!s:.200}"
    for name, limit in _MAX.items():
        value = getattr(record, name)
        if not isinstance(value, str) or not 0 < len(value) <= limit or not value.isprintable():
            raise BadInput(f"{where} has {name} {value!r:.60}; it must be a text of 1 to {limit} printable characters.")
    if record.reason is not None and (not isinstance(record.reason, str) or len(record.reason) > _MAX_REASON):
        raise BadInput(f"{where} has a reason that is not a text of at most {_MAX_REASON:,} characters.")
    if isinstance(record.trial, bool) or not isinstance(record.trial, int) or not 0 <= record.trial < 1000:
        raise BadInput(f"{where} has trial {record.trial!r:.60}; it must be a number from 0 to 999.")
    sound = all(sample is None or (isinstance(sample, int | float) and 0 < sample < 1e15) for sample in record.samples)
    if not sound or len(record.samples) > MAX_ROUNDS:
        raise BadInput(f"{where} has samples that are not positive numbers, or more than {MAX_ROUNDS:,} of them.")
    if not isinstance(record.facts, dict):
        raise BadInput(f"{where} has facts that are not an object.")


@dataclass(frozen=True)
class ArmStack:
    """The versions that some arms ran with, and the device as it names itself."""

    arms: tuple[str, ...]
    device: str
    versions: dict[str, str]


def stacks(results: Results) -> list[ArmStack]:
    """The stacks of the arms; arms with equal ones are listed together."""
    versions_of: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, None]] = {}
    for note in results.notes:
        if note.what == "stack" and isinstance(note.value, dict):
            named = note.value.get("device")
            device = named if isinstance(named, dict) else {}
            versions = {
                name: str(version) for name, version in note.value.items() if name not in ("arm", "device") and version
            }
            key = (str(device.get("name") or device.get("kind") or ""), tuple(versions.items()))
            versions_of.setdefault(key, {})[str(note.value.get("arm", ""))] = None
    return [ArmStack(tuple(arms), device, dict(versions)) for (device, versions), arms in versions_of.items()]


def control(results: Results) -> float | None:
    """How far copies of equal code differ in the median, relative; None without a copy."""
    distances = results.control()
    return math.expm1(median(distances)) if distances else None


@dataclass(frozen=True)
class ArmChange:
    """An arm at a case in both sessions.  Ratios are B over A: above 1 the arm is slower in B."""

    case: str
    arm: str
    baseline: str  # the first arm of its step
    unit: str
    a: float  # median time
    b: float
    time: Estimate
    relative: Estimate | None  # of the ratio to the baseline; None for the baseline, and without turns in both


def compared(a: Results, b: Results) -> list[ArmChange]:
    """Every arm and case that was measured in both sessions, in the order of A."""
    baselines, changes = _baselines(a), list[ArmChange]()
    for case in a.cases:
        for arm in a.arms:
            mine, others = a.value(arm, case), b.value(arm, case)
            if mine is None or others is None:
                continue
            baseline = baselines[arm, case]
            time = _ratio(_logs(a.of_arm(arm, case)), _logs(b.of_arm(arm, case)))
            relative = None
            if arm != baseline:
                relative = _ratio(*(list(results.effects(arm, baseline, case).values()) for results in (a, b)))
            if time is not None:
                unit = a.of_arm(arm, case)[0].unit
                changes.append(
                    ArmChange(
                        case=case, arm=arm, baseline=baseline, unit=unit, a=mine, b=others, time=time, relative=relative
                    )
                )
    return changes


def differences(a: Results, b: Results) -> list[str]:
    """What else differs between the sessions, each as a sentence without its full stop."""
    first, second = a.sessions[0], b.sessions[0]
    pairs = [
        ("device", first.device, second.device),
        ("form", *("quick" if session.quick else "full" for session in (first, second))),
        ("revision", first.code.get("revision", "unknown"), second.code.get("revision", "unknown")),
        ("code of the kernels", first.code.get("kernels", "unknown"), second.code.get("kernels", "unknown")),
    ]
    mine, others = _versions(a), _versions(b)
    pairs += [(name, mine.get(name, "none"), others.get(name, "none")) for name in dict.fromkeys((*mine, *others))]
    differences = [f"{what}: {value} in A, {other} in B" for what, value, other in pairs if value != other]
    both = {*a.cases} & {*b.cases}
    in_a, in_b = both & _replayed(a), both & _replayed(b)
    if in_a != in_b:
        what = "cases replayed as CUDA graphs in one session and launched in the other"
        differences.append(f"{what}: {len(in_a - in_b)} in A, {len(in_b - in_a)} in B")
    return differences


def _replayed(results: Results) -> set[str]:
    return {record.case for record in results.records if record.replayed}


def _versions(results: Results) -> dict[str, str]:
    """Versions of all arms by name; an arm whose versions differ from others' adds its own."""
    arms: dict[str, list[str]] = {}
    for note in results.notes:
        if note.what != "stack" or not isinstance(note.value, dict):
            continue
        for name, version in note.value.items():
            if name not in ("arm", "device") and version:
                arms.setdefault(name, []).append(str(version))
    return {name: ", ".join(dict.fromkeys(versions)) for name, versions in arms.items()}


def _baselines(results: Results) -> dict[tuple[str, str], str]:
    """By arm and case, the first arm of the step that measured it first."""
    first: dict[tuple[str, int, str], str] = {}
    reasons: dict[tuple[str, str], str] = {}
    for record in results.records:
        if record.arm != CONTROL:
            reasons.setdefault((record.arm, record.case), first.setdefault(record.key, record.arm))
    return reasons


def _logs(records: Sequence[Record]) -> list[float]:
    """Of each trial, the logarithm of the median."""
    return [math.log(median(sample for sample in record.samples if sample)) for record in records if record.measured]


def _ratio(a: Sequence[float], b: Sequence[float]) -> Estimate | None:
    """B over A from logarithms of trials that are not paired, with Welch's interval if both have two of them."""
    if not a or not b:
        return None
    return sum_of_means([[-value for value in a], b])
