"""SARIF 2.1.0, which code scanning shows in the source: a result for each case that became worse."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from kernelwatch.client.models import RunDocument
from service.commands.views.reports import Judged, baseline_of, judged
from service.domain.states import GateState, Outcome
from service.domain.text import one_line

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_RULES = {
    Outcome.REGRESSION: "A case is slower than at its baseline, or takes more memory.",
    Outcome.INVALID: "A result is wrong, and its times do not count.",
    Outcome.FAILED: "A case does not compile, or fails.",
}
_LEVELS: Mapping[str | None, str] = {
    GateState.FAIL: "error",
    GateState.WARN: "warning",
    GateState.UNDECIDED: "warning",
}


def document(runs: Sequence[RunDocument]) -> dict[str, Any]:
    """A log with one analysis for each run; code scanning keeps those of a target and a device together."""
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [_analysis(run) for run in runs]}


def _analysis(run: RunDocument) -> dict[str, Any]:
    rules = [{"id": rule.value, "shortDescription": {"text": text}} for rule, text in _RULES.items()]
    driver = {"name": "kernelwatch", "rules": rules}
    return {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"kernelwatch/{run.target}/{run.device}/"},
        "results": list(_results(run)),
        "columnKind": "unicodeCodePoints",
        "properties": {"revision": run.revision, "baseline": run.baseline, "gate": run.gate.state, "url": run.url},
    }


def _results(run: RunDocument) -> Iterator[dict[str, Any]]:
    rules = [*_RULES]
    for row in judged(run):
        verdict = row.verdict
        if verdict.outcome not in rules or verdict.known_before or verdict.quarantined:
            continue
        rule = Outcome(verdict.outcome)
        yield {
            "ruleId": rule.value,
            "ruleIndex": rules.index(rule),
            "level": _LEVELS.get(verdict.gate, "note"),
            "message": {"text": _message(run, row)},
            "locations": [_location(row)],
            "partialFingerprints": {"series/v1": f"{run.device} {verdict.provider} {verdict.case} {rule}"},
            "hostedViewerUri": run.url,
        }


def _message(run: RunDocument, row: Judged) -> str:
    verdict = row.verdict
    change = f"{verdict.change} than {baseline_of(run, row)}: " if verdict.ratio is not None else ""
    return one_line(f"{verdict.case} of {verdict.provider} on {run.device}: {change}{verdict.summary}", 1000)


def _location(row: Judged) -> dict[str, Any]:
    """Where the code is that differs.  GitHub refuses a file in which a result has no physical location, and shows one
    in a file that does not exist without its lines: so a case whose code is not known is at its own name.
    """
    source, case = row.verdict.source, row.verdict.case
    if source is None:
        place: dict[str, Any] = {"artifactLocation": {"uri": quote(case)}, "region": {"startLine": 1}}
    else:
        first, last = source.changed or (source.line, source.line)
        place = {"artifactLocation": {"uri": quote(source.file)}, "region": {"startLine": first, "endLine": last}}
    return {"physicalLocation": place, "logicalLocations": [{"fullyQualifiedName": case, "kind": "function"}]}
