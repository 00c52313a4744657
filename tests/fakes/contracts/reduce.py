"""Reduce GitHub's OpenAPI document to the operations that kernelwatch uses.

    npm pack @octokit/openapi@23.0.2 && tar -xzf octokit-openapi-23.0.2.tgz
    python -m tests.fakes.contracts.reduce package/generated/api.github.com.json > tests/fakes/contracts/github.json

Texts and examples are left out.  OpenAPI 3.0 becomes 3.1, whose schemas are JSON Schema.  An object has no other
fields than those that the document names, so that a misspelt one is found.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SOURCE = "npm package @octokit/openapi 23.0.2, made from github/rest-api-description; MIT License, (c) GitHub, Octokit"
USED = (
    "get /app",
    "get /repos/{owner}/{repo}/check-runs/{check_run_id}",
    "get /repos/{owner}/{repo}/check-runs/{check_run_id}/annotations",
    "get /repos/{owner}/{repo}/collaborators/{username}/permission",
    "get /repos/{owner}/{repo}/commits/{ref}/check-runs",
    "get /repos/{owner}/{repo}/installation",
    "get /repos/{owner}/{repo}/issues/comments/{comment_id}",
    "get /repos/{owner}/{repo}/issues/{issue_number}/comments",
    "get /repos/{owner}/{repo}/pulls/{pull_number}",
    "get /user",
    "patch /repos/{owner}/{repo}/check-runs/{check_run_id}",
    "patch /repos/{owner}/{repo}/issues/comments/{comment_id}",
    "post /app/installations/{installation_id}/access_tokens",
    "post /repos/{owner}/{repo}/check-runs",
    "post /repos/{owner}/{repo}/issues/comments/{comment_id}/reactions",
    "post /repos/{owner}/{repo}/issues/{issue_number}/comments",
    "post /repos/{owner}/{repo}/statuses/{sha}",
)
ERROR = {"$ref": "#/components/schemas/basic-error"}  # of a status that the document does not list
_SEVERAL = ("allOf", "anyOf", "oneOf")
_KEPT = {
    *("$ref", "type", "format", "enum", "pattern", "required", "minimum", "maximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "uniqueItems", "additionalProperties", "properties", "items", *_SEVERAL),
}


def reduced(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The paths of the operations, and the schemas that they need."""
    paths: dict[str, Any] = {}
    for used in USED:
        method, path = used.split()
        paths.setdefault(path, {})[method] = _operation(whole, whole["paths"][path][method])
    schemas: dict[str, Any] = {}
    left = {"pull-request", *_references([paths, ERROR])}
    while left:
        name = left.pop()
        schemas[name] = _schema(whole["components"]["schemas"][name])
        left |= {*_references(schemas[name])} - schemas.keys()
    # What the document says less exactly than GitHub: the repository of a fork that was deleted is null.
    head = schemas["pull-request"]["properties"]["head"]["properties"]
    head["repo"] = {"anyOf": [head["repo"], {"type": "null"}]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "GitHub", "version": whole["info"]["version"], "x-source": SOURCE},
        "paths": paths,
        "components": {"x-error": ERROR, "schemas": dict(sorted(schemas.items()))},
    }


def _operation(whole: Mapping[str, Any], operation: Mapping[str, Any]) -> dict[str, Any]:
    parameters = [_resolved(whole, one) for one in operation.get("parameters", ())]
    body = operation.get("requestBody")
    return {
        "parameters": [
            {**{key: one[key] for key in ("name", "in", "required") if key in one}, "schema": _schema(one["schema"])}
            for one in parameters
        ],
        **({"requestBody": {"required": body.get("required", False), **_content(body)}} if body else {}),
        "responses": {status: _content(_resolved(whole, one)) for status, one in operation["responses"].items()},
    }


def _content(body: Mapping[str, Any]) -> dict[str, Any]:
    found = body.get("content", {}).get("application/json")
    return {"content": {"application/json": {"schema": _schema(found["schema"])}}} if found else {}


def _resolved(whole: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in part:
        return part
    found: Any = whole
    for name in part["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    resolved: Mapping[str, Any] = found
    return resolved


def _schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in schema.items() if name in _KEPT}
    kept |= {name: [_schema(one) for one in kept[name]] for name in _SEVERAL if name in kept}
    kept |= {
        name: _schema(kept[name]) for name in ("items", "additionalProperties") if isinstance(kept.get(name), dict)
    }
    if "properties" in kept:
        kept["properties"] = {name: _schema(one) for name, one in kept["properties"].items()}
        kept.setdefault("additionalProperties", False)
    return _or_null(kept) if schema.get("nullable") else kept


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if "type" not in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    values = {"enum": list(dict.fromkeys([*schema["enum"], None]))} if "enum" in schema else {}
    return {**schema, "type": [schema["type"], "null"], **values}


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(named := part.get("$ref"), str):
            yield named.rpartition("/")[2]
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from _references(one)


if __name__ == "__main__":
    indented = json.dumps(reduced(json.loads(Path(sys.argv[1]).read_text())), indent=1)
    print(re.sub(r"\n {4,}", " ", indented))  # a line for each operation and each schema
