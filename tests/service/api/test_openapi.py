"""The OpenAPI document: what generated clients are made of."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fakes.api import app_openapi


def schemas(part: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a part of the document."""
    if isinstance(part, dict):
        if isinstance(part.get("type"), str):
            yield part
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from schemas(one)


def operations() -> Iterator[dict[str, Any]]:
    for found in app_openapi()["paths"].values():
        yield from found.values()


def test_an_operation_has_the_name_of_its_endpoint() -> None:
    ids = [one["operationId"] for one in operations()]
    assert len(set(ids)) == len(ids) > 100
    assert {"list_targets", "get_run", "readyz"} <= set(ids)
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", one) for one in ids)


def test_it_says_what_the_server_is_and_what_each_tag_means() -> None:
    document = app_openapi()
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    info = document["info"]
    assert (info["version"], info["license"]["identifier"]) == (project["version"], project["license"])
    used = {tag for one in operations() for tag in one["tags"]}
    assert used == {one["name"] for one in document["tags"] if one["description"]}


def test_every_operation_says_which_key_it_needs() -> None:
    assert [one["operationId"] for one in operations() if "security" not in one] == []


def test_each_line_of_a_batch_and_each_event_has_a_schema() -> None:
    document = app_openapi()
    assert "itemSchema" not in json.dumps(document), "OpenAPI 3.1 does not know it"
    [ingest] = [one for one in operations() if one["operationId"] == "ingest"]
    [events] = [one for one in operations() if one["operationId"] == "follow_run"]
    body = ingest["requestBody"]["content"]["application/x-ndjson"]["schema"]
    assert [one["$ref"].rpartition("/")[2] for one in body["contentSchema"]["anyOf"]] == [
        "BatchLine",
        "MeasurementLine",
    ]
    sent = events["responses"]["200"]["content"]["text/event-stream"]["schema"]
    assert sent["type"] == "string", "a client that takes the stream for JSON cannot read it"
    assert sent["contentSchema"]["properties"]["data"]["contentSchema"] == {"$ref": "#/components/schemas/ProgressItem"}
    names = re.findall('"#/components/schemas/([^"]+)"', json.dumps(document))
    assert set(names) <= document["components"]["schemas"].keys()


def test_every_list_says_what_it_holds() -> None:
    lists = [one for one in schemas(app_openapi()) if one["type"] == "array"]
    assert len(lists) > 100
    assert [one for one in lists if "items" not in one] == []


def test_every_parameter_is_described() -> None:
    assert [
        (one["operationId"], parameter["name"])
        for one in operations()
        for parameter in one.get("parameters", ())
        if not parameter.get("description")
    ] == []
