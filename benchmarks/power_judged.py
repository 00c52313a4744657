"""Sessions of the power study: stored as files, judged like a run, and printed as tables."""

import gzip
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.kernels.trials import say
from kernels.cases import Case, Role
from service.domain.attribution import collect
from service.domain.policy.policy import Policy
from service.domain.states import CellState, Outcome
from service.domain.verdicts import judge
from service.domain.verdicts.judge import Verdict
from service.domain.verdicts.session_result import ContenderResult, SessionResult, cells
from service.reports.words import of_cause, of_reason


@dataclass(frozen=True)
class Plant:
    case: str
    size: tuple[int, int]
    share: float = 0.0  # of the time that is planted
    how: str = "nothing"  # "delay", "bytes"


@dataclass(frozen=True)
class Found:
    """What the judge said of one cell."""

    provider: str
    case: str
    base_us: float | None
    verdict: Verdict
    cause: str
    trials: int  # the confirming ones among them

    @property
    def outcome(self) -> Outcome:
        return self.verdict.outcome


def keep(file: Path, taken: Sequence[ContenderResult], wanted: Sequence[Plant] = ()) -> None:
    kept = {"taken": [{**asdict(one), "case": str(one.case)} for one in taken], "plants": [asdict(p) for p in wanted]}
    file.write_text(json.dumps(kept))


def told(folder: Path) -> None:
    """Judge every session of a folder by the default policy, and print what was found and what was invented."""
    planted: list[tuple[Plant, Found]] = []
    equal_code: list[Found] = []
    for file in sorted((*folder.glob("*.json"), *folder.glob("*.json.gz"))):
        kept = json.loads(gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes())
        taken = [_taken(one) for one in kept["taken"]]
        if plants_of := {one["case"]: Plant(**{**one, "size": tuple(one["size"])}) for one in kept["plants"]}:
            planted += [(plants_of[one.case], one) for one in _judged(taken)]
        else:
            equal_code += _judged(taken) + _judged(_copies(taken))
    if planted:
        _table(planted)
    if equal_code:
        _invented("Equal code", equal_code)


OLD_NAME = "looked"  # of the trials of the screening, in sessions of 21 November


def with_new_names(stored: dict[str, Any]) -> dict[str, Any]:
    return {"screened" if key == OLD_NAME else key: value for key, value in stored.items()}


def _taken(stored: dict[str, Any]) -> ContenderResult:
    kept = with_new_names(stored)
    rounds = {part: tuple(tuple(trial) for trial in kept[part]) for part in ("screened", "confirmed")}
    named = {"role": Role(kept["role"]), "case": Case.parse(kept["case"]), "state": CellState(kept["state"])}
    return ContenderResult(**{**kept, **named, **rounds})


def _copies(taken: Sequence[ContenderResult]) -> list[ContenderResult]:
    """The A/A copies as heads, against the parents that they are copies of."""
    copied = [replace(one, role=Role.HEAD) for one in taken if one.role is Role.CONTROL]
    names = {one.provider for one in copied}
    return copied + [one for one in taken if one.role is Role.PARENT and one.provider in names]


def _judged(taken: Sequence[ContenderResult]) -> list[Found]:
    """As a run is judged, but that equal code excuses nobody: what the clock alone says."""
    policy = Policy()
    found = cells(taken, code_decides=False)
    judged = judge.judge(found, policy)
    evidence = SessionResult(tuple(taken), "parent", (), {}, {}, sandboxed=False)
    causes = collect.against_parent(evidence, cells(taken), judged)
    base = {(one.provider, str(one.case)): one.median for one in taken if one.role is Role.PARENT}
    heads = {(one.provider, str(one.case)): one for one in taken if one.role is Role.HEAD}
    return [
        Found(
            *name,
            base.get(name),
            verdict,
            of_cause(causes[name], name[1]).words if name in causes else "",
            sum(bool(rounds) for rounds in (*heads[name].screened, *heads[name].confirmed)),
        )
        for name, verdict in judged.items()
    ]


def _table(found: Sequence[tuple[Plant, Found]]) -> None:
    """What became of each share at each size, over the sessions."""
    say(f"\n{'base':>9} {'planted':>8} {'how':>8} {'found':>6} {'of':>3} {'said':>22} {'trials':>9}  others; cause")
    groups: dict[tuple[tuple[int, int], str, float], list[Found]] = {}
    for plant, one in found:
        groups.setdefault((plant.size, plant.how, plant.share), []).append(one)
    for (size, how, share), ones in sorted(groups.items(), key=lambda group: (math.prod(group[0][0]), group[0][1:])):
        slower = [one for one in ones if one.outcome is Outcome.REGRESSION]
        said = ", ".join(f"{one.verdict.comparison.ratio - 1:+.2%}" for one in ones if one.verdict.comparison)
        others = ", ".join(sorted(one.outcome for one in ones if one.outcome is not Outcome.REGRESSION))
        say(
            f"{_base([one for (of, *_), each in groups.items() if of == size for one in each]):6.1f} us {share:8.1%} "
            f"{how:>8} {len(slower):6} {len(ones):3} {said:>22} {median([one.trials for one in ones]):9.0f}  "
            f"{others or slower[0].cause}"
        )
    _invented("Nothing planted", [one for plant, one in found if plant.how == "nothing"])


def _invented(what: str, found: Sequence[Found]) -> None:
    """What was told of equal code, all of it false, and what was suspected on the way."""
    counts = Counter(one.outcome.value for one in found)
    suspected = [one for one in found if one.verdict.suspected]
    say(f"\n{what}: {len(found)} comparisons, {dict(counts)}; suspected at first: {len(suspected)}")
    for one in found:
        if one.verdict.suspected or one.outcome not in (Outcome.STEADY, Outcome.NEW):
            say(f"  {one.provider} {one.case}: {one.outcome}: {of_reason(one.verdict.reason, one.case)}")


def _base(ones: Sequence[Found]) -> float:
    return median([one.base_us for one in ones if one.base_us] or [0.0])
