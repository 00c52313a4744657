"""Results of runs as files of other tools: valid by their schemas, and true to the run."""

import json
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import jsonschema_rs
import pytest

from kernelwatch.client.models import RunDocument, TargetDocument
from service.commands import files
from service.commands.files import benchmarks, histories, junit, sarif
from service.commands.output.formats import Format, RunFormat
from tests.fakes.api import Api
from tests.fakes.documents import CASE, measurement, run, verdict
from tests.shell import attempt

BLOCKS = {"state": "fail", "exit_code": 1, "check_status": "completed", "conclusion": "failure"}
FAILS = {**BLOCKS, "commit_status": "failure", "reasons": []}
SOURCE = {"file": "norms/rms kernel.py", "line": 41, "first_line": 40, "last_line": 60, "changed": [44, 46]}
WIDE, NOISY, OLD = "rmsnorm.fwd.8192x8192.bf16", "rmsnorm.fwd.1x8.fp32", "rmsnorm.fwd.2x8.fp32"


def judged() -> RunDocument:
    """A regression that fails the gate and whose code is known, one that is warned of, and cases that are neither."""
    return run(
        verdict("regression", 1.2, change="20.0 % slower", gate="fail", source=SOURCE, summary="it spills\x1b[2J\x00"),
        verdict("regression", 1.1, WIDE, change="10.0 % slower", gate="warn", summary="more traffic"),
        verdict("inconclusive", 1.01, NOISY, gate="undecided", summary="too noisy"),
        verdict("invalid", None, OLD, known_before=True, gate="warn", summary="dweight is wrong"),
        verdict("steady", case=f"{CASE}.memory", metric="memory"),
        measurements=(
            measurement(median=42.0),
            measurement("parent", 35.0),
            measurement(median=66.0, case=WIDE),
            measurement(median=1.2, case=NOISY),
            {**measurement(median=2e6, case=f"{CASE}.memory"), "unit": "bytes"},
            {**measurement(case=OLD), "state": "invalid", "median": None},
        ),
        unsupported=[{"provider": "norms", "case": "layernorm.fwd.8x8.bf16", "reason": "no bias"}],
        gate=FAILS,
    )


# -- JUnit

# By junit-10.xsd of Jenkins: what an element may have, and what it must have.
ATTRIBUTES: dict[str, tuple[set[str], set[str]]] = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, set()),
    "testsuite": (
        {"name", "tests", "failures", "errors", "time", "skipped", "timestamp", "hostname"},
        {"name", "tests", "failures", "errors"},
    ),
    "properties": (set(), set()),
    "property": ({"name", "value"}, {"name", "value"}),
    "testcase": ({"name", "time", "classname"}, {"name"}),
    "failure": ({"type", "message"}, set()),
    "skipped": ({"type", "message"}, set()),
    "system-out": (set(), set()),
}
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase"},
    "properties": {"property"},
    "testcase": {"failure", "skipped", "system-out"},
}


def suites_of(*runs: RunDocument) -> Element:
    return valid(fromstring(junit.document(runs)))


def valid(root: Element) -> Element:
    """The root, if the XML is valid and its sums are right."""
    for element in root.iter():
        may, must = ATTRIBUTES[element.tag]
        assert must <= {*element.keys()} <= may, element.tag
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set()), element.tag
    for suite in (root, *root):
        tests = list(suite.iter("testcase"))
        sums = (len(tests), len(list(suite.iter("failure"))), 0)
        assert tuple(int(suite.attrib[name]) for name in ("tests", "failures", "errors")) == sums
        taken = sum(float(test.get("time", 0)) for test in tests)
        assert float(suite.attrib["time"]) == pytest.approx(taken, abs=1e-8)
    return root


def results_of(root: Element) -> dict[str, str | None]:
    """How each test ended, by name."""
    ends = ("failure", "skipped")
    return {
        test.attrib["name"]: next((child.tag for child in test if child.tag in ends), None)
        for test in root.iter("testcase")
    }


def test_a_case_fails_where_it_fails_the_gate() -> None:
    root = suites_of(judged())
    assert results_of(root) == {
        CASE: "failure",
        WIDE: None,
        NOISY: "skipped",
        OLD: None,
        f"{CASE}.memory": None,
        "layernorm.fwd.8x8.bf16": "skipped",
    }
    [failure] = root.iter("failure")
    assert failure.attrib == {"type": "regression", "message": "20.0 % slower: it spills"}
    assert "42.0 µs; 0000000000 took 35.0 µs" in str(failure.text)
    times = {test.attrib["name"]: test.get("time") for test in root.iter("testcase")}
    assert (times[CASE], times[f"{CASE}.memory"]) == ("0.000042000", None), "seconds, and of times alone"
    [warned] = [test for test in root.iter("testcase") if test.attrib["name"] == WIDE]
    assert "regression, of which the gate warns" in str(warned[0].text)


