"""What a forge takes, answers and sends, by its OpenAPI document: checks requests, answers and webhooks.

`github.json` has the operations that kernelwatch uses, and `github_webhooks.json` the webhooks, both reduced from
GitHub's own document by `reduce.py`.  `gitlab.json` and `gitlab_webhooks.json` are written by hand, each schema after
the files of GitLab that its `x-source` names.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

_MOMENT = "2026-11-23T07:00:00Z"
# What a field holds that an answer must have and that no test looks at, by its format or type.
_ADDRESS = "https://forge.test/made-up"
_FORMATS = {
    "date-time": _MOMENT,
    "date": _MOMENT[:10],
    "uri": _ADDRESS,
    "uri-template": _ADDRESS,
    "email": "a@forge.test",
}
_PLAIN: Mapping[str, Any] = {
    "null": None,
    "string": "made up",
    "integer": 1,
    "number": 1,
    "boolean": False,
    "array": [],
}
_NONE = object()
BROKEN: list[str] = []  # what was wrong since the test began: a server answers 500 for it, and the outbox tries again


def broken(what: str) -> AssertionError:
    BROKEN.append(what)
    return AssertionError(what)


def _ensure(fact: bool, what: str) -> None:
    if not fact:
        raise broken(what)


@dataclass(frozen=True, eq=False)
class Contract:
    """The document of one forge."""

    document: Mapping[str, Any]

    def check_request(self, method: str, path: str, query: Mapping[str, str], body: Any) -> None:
        """Raise AssertionError for a parameter or a field that the forge does not know or would refuse."""
        request = f"{method} {path}"
        operation, variables = self._operation(method, path)
        given = {"path": variables, "query": query}
        known = {(one["in"], one["name"]): one for one in operation["parameters"]}
        unknown = [name for name in query if ("query", name) not in known]
        _ensure(not unknown, f"{request} has the unknown parameters {unknown}")
        for (place, name), one in known.items():
            if name in given.get(place, {}):
                self._check(f"{request}: {name}", one["schema"], _read(one["schema"], given[place][name]))
            else:
                _ensure(not one.get("required"), f"{request} lacks the parameter {name}")
        if "requestBody" in operation:
            if body or operation["requestBody"]["required"]:
                self._check(request, _schema(operation["requestBody"]), body)
        else:
            _ensure(not body, f"{request} takes no body")

    def answer(self, method: str, path: str, status: int, said: Any) -> Any:
        """`said` with every other field that the answer must have.  Raises AssertionError for an answer of no forge."""
        if status >= 500:  # anything between us and the forge may answer so
            return said
        responses = self._operation(method, path)[0]["responses"]
        if str(status) in responses:
            schema = _schema(responses[str(status)])
        else:
            _ensure(status >= 400, f"{method} {path} is not answered with {status}")
            schema = self.document["components"]["x-error"]
        if schema is None:
            return said
        whole = self._filled(schema, said)
        self._check(f"the answer {status} to {method} {path}", schema, whole)
        return whole

    def webhook(self, event: str, body: Mapping[str, Any]) -> Any:
        """The body of a webhook with every other field that it must have.

        Raises AssertionError for a body that the forge never sends.
        """
        name = "-".join([event, *([body["action"]] if "action" in body else [])]).replace("_", "-")
        _ensure(name in self.document["webhooks"], f"{name} is not a webhook of the document")
        schema = _schema(self.document["webhooks"][name]["post"]["requestBody"])
        whole = self._filled(schema, body)
        self._check(f"the webhook {name}", schema, whole)
        return whole

    def _operation(self, method: str, path: str) -> tuple[Mapping[str, Any], dict[str, str]]:
        for template, methods in self.document["paths"].items():
            found = re.fullmatch(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(template)), path)
            if found and method.lower() in methods:
                return methods[method.lower()], found.groupdict()
        raise broken(f"{method} {path} is not an operation of the document")

    def _check(self, what: str, schema: Mapping[str, Any], value: Any) -> None:
        faults = _validator(self, json.dumps(schema)).iter_errors(value)
        found = [f"{list(one.instance_path)}: {_short(one.message)}" for one in faults]
        _ensure(not found, f"{what}: {'; '.join(found)}")

    def _filled(self, schema: Mapping[str, Any], value: Any = _NONE) -> Any:
        schema = self._resolved(schema)
        if branches := schema.get("anyOf") or schema.get("oneOf"):
            if value is None or (value is _NONE and {"type": "null"} in branches):
                return None
            kinds = [self._resolved(one) for one in branches if one != {"type": "null"}]
            return self._filled(next((kind for kind in kinds if _knows(kind, value)), kinds[0]), value)
        if value is _NONE and "enum" in schema:
            return None if None in schema["enum"] else schema["enum"][0]
        types = [schema.get("type", "object")] if not isinstance(schema.get("type"), list) else schema["type"]
        if value is _NONE and ("null" in types or types[0] != "object"):
            kind = "null" if "null" in types else types[0]
            return _FORMATS.get(schema.get("format", ""), _PLAIN[kind]) if kind == "string" else _PLAIN[kind]
        if isinstance(value, list) and "items" in schema:
            return [self._filled(schema["items"], one) for one in value]
        if isinstance(value, dict) or value is _NONE:
            return dict(self._fields(schema, {} if value is _NONE else value))
        return value

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in schema:
            schema = self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return schema

    def _fields(self, schema: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        fields = schema.get("properties", {})
        for name in {**dict.fromkeys(schema.get("required", ())), **value}:
            yield name, self._filled(fields[name], value.get(name, _NONE)) if name in fields else value[name]


@cache
def contract(forge: str) -> Contract:
    """The contract of a document: `github`, `github_webhooks`, `gitlab` or `gitlab_webhooks`."""
    return Contract(json.loads((Path(__file__).parent / f"{forge}.json").read_text()))


@cache
def _validator(of: Contract, schema: str) -> jsonschema_rs.Draft202012Validator:
    whole = {"$ref": "#/components/x", "components": {**of.document["components"], "x": json.loads(schema)}}
    return jsonschema_rs.Draft202012Validator(whole, validate_formats=True)


def _schema(content: Mapping[str, Any]) -> Any:
    return content.get("content", {}).get("application/json", {}).get("schema")


def _knows(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether an object of this schema may have all fields of the value."""
    return isinstance(value, dict) and value.keys() <= schema.get("properties", {}).keys()


def _short(message: str) -> str:
    """Without the middle of a long value."""
    return message if len(message) <= 400 else f"{message[:200]} … {message[-200:]}"


def _read(schema: Mapping[str, Any], text: str) -> Any:
    """A parameter as its schema has it."""
    types = {schema.get("type"), *(one.get("type") for one in schema.get("oneOf", ()))}
    if "integer" in types and re.fullmatch(r"-?\d+", text):
        return int(text)
    return {"true": True, "false": False}.get(text, text) if "boolean" in types else text
