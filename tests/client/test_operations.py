"""The client and the server's OpenAPI agree: operations, parameters and documents."""

import inspect
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from fastapi.encoders import jsonable_encoder
from pydantic import TypeAdapter

from kernelwatch.client import models
from kernelwatch.client.calls import Call, Listing
from kernelwatch.client.clients import Resources
from kernelwatch.client.resources import Method, Resource, flow
from tests.fakes.api import app_openapi

ROOT = Path(__file__).parents[2]
API = "/api/v1/"
PREFIX = API.rstrip("/")
BY_HAND = ("Page_", "Problem", "HTTPValidationError", "ValidationError")  # not results of operations
LEFT_OUT: Mapping[str, str] = {}  # operations without a method, and why


@pytest.fixture(scope="module")
def openapi() -> dict[str, Any]:
    return app_openapi()


def resources() -> Iterator[tuple[str, type[Resource[Any]]]]:
    client = Resources(driver=None)  # type: ignore  # nothing is sent
    yield from ((name, type(one)) for name, one in vars(client).items())


def described() -> dict[str, tuple[Call[Any], bool | None]]:
    """Every call that the client can describe, all parameters given, by the method's name; is a list paged?"""
    found = {}
    for name, kind in resources():
        for method, one in vars(kind).items():
            if isinstance(one, Method) and not isinstance(one, flow):
                made = one.describe(None, **arguments(one.describe))
                call = made if isinstance(made, Call) else made.call
                found[f"{name}.{method}"] = (call, made.paged if isinstance(made, Listing) else None)
    return found


def arguments(describe: Any) -> dict[str, Any]:
    hints = get_type_hints(describe)
    return {name: example(hints[name]) for name in list(inspect.signature(describe).parameters)[1:]}


EXAMPLES = {"bool": True, "Sequence": ["a"], "datetime": datetime(2027, 1, 1, tzinfo=UTC), "float": 1.5, "int": 1}


def example(hint: Any) -> Any:
    """A value that is not None."""
    return next((value for word, value in EXAMPLES.items() if word in str(hint)), "a")


CALLS = described()


def operations(openapi: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{method.upper()} {path.removeprefix(PREFIX)}": operation
        for path, found in openapi["paths"].items()
        if path.startswith(API)
        for method, operation in found.items()
    }


def test_every_operation_has_a_method(openapi: dict[str, Any]) -> None:
    covered = {f"{call.method} {call.template}" for call, _ in CALLS.values()}
    assert covered == operations(openapi).keys() - LEFT_OUT.keys()


@pytest.mark.parametrize("method", CALLS)
def test_a_method_has_the_parameters_of_its_operation(openapi: dict[str, Any], method: str) -> None:
    call, paged = CALLS[method]
    known = operations(openapi)[f"{call.method} {call.template}"].get("parameters", ())
    given = {"query": {*call.params, *(("cursor", "limit") if paged else ())}, "path": {*call.variables}}
    for place, names in given.items():
        assert names == {one["name"] for one in known if one["in"] == place}


@pytest.mark.parametrize("method", [method for method, (call, _) in CALLS.items() if call.method != "GET"])
def test_a_method_sends_the_fields_of_its_operation(openapi: dict[str, Any], method: str) -> None:
    call, _ = CALLS[method]
    body = operations(openapi)[f"{call.method} {call.template}"].get("requestBody")
    if body is None:
        assert call.fields is None
    elif "application/json" not in body["content"]:
        assert call.body_headers["content-type"] in body["content"]
    else:
        name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        assert {*(call.fields or ())} == openapi["components"]["schemas"][name]["properties"].keys()


@pytest.mark.parametrize("method", CALLS)
def test_a_method_returns_the_document_of_its_operation(openapi: dict[str, Any], method: str) -> None:
    call, _ = CALLS[method]
    operation = operations(openapi)[f"{call.method} {call.template}"]
    good = [one for status, one in operation["responses"].items() if status.startswith("2")]
    content = next((one["content"] for one in good if "content" in one), {})
    assert call.accept in content or call.read(b"") is None
    kind = getattr(call.read, "kind", None)
    if kind is not None:
        assert next(references(content[call.accept])) == re.sub(r"[\[\]]", "_", kind.__name__)


def test_every_method_is_documented() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (`.*`) \|$", (ROOT / "docs" / "client.md").read_text(), re.MULTILINE)
    documented = {name: re.findall(r"`(\w+)`", methods) for name, methods in rows}
    assert documented == {
        name: [method for method in vars(kind) if not method.startswith("_")] for name, kind in resources()
    }


def reachable(openapi: Mapping[str, Any]) -> set[str]:
    """The schemas that the operations answer with."""
    found = set[str]()
    waiting: list[Any] = [operation["responses"] for operation in operations(openapi).values()]
    while waiting:
        for name in references(waiting.pop()):
            if name not in found:
                found.add(name)
                waiting.append(openapi["components"]["schemas"][name])
    return {name for name in found if not name.startswith(BY_HAND)}


def references(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"].rpartition("/")[2]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def test_the_documents_of_the_client_are_those_of_the_openapi(openapi: dict[str, Any]) -> None:
    """All are there by name, the enumerations too, with the same fields, values and descriptions."""
    names = sorted(reachable(openapi))
    inputs = [(name, "serialization", TypeAdapter(getattr(models, name))) for name in names]
    _, described = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")
    assert len(names) > 100
    assert jsonable_encoder(described["$defs"], exclude_none=True) == {
        name: openapi["components"]["schemas"][name] for name in names
    }
