"""The client and the server's OpenAPI agree: operations, parameters and documents."""

import inspect
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from kernelwatch.client.calls import Call, Listing
from kernelwatch.client.clients import Resources
from kernelwatch.client.resources import Method, Resource, flow
from tests.client.openapi_models import API, MODELS, references, source
from tests.fakes.api import app_openapi

ROOT = Path(__file__).parents[2]
PREFIX = API.rstrip("/")
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


def test_the_documents_of_the_client_are_current(openapi: dict[str, Any]) -> None:
    assert MODELS.read_text() == source(openapi), "run `make client-models`"
