"""Reduce GitHub's OpenAPI document to the operations and the webhooks that kernelwatch uses.

    npm pack @octokit/openapi@23.0.2 && tar -xzf octokit-openapi-23.0.2.tgz
    python -m tests.fakes.contracts.reduce package/generated/api.github.com.json

This writes `github.json` and `github_webhooks.json` beside this file.  Texts and examples are left out.  OpenAPI 3.0
becomes 3.1, whose schemas are JSON Schema.  An object has no other fields than those that the document names, so that a
misspelt one is found.
"""

import json
import re
import sys
from collections import Counter
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
WEBHOOKS = (
    "check-run-completed",
    "check-run-requested-action",
    "check-run-rerequested",
    "check-suite-completed",
    "check-suite-rerequested",
    "installation-created",
    "installation-deleted",
    "installation-new-permissions-accepted",
    "installation-repositories-added",
    "installation-repositories-removed",
    "installation-suspend",
    "installation-unsuspend",
    "issue-comment-created",
    "issue-comment-deleted",
    "issue-comment-edited",
    "merge-group-checks-requested",
    "merge-group-destroyed",
    "ping",
    "pull-request-closed",
    "pull-request-edited",
    "pull-request-opened",
    "pull-request-ready-for-review",
    "pull-request-reopened",
    "pull-request-synchronize",
    "push",
)
ERROR = {"$ref": "#/components/schemas/basic-error"}  # of a status that the document does not list
SHARED_ABOVE = 300  # characters of a schema
_PULLS = ("pull-request-webhook", "webhook-pull-request-synchronize")  # schemas that are corrected
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
    schemas = _closure(whole, {"pull-request", *_references([paths, ERROR])})
    _forks_may_be_deleted(schemas["pull-request"])
    return _document(whole, {"paths": paths}, {"x-error": ERROR, "schemas": schemas})


def reduced_webhooks(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The bodies of the webhooks, and the schemas that they need."""
    webhooks = {name: {"post": {"requestBody": _body(whole["x-webhooks"][name]["post"])}} for name in WEBHOOKS}
    schemas = _closure(whole, {*_PULLS, *_references(webhooks)})
    _forks_may_be_deleted(schemas["pull-request-webhook"])
    _forks_may_be_deleted(schemas["webhook-pull-request-synchronize"]["properties"]["pull_request"])
    return _document(whole, {"webhooks": webhooks}, {"schemas": _shared(schemas)})


def _forks_may_be_deleted(pull: Mapping[str, Any]) -> None:
    """What the document says less exactly than GitHub: the repository of a fork that was deleted is null."""
    head = pull["properties"]["head"]["properties"]
    head["repo"] = {"anyOf": [head["repo"], {"type": "null"}]}


def _document(whole: Mapping[str, Any], what: Mapping[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    info = {"title": "GitHub", "version": whole["info"]["version"], "x-source": SOURCE}
    schemas = dict(sorted(components["schemas"].items()))
    return {"openapi": "3.1.0", "info": info, **what, "components": {**components, "schemas": schemas}}


def _closure(whole: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """These schemas and those that they refer to."""
    schemas: dict[str, Any] = {}
    while names:
        name = names.pop()
        schemas[name] = _schema(_merged(whole, whole["components"]["schemas"][name]))
        names |= {*_references(schemas[name])} - schemas.keys()
    return schemas


def _merged(whole: Mapping[str, Any], schema: Any) -> Any:
    """Without `allOf`, whose parts would refuse each other's fields: one object with the fields of all parts."""
    if isinstance(schema, list):
        return [_merged(whole, part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: _merged(whole, part) for name, part in schema.items()}
    parts = [_merged(whole, _resolved(whole, part)) for part in schema.pop("allOf", ())]
    for part in parts:
        fields = {**part.get("properties", {}), **schema.get("properties", {})}
        required = dict.fromkeys([*schema.get("required", ()), *part.get("required", ())])
        schema = {**part, **schema, "properties": fields, "required": [*required]}
    return schema


def _shared(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas, where a large object that occurs several times has a schema of its own."""
    occurrences = Counter(text for schema in schemas.values() for text in _objects(schema))
    repeated = [text for text, count in occurrences.items() if count > 1 and len(text) > SHARED_ABOVE]
    names = {text: f"shared-{number}" for number, text in enumerate(sorted(repeated), 1)}
    whole = {**schemas, **{name: json.loads(text) for text, name in names.items()}}
    return {name: _with_references(schema, names, top=True) for name, schema in whole.items()}


def _objects(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "properties" in schema:
            yield json.dumps(schema)
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _objects(part)


def _with_references(schema: Any, names: Mapping[str, str], *, top: bool = False) -> Any:
    if isinstance(schema, list):
        return [_with_references(part, names) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if not top and (name := names.get(json.dumps(schema))):
        return {"$ref": f"#/components/schemas/{name}"}
    return {key: _with_references(part, names) for key, part in schema.items()}


def _operation(whole: Mapping[str, Any], operation: Mapping[str, Any]) -> dict[str, Any]:
    parameters = [_resolved(whole, one) for one in operation.get("parameters", ())]
    return {
        "parameters": [
            {**{key: one[key] for key in ("name", "in", "required") if key in one}, "schema": _schema(one["schema"])}
            for one in parameters
        ],
        **({"requestBody": _body(operation)} if "requestBody" in operation else {}),
        "responses": {status: _content(_resolved(whole, one)) for status, one in operation["responses"].items()},
    }


def _body(operation: Mapping[str, Any]) -> dict[str, Any]:
    body = operation["requestBody"]
    return {"required": body.get("required", False), **_content(body)}


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


def written(document: Mapping[str, Any]) -> str:
    """As text with a line for each operation, each webhook and each schema."""
    return re.sub(r"\n {4,}", " ", json.dumps(document, indent=1)) + "\n"


if __name__ == "__main__":
    description, here = json.loads(Path(sys.argv[1]).read_text()), Path(__file__).parent
    (here / "github.json").write_text(written(reduced(description)))
    (here / "github_webhooks.json").write_text(written(reduced_webhooks(description)))
