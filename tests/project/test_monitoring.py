"""The alert rules and the dashboard for Grafana ask for metrics that the real API has."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from service.app import create_app
from service.domain import states
from tests import needs
from tests.project.test_docs import lines

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
ALERTS = [rule for group in RULES for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana/kernelwatch.json").read_text())
PANELS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS = [*((rule["alert"], rule["expr"]) for rule in ALERTS), *PANELS]
OF_A_SAMPLE = re.compile(r"_(bucket|count|sum)$")
NOT_OURS = {"up", "le"}  # Prometheus adds both
STATES = {
    "kernelwatch_runs": states.RunState,
    "kernelwatch_regressions": states.RegressionState,
    "kernelwatch_outbox_messages": states.OutboxState,
}


@pytest.fixture(scope="module")
def labels_of() -> dict[str, set[str]]:
    """The documented labels by metric; test_docs compares the page with the API."""
    found = [line for line in lines("api.md") if line.heading == "Prometheus metrics"]
    return {line.key: set(re.findall(r"`(\w+)`", line.cells[1])) for line in found}


def asked(expression: str) -> Iterator[tuple[str, str]]:
    """Each metric of an expression with the text of its selector."""
    for name, selector in re.findall(r"\b(kernelwatch_\w+)(?:\{([^}]*)\})?", expression):
        yield OF_A_SAMPLE.sub("", name), selector


def test_each_metric_is_one_of_the_api(state: Path) -> None:
    with TestClient(create_app(), base_url="http://localhost") as client:
        known = {family.name for family in text_string_to_metric_families(client.get("/metrics").text)}
    wanted = {name for _, expression in EXPRESSIONS for name, _ in asked(expression)}
    assert wanted - known == set()
    unwatched = {"kernelwatch_notices", "kernelwatch_notice_messages", "kernelwatch_table_bytes"}
    assert known - wanted == unwatched, "the rest is watched"


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_labels_and_states_are_those_of_the_metric(title: str, expression: str, labels_of: dict[str, set[str]]) -> None:
    known = {label for name, _ in asked(expression) for label in labels_of[name]}
    grouped = {label.strip() for some in re.findall(r"by \(([^)]*)\)", expression) for label in some.split(",")}
    assert grouped - known - NOT_OURS == set()
    for name, selector in asked(expression):
        for label, _, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', selector):
            assert label in labels_of[name]
            if label == "state":
                assert set(value.split("|")) <= set(STATES[name])


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: dict[str, object], labels_of: dict[str, set[str]]) -> None:
    assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert rule["labels"] in ({"severity": "page"}, {"severity": "ticket"})
    annotations = rule["annotations"]
    assert isinstance(annotations, dict)
    assert set(annotations) == {"summary", "remedy"}
    named = set(re.findall(r"\$labels\.(\w+)", str(annotations)))
    assert named <= {label for name, _ in asked(str(rule["expr"])) for label in labels_of[name]}
    for opening, closing in ("()", "{}", "[]"):
        assert str(rule["expr"]).count(opening) == str(rule["expr"]).count(closing)


def test_the_legends_name_labels_of_their_metric(labels_of: dict[str, set[str]]) -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            known = {label for name, _ in asked(target["expr"]) for label in labels_of[name]}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known


def test_prometheus_reads_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        needs.skip("promtool")
    done = subprocess.run(
        [promtool, "check", "config", "--syntax-only", DEPLOY / "prometheus/prometheus.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
