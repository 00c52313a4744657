"""What the service says of the stored trials: the comparison with a parent that is not exact enough, and with SOTA.

.venv/bin/python docs/measurements/2026-11-28-h200-liger-exactness/judge.py
"""

import gzip
import json
from pathlib import Path

from kernels.cases import Case, Role
from service.domain.policy.policy import Policy
from service.domain.states import BaselineKind, CellState
from service.domain.verdicts.baselines import judge_baseline
from service.domain.verdicts.judge import judge
from service.domain.verdicts.session_result import ContenderResult, SessionResult, baseline_cases, cells

HERE = Path(__file__).parent
KINDS = (BaselineKind.WRONG_PARENT, BaselineKind.SOTA)


def results(trials: list[list[dict]]) -> tuple[ContenderResult, ...]:
    """The contenders of a session, from the cells of its trials."""
    found = []
    for first in trials[0]:
        same = [
            next(one for one in trial if (one["contender"], one["case"]) == (first["contender"], first["case"]))
            for trial in trials
        ]
        role, provider = first["contender"].split(":")
        invalid = any(one["state"] == "invalid" for one in same)
        found.append(
            ContenderResult(
                Role(role),
                provider,
                Case.parse(first["case"]),
                CellState.INVALID if invalid else CellState.MEASURED,
                first["reason"],
                screened=tuple(tuple(one["samples"]) for one in same),
                facts=first["facts"] | {"errors": first["errors"]},
                apart=tuple(tuple(one["apart"]) for one in same),
            )
        )
    return tuple(found)


def main() -> None:
    print("| pull request | case | parent, us | head, us | against the parent | against Inductor |")
    print("|---|---|--:|--:|---|---|")
    for file in sorted(HERE.glob("*.json.gz")):
        taken = results(json.loads(gzip.decompress(file.read_bytes())))
        session = SessionResult(taken, None, (), {}, {}, sandboxed=False)
        judged = judge(cells(taken), Policy())
        against = {kind: judge_baseline(kind, baseline_cases(kind, session), Policy()) for kind in KINDS}
        by_role = {(one.role, str(one.case)): one for one in taken}
        for name, verdict in judged.items():
            sides = [by_role[role, name[1]] for role in (Role.PARENT, Role.HEAD)]
            before, now = (f"{side.median or side.inexact_median:.1f}" for side in sides)
            wrong = against[BaselineKind.WRONG_PARENT].get(name)
            seen = (wrong or verdict).comparison
            size = f"{seen.ratio - 1:+.1%} ({seen.low - 1:+.1%} to {seen.high - 1:+.1%})" if seen else "-"
            kind = f"wrong parent, {wrong.outcome}" if wrong else str(verdict.outcome)
            sota = against[BaselineKind.SOTA][name].comparison
            print(
                f"| {file.name.split('.')[0]} | `{name[1]}` | {before} | {now} "
                f"| {size}; {kind} | {sota.ratio:.2f} times |"
            )


if __name__ == "__main__":
    main()