@pytest.mark.parametrize(
    ("state", "gate", "result"),
    [("failed", "fail", "failure"), ("queued", "undecided", "skipped"), ("skipped", "pass", None)],
)
def test_a_run_without_cases_is_one_test(state: str, gate: str, result: str | None) -> None:
    log = "error: expected ;\x07" if gate == "fail" else None
    root = suites_of(run(state=state, finished_at=None, worker=None, log=log, gate={**FAILS, "state": gate}))
    assert results_of(root) == {"run": result}
    assert ("error: expected ;" in junit.document([run(state=state, log=log, gate={**FAILS, "state": gate})])) == (
        log is not None
    )


def test_a_gate_that_no_case_explains_is_a_test_too() -> None:
    root = suites_of(run(verdict("removed", None), gate={**FAILS, "state": "undecided"}))
    assert results_of(root) == {CASE: "skipped", "run": "skipped"}


def test_each_run_is_a_suite() -> None:
    root = suites_of(judged(), run(verdict(), device="b200"))
    assert [suite.attrib["name"] for suite in root] == ["norms on h200", "norms on b200"]


# -- SARIF

TEXT = {"type": "string", "minLength": 1}
URI = {"type": "string", "format": "uri-reference"}


def an_object(required: str, **more: Any) -> dict[str, Any]:
    """The schema of an object that has the `required` fields, and of the others at most those in `more`."""
    names = required.split()
    return {"type": "object", "required": names, "properties": more, "additionalProperties": False}


