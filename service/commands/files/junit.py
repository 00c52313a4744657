"""JUnit XML, which CI systems show as tests: a case of a run is a test, and fails where it fails the gate."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from kernelwatch.client.models import RunDocument
from service.commands.views.reports import Judged, baseline_of, judged
from service.domain.states import GateState, Outcome, RunState
from service.domain.text import one_line, printable

_ELEMENTS: Mapping[str | None, str] = {GateState.FAIL: "failure", GateState.UNDECIDED: "skipped"}
_NOT_IN_XML = re.compile("[^\t\n\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class _Test:
    """`result` is the element that says how it ended; a test that passes has none."""

    classname: str
    name: str
    result: str | None
    kind: str
    message: str
    details: str
    seconds: float | None = None


def document(runs: Sequence[RunDocument]) -> str:
    """The runs as test suites, by the schema of Jenkins (junit-10.xsd)."""
    suites = [(run, list(_tests(run))) for run in runs]
    root = Element("testsuites", {"name": "kernelwatch", **_totals([one for _, tests in suites for one in tests])})
    for run, tests in suites:
        _add_suite(root, run, tests)
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, "unicode")


def _totals(tests: Sequence[_Test]) -> dict[str, str]:
    seconds = sum(one.seconds or 0.0 for one in tests)
    failures = sum(one.result == "failure" for one in tests)
    return {"tests": str(len(tests)), "failures": str(failures), "errors": "0", "time": f"{seconds:.9f}"}


def _add_suite(root: Element, run: RunDocument, tests: Sequence[_Test]) -> None:
    skipped = sum(one.result == "skipped" for one in tests)
    suite = SubElement(
        root, "testsuite", {"name": f"{run.target} on {run.device}", **_totals(tests), "skipped": str(skipped)}
    )
    if run.finished_at is not None:
        suite.set("timestamp", run.finished_at.strftime("%Y-%m-%dT%H:%M:%S"))
    if run.worker is not None:
        suite.set("hostname", _clean(run.worker))
    properties = SubElement(suite, "properties")
    values = {"revision": run.revision, "baseline": run.baseline or "", "url": run.url, "gate": run.gate.state}
    for name, value in values.items():
        SubElement(properties, "property", {"name": name, "value": _clean(value)})
    for test in tests:
        _add_test(suite, test)


def _add_test(suite: Element, test: _Test) -> None:
    element = SubElement(suite, "testcase", {"classname": _clean(test.classname), "name": _clean(test.name)})
    if test.seconds is not None:
        element.set("time", f"{test.seconds:.9f}")
    if test.result is not None:
        result = SubElement(element, test.result, {"type": test.kind, "message": _clean(test.message)})
        result.text = _clean(test.details)
    elif test.details:
        SubElement(element, "system-out").text = _clean(test.details)


def _tests(run: RunDocument) -> Iterator[_Test]:
    rows = judged(run) if run.state == RunState.DONE else []
    for row in rows:
        yield _of_case(run, row)
    for one in run.unsupported:
        yield _Test(_classname(run, one.provider), one.case, "skipped", "unsupported", one_line(one.reason), "")
    if run.gate.state not in {row.verdict.gate for row in rows}:  # nothing was compared, or the run has no result
        details = "\n".join(filter(None, (run.headline, run.log, run.url)))
        yield _Test(_classname(run), "run", _ELEMENTS.get(run.gate.state), run.state, one_line(run.headline), details)


def _of_case(run: RunDocument, row: Judged) -> _Test:
    verdict = row.verdict
    undecided = verdict.outcome in (Outcome.INCONCLUSIVE, Outcome.REMOVED)
    result = _ELEMENTS.get(verdict.gate) or ("skipped" if undecided else None)
    warning = ", of which the gate warns" if verdict.gate == GateState.WARN else ""
    times = f"{row.taken(row.head)}; {baseline_of(run, row)} took {row.taken(row.baseline)}"
    details = "\n".join(filter(None, (f"{row.outcome}{warning}", verdict.change, verdict.summary, times, run.url)))
    message = one_line(f"{verdict.change}: {verdict.summary}" if verdict.change else verdict.summary)
    is_time = row.head is not None and row.head.unit == "us"
    seconds = row.head.median / 1e6 if is_time and row.head and row.head.median is not None else None
    return _Test(_classname(run, verdict.provider), verdict.case, result, verdict.outcome, message, details, seconds)


def _classname(run: RunDocument, provider: str = "kernelwatch") -> str:
    return f"{run.target}.{run.device}.{provider}"


def _clean(text: str) -> str:
    """What a repository wrote, as text that XML can hold."""
    return _NOT_IN_XML.sub("", printable(text))
