"""What a reader of a run's result must know besides the verdicts, in sentences."""

from kernels.cases import FunctionCase, parse_case
from service.domain.text import listed, one_line, printable
from service.domain.verdicts.calibration import MIN_CALIBRATIONS
from service.reports.report import Report

REASONS = 3  # why cases are not compared with SOTA


def notes(report: Report) -> list[str]:
    """How it was measured, what is no longer repeatable, what rounds otherwise, and what has no SOTA."""
    found = list[str]()
    if report.sandboxed is False:
        found.append("Measured without a sandbox.")
    if report.repeated:
        found.append("Measured again, because the controls of the first session failed.")
    if lost := report.lost_repeatability:
        found.append(f"No longer repeatable: {listed([f'{row.case} ({row.provider})' for row in lost])}.")
    found += filter(None, (second_session(report), provisional(report)))
    found += conventions(report)
    if missing := without_sota(report) or functions_alone(report):
        found.append(missing)
    return [printable(one) for one in found]


def second_session(report: Report) -> str:
    """That a second session follows or that this is one; empty for other runs."""
    if report.second_of is not None:
        return f"Second session of run {report.second_of}: offsets of sessions and builds are averaged over both."
    if report.awaits_second:
        return (
            "Earlier sessions, or builds of the same code, differed by about as much as the undecided cases; "
            "a second session could decide: it follows automatically when the device is idle."
        )
    return ""


def provisional(report: Report) -> str:
    """That times do not block yet, why, and what changes it; empty where they may, and where none were compared."""
    compared = any(row.metric.varies and row.ratio is not None for row in report.rows)
    if not (report.provisional and compared):
        return ""
    return (
        "Provisional: times block nothing until the worker has compared equal code of this target in "
        f"{MIN_CALIBRATIONS} calibrations, which follow automatically."
    )


def conventions(report: Report) -> list[str]:
    """Which providers do otherwise than built-in ones: how they round, and whether they overwrite their inputs."""
    found = list[str]()
    if names := report.rounding_before_weight:
        found.append(
            f"{listed(names)} round{'s' * (len(names) == 1)} the normalised rows before the product with the weight; "
            "built-in providers round once, at the end. Each is checked by its own convention."
        )
    if names := report.inplace:
        found.append(
            f"{listed(names)} write{'s' * (len(names) == 1)} outputs into inputs, which are restored between calls, "
            "outside of the clock."
        )
    return found


def functions_alone(report: Report) -> str:
    """That functions have no SOTA; empty where norms are measured as well."""
    alone = bool(report.rows) and all(isinstance(parse_case(row.case), FunctionCase) for row in report.rows)
    return "Functions of a recipe have no SOTA: each is compared with its own history." if alone else ""


def without_sota(report: Report) -> str:
    """Which cases could not be compared with SOTA, why, and what to do; empty where all were."""
    if not report.without_sota:
        return ""
    reasons = [
        f"{one.cases} case{'s' * (one.cases > 1)} ({one_line(one.reason, 300)})"
        for one in report.without_sota[:REASONS]
    ]
    others = sum(one.cases for one in report.without_sota[REASONS:])
    reasons += [f"{others} more for other reasons"] * bool(others)
    remedy = f" To compare them, {report.sota_remedy}." if report.sota_remedy else ""
    return f"Not compared with {report.sota}: {listed(reasons)}.{remedy}"
