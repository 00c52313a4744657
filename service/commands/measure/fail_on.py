"""Which findings of runs make a command fail: documents of runs in, an exit code and its reason out."""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from service.domain.states import NOT_MEASURED, REGRESSED, UNDECIDED, UNFIT, GateAction, RunState, worst_exit_code
from service.errors import BadInput

if TYPE_CHECKING:
    from kernelwatch.client.models import RunDocument


class GateFinding(StrEnum):
    """A kind of the gate (GateKind), or a run without a result."""

    REGRESSION = "regression"
    INVALID = "invalid"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    UNREPEATABLE = "unrepeatable"
    SLOWER_THAN_WRONG = "slower-than-wrong"
    NEW_FAR_BEHIND = "new-far-behind"
    BEHIND_SOTA = "behind-sota"
    BUILD_FAILED = "build-failed"
    HELD = "held"  # waits for approval
    NOT_MEASURED = "not-measured"  # infrastructure, cancelled, superseded, or not ended yet


NEVER = "never"
NAMES = ", ".join(GateFinding)
EXIT_CODES = {
    GateFinding.REGRESSION: REGRESSED,
    GateFinding.INVALID: UNFIT,
    GateFinding.FAILED: UNFIT,
    GateFinding.INCONCLUSIVE: UNDECIDED,
    GateFinding.UNREPEATABLE: REGRESSED,
    GateFinding.SLOWER_THAN_WRONG: REGRESSED,
    GateFinding.NEW_FAR_BEHIND: REGRESSED,
    GateFinding.BEHIND_SOTA: REGRESSED,
    GateFinding.BUILD_FAILED: UNFIT,
    GateFinding.HELD: NOT_MEASURED,
    GateFinding.NOT_MEASURED: NOT_MEASURED,
}

# Without a gate, as in `compare`, a verdict counts also where the policy only warns of it.
VERDICTS = frozenset(GateFinding) - {GateFinding.BEHIND_SOTA, GateFinding.UNREPEATABLE}

FailOn = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on",
        metavar="FINDINGS",
        help=f"Exit with an error for these findings only, separated by commas: {NAMES}; or {NEVER}.",
    ),
]


def read_findings(given: Sequence[str] | None) -> frozenset[GateFinding] | None:
    """Read the values of `--fail-on`; None if there are none.  Raises BadInput."""
    if not given:
        return None
    names = {name.strip() for text in given for name in text.split(",")}
    if names == {NEVER}:
        return frozenset()
    if NEVER in names:
        raise BadInput(f"--fail-on takes {NEVER} alone, without other findings.")
    if unknown := sorted(names - {*GateFinding}):
        raise BadInput(f"--fail-on takes {NAMES}, or {NEVER}; not {unknown[0]!r}.")
    return frozenset(map(GateFinding, names))


def exit_code(runs: "Iterable[RunDocument]", wanted: frozenset[GateFinding] | None) -> int:
    """The exit code of the most severe finding that is `wanted`; that of the gate if `wanted` is None."""
    if wanted is None:
        return worst_exit_code(run.gate.exit_code for run in runs)
    return worst_exit_code(code for run in runs for finding, code in findings(run) if finding in wanted)


def explain(runs: "Sequence[RunDocument]", wanted: frozenset[GateFinding] | None) -> None:
    """Print what decided the exit code, unless it is 0: `Exit code 1, by the policy: regression`."""
    from service.commands.output.console import err, line

    code = exit_code(runs, wanted)
    if not code:
        return
    if wanted is None:
        found = {one for run in runs for one in _failing(run)}
        by = ", by the policy" if all(run.state == RunState.DONE for run in runs) else ""
    else:
        found = {str(one) for run in runs for one, _ in findings(run) if one in wanted}
        by = ", by --fail-on"
    line(f"Exit code {code}{by}: {', '.join(sorted(found))}", to=err)


def _failing(run: "RunDocument") -> Iterator[str]:
    if run.state == RunState.DONE:
        return (one.kind for one in run.gate.reasons if one.action == GateAction.FAIL and not one.known_before)
    return (str(one) for one, _ in findings(run))


def findings(run: "RunDocument") -> Iterator[tuple[GateFinding, int]]:
    """The findings of a run with their exit codes.

    What the baseline has already, and what the policy lets pass, is none.  Being behind SOTA is always one, because the
    default policy lets it pass.
    """
    match run.state:
        case RunState.DONE:
            yield from _of_result(run)
        case RunState.SKIPPED:
            pass
        case RunState.HELD:
            yield GateFinding.HELD, EXIT_CODES[GateFinding.HELD]
        case _:
            found = GateFinding.BUILD_FAILED if run.gate.exit_code == UNFIT else GateFinding.NOT_MEASURED
            yield found, EXIT_CODES[found]


def _of_result(run: "RunDocument") -> Iterator[tuple[GateFinding, int]]:
    for reason in run.gate.reasons:
        if reason.kind == GateFinding.BEHIND_SOTA:
            if reason.undecided:  # perhaps behind
                yield GateFinding.BEHIND_SOTA, UNDECIDED
        elif reason.kind in {*GateFinding} and not reason.known_before:
            found = GateFinding(reason.kind)
            yield found, EXIT_CODES[found]
    if run.behind_sota and run.purpose != "calibration":
        yield GateFinding.BEHIND_SOTA, EXIT_CODES[GateFinding.BEHIND_SOTA]