def a_list(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


# SARIF 2.1.0 as far as it is used, with the locations that GitHub requires.
LINE = {"type": "integer", "minimum": 1}
LINES = an_object("startLine", startLine=LINE, endLine=LINE)
PLACE = an_object("artifactLocation region", artifactLocation=an_object("uri", uri=URI), region=LINES)
RESULT = an_object(
    "message ruleId locations",
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": 0},
    level={"enum": ["none", "note", "warning", "error"]},
    message=an_object("text", text=TEXT),
    hostedViewerUri={"type": "string", "format": "uri"},
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
    locations=a_list(
        an_object(
            "physicalLocation",
            physicalLocation=PLACE,
            logicalLocations=a_list(an_object("", fullyQualifiedName=TEXT, kind=TEXT)),
        ),
        minItems=1,
    ),
)
RULE = an_object("id", id=TEXT, shortDescription=an_object("text", text=TEXT))
DRIVER = an_object("name", name=TEXT, rules=a_list(RULE, uniqueItems=True))
ANALYSIS = an_object(
    "tool results",
    tool=an_object("driver", driver=DRIVER),
    automationDetails=an_object("", id=TEXT),
    results=a_list(RESULT),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    properties={"type": "object"},
)
SARIF = an_object("version runs", **{"$schema": URI, "version": {"const": "2.1.0"}, "runs": a_list(ANALYSIS)})


def results_in(document: dict[str, Any]) -> list[dict[str, Any]]:
    jsonschema_rs.validator_for(SARIF, validate_formats=True).validate(document)
    found = list[dict[str, Any]]()
    for analysis in document["runs"]:
        rules = [rule["id"] for rule in analysis["tool"]["driver"]["rules"]]
        assert all(rules[one["ruleIndex"]] == one["ruleId"] for one in analysis["results"])
        found += analysis["results"]
    return found


def test_a_result_points_to_the_code_of_its_cause() -> None:
    slow, wide = results_in(sarif.document([judged()]))
    assert (slow["level"], wide["level"]) == ("error", "warning")
    place = slow["locations"][0]["physicalLocation"]
    assert place == {
        "artifactLocation": {"uri": "norms/rms%20kernel.py"},
        "region": {"startLine": 44, "endLine": 46},
    }
    assert slow["message"]["text"] == f"{CASE} of norms on h200: 20.0 % slower than 0000000000: it spills"
    assert wide["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == WIDE


def test_nothing_worse_is_no_result() -> None:
    assert results_in(sarif.document([run(verdict()), run(state="queued")])) == []


def test_runs_of_two_devices_do_not_replace_each_other() -> None:
    document = sarif.document([judged(), run(verdict(), device="b200")])
    assert len({one["automationDetails"]["id"] for one in document["runs"]}) == 2


# -- benchmarks

NUMBER = {"type": "number"}
METRIC = an_object("value", value=NUMBER, lower_value=NUMBER, upper_value=NUMBER)
BENCHER = {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": METRIC}}
ENTRY = an_object("name value unit", value=NUMBER, name=TEXT, unit=TEXT, range=TEXT, extra=TEXT)


def test_benchmarks_are_the_medians_of_the_revision() -> None:
    found = list(benchmarks.of_run(judged()))
    assert [(one.case, one.unit, one.median) for one in found] == [
        (CASE, "us", 42.0),
        (WIDE, "us", 66.0),
        (NOISY, "us", 1.2),
        (f"{CASE}.memory", "bytes", 2e6),
    ]
    assert (found[0].low, found[0].high) == (pytest.approx(42 * 1.19 / 1.2), pytest.approx(42 * 1.21 / 1.2))
    entries = [benchmarks.of_action(one) for one in found]
    jsonschema_rs.validate(a_list(ENTRY), entries)
    assert (entries[0]["name"], entries[0]["range"]) == (f"h200 norms {CASE}", "41.65 to 42.35")
    metrics = benchmarks.metric_format(found)
    jsonschema_rs.validate(BENCHER, metrics)
    assert metrics[f"norms {CASE}"]["latency"]["value"] == 42_000.0, "nanoseconds"
    memory = metrics[f"norms {CASE}.memory"]["memory"]
    assert memory["lower_value"] < memory["value"] == 2e6 < memory["upper_value"]


def test_the_difference_of_counts_is_no_interval() -> None:
    case = f"{CASE}.kernels"
    counted = {**measurement(median=3.0, case=case), "unit": "count", "metric": "kernels"}
    [one] = benchmarks.of_run(run(verdict("regression", 1.01, case), measurements=(counted,)))
    assert (one.median, one.low, one.high) == (3.0, None, None)
    assert benchmarks.metric_format([one]) == {f"norms {case}": {"kernels": {"value": 3.0}}}


# -- the command


def test_reports_of_a_server_are_valid_in_every_format(seeded: Any) -> None:
    for name in ("slow", "wrong", "broken", "docs"):
        document = Api().get(f"/runs/{seeded.runs[name]}").json()
        text = {form: write() for form, write in files.texts([RunDocument.model_validate(document)], str).items()}
        of_parent = [one for one in document["verdicts"] if one["baseline_kind"] == "parent"]
        root = valid(fromstring(text[RunFormat.JUNIT]))
        failing = sum(one["gate"] == "fail" for one in of_parent)
        assert len(list(root.iter("failure"))) == (failing or document["gate"]["state"] == "fail"), name
        news = [one for one in of_parent if not (one["known_before"] or one["quarantined"])]
        alarms = sum(one["outcome"] in ("regression", "invalid", "failed") for one in news)
        assert len(results_in(json.loads(text[RunFormat.SARIF]))) == alarms, name
        heads = [one for one in document["measurements"] if one["role"] == "head" and one["state"] == "measured"]
        entries = json.loads(text[RunFormat.GITHUB_ACTION_BENCHMARK])
        jsonschema_rs.validate(a_list(ENTRY), entries)
        assert [entry["value"] for entry in entries] == [one["median"] for one in heads]
        metrics = json.loads(text[RunFormat.BENCHER])
        jsonschema_rs.validate(BENCHER, metrics)
        assert len(metrics) == len(heads)


def test_the_command_prints_them(seeded: Any) -> None:
    found = RunDocument.model_validate(Api().get(f"/runs/{seeded.runs['slow']}").json())
    for form, write in files.texts([found], str).items():
        if form != Format.MD:
            assert attempt("report", found.id, "--format", form).stdout == write().rstrip("\n") + "\n"


# -- the history of a target

COMMIT = an_object(
    "author committer id message timestamp url",
    author=an_object("name username", name=TEXT, username=TEXT),
    committer=an_object("name username", name=TEXT, username=TEXT),
    id=TEXT,
    message=TEXT,
    timestamp={"type": "string", "format": "date-time"},
    url=TEXT,
)
SUITE = an_object(
    "commit date tool benches",
    commit=COMMIT,
    date={"type": "integer"},
    tool={"const": "customSmallerIsBetter"},
    benches=a_list(ENTRY),
)
DATA = an_object(
    "lastUpdate repoUrl entries",
    lastUpdate={"type": "integer"},
    repoUrl=TEXT,
    entries={"type": "object", "additionalProperties": a_list(SUITE)},
)
INSTANT = {"type": "string", "format": "date-time"}
REPORT = an_object(
    "branch hash testbed start_time end_time results settings",
    branch=TEXT,
    hash={"type": "string", "pattern": "^[0-9a-f]{40}$"},
    testbed=TEXT,
    start_time=INSTANT,
    end_time=INSTANT,
    results=a_list(TEXT),
    settings=an_object("adapter", adapter={"const": "json"}),
)


def medians(seeded: Any) -> dict[tuple[str, str], dict[str, float]]:
    """The medians of each revision of the mainline on each device, by case, as its newest run has them."""
    runs = [Api().get(f"/runs/{number}").json() for number in sorted(seeded.runs.values())]
    ordinals = {one["sha"]: one["ordinal"] for one in Api().get("/targets/norms/revisions?limit=100").json()["items"]}
    found = dict[tuple[str, str], dict[str, float]]()
    for one in runs:
        heads = [each for each in one["measurements"] if each["role"] == "head" and each["state"] == "measured"]
        if heads and one["target"] == "norms" and ordinals.get(one["revision"]) is not None:
            found[one["revision"], one["device"]] = {each["case"]: each["median"] for each in heads}
    return found


def test_a_history_goes_on_in_github_action_benchmark(seeded: Any) -> None:
    data = json.loads(attempt("export", "history", "norms").stdout)
    jsonschema_rs.validator_for(DATA, validate_formats=True).validate(data)
    found = {
        (one["commit"]["id"], suite.removeprefix("norms on ")): {
            bench["name"].rpartition(" ")[2]: bench["value"] for bench in one["benches"]
        }
        for suite, revisions in data["entries"].items()
        for one in revisions
    }
    assert found == medians(seeded)
    assert len(found) > 3
    dates = [one["date"] for one in data["entries"]["norms on h200"]]
    assert dates == sorted(dates)
    assert data["lastUpdate"] == max(one["date"] for revisions in data["entries"].values() for one in revisions)


@pytest.mark.parametrize(("kind", "path"), [("github", "/commit/"), ("gitlab", "/-/commit/"), (None, "/commit/")])
def test_a_commit_of_a_history_leads_to_its_page_on_the_forge(seeded: Any, kind: str | None, path: str) -> None:
    shown = Api().get("/targets/norms").json() | {"forge_kind": kind, "location": "https://forge.test/acme/norms.git"}
    at = {"sha": "abc", "ordinal": 1, "subject": "", "author": "", "committed_at": "2026-11-29T00:00:00Z"}
    revision = histories.MeasuredRevision(histories.RevisionRow.model_validate(at), "h200", ())
    data = histories.data_of_action(TargetDocument.model_validate(shown), [revision])
    [[entry]] = data["entries"].values()
    assert entry["commit"]["url"] == f"https://forge.test/acme/norms{path}abc"


def test_a_history_goes_on_in_bencher(seeded: Any, tmp_path: Path) -> None:
    path = tmp_path / "reports.ndjson"
    options = ("--format", "bencher", "--device", "h200", "--output", path)
    assert attempt("export", "history", "norms", *options).exit_code == 0
    reports = [json.loads(line) for line in path.read_text().splitlines()]
    jsonschema_rs.validator_for(a_list(REPORT), validate_formats=True).validate(reports)
    found = dict[tuple[str, str], dict[str, float]]()
    for one in reports:
        [metrics] = map(json.loads, one["results"])
        jsonschema_rs.validate(BENCHER, metrics)
        values = {name.rpartition(" ")[2]: measures["latency"]["value"] / 1000 for name, measures in metrics.items()}
        found[one["hash"], one["testbed"]] = pytest.approx(values)
    assert found == {place: values for place, values in medians(seeded).items() if place[1] == "h200"}


def test_a_history_needs_a_known_target() -> None:
    assert "No target nothing." in str(attempt("export", "history", "nothing", "--format", "bencher").exception)


def test_other_commands_have_the_formats_of_all() -> None:
    assert {*Format} < {*RunFormat}
    assert attempt("queue", "--format", "junit").exit_code == 2
