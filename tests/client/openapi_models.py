"""Write `kernelwatch/client/models.py`, the documents of the client, from the OpenAPI of the server.

    python -m tests.client.openapi_models

The client has models of its own because those of the server come with their constructors, and these with the database.
"""

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from service.app import create_app

MODELS = Path(__file__).parents[2] / "kernelwatch" / "client" / "models.py"
API = "/api/v1/"
WIDTH = 120
BY_HAND = ("Page_", "Problem", "HTTPValidationError", "ValidationError")  # the client has its own
PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None", "object": "dict"}
FORMATS = {"date-time": "datetime", "date": "date"}
HEAD = '''"""The documents of the API.  Made from its OpenAPI by `make client-models`; do not edit."""

from datetime import date, datetime
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """Base of all documents.  It keeps fields that only a newer server knows."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

'''

Schema = Mapping[str, Any]


def source(openapi: Schema) -> str:
    """The module's text."""
    schemas = {name: one for name, one in openapi["components"]["schemas"].items() if name in reachable(openapi)}
    parents = {name: parent_of(name, schemas) for name in schemas}
    parts = [HEAD]
    for name in ordered(schemas, parents):
        schema = schemas[name]
        parts.append(choice(name, schema) if "enum" in schema else model(name, schema, parents[name], schemas))
    return formatted("\n\n".join(parts))


def reachable(openapi: Schema) -> set[str]:
    """The schemas that the operations below /api/v1 answer with, but for those written by hand."""
    found = set[str]()
    operations = [found for path, one in openapi["paths"].items() if path.startswith(API) for found in one.values()]
    waiting = [operation["responses"] for operation in operations]
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


def parent_of(name: str, schemas: Mapping[str, Schema]) -> str | None:
    """The document with the most fields of which all are fields of this one, as in RunItem and RunDocument."""
    own = schemas[name].get("properties", {})
    fits = [
        (len(fields), other)
        for other, schema in schemas.items()
        if other != name and (fields := schema.get("properties", {})) and len(fields) < len(own)
        if stem(other) in name and all(own.get(field) == described for field, described in fields.items())
    ]
    return max(fits)[1] if fits else None


def stem(name: str) -> str:
    return re.sub(r"(Item|Document)$", "", name)


def ordered(schemas: Mapping[str, Schema], parents: Mapping[str, str | None]) -> list[str]:
    """Each schema after those that it names."""
    done = dict[str, None]()

    def visit(name: str) -> None:
        if name in done or name not in schemas:
            return
        for other in sorted({*references(schemas[name]), *filter(None, [parents[name]])} - {name}):
            visit(other)
        done[name] = None

    for name in sorted(schemas):
        visit(name)
    return list(done)


def choice(name: str, schema: Schema) -> str:
    """A closed list of values today; a newer server may have more."""
    values = ", ".join(repr(one) for one in schema["enum"])
    return f"{name}: TypeAlias = Literal[{values}] | {kind({'type': schema['type']})}"


def model(name: str, schema: Schema, parent: str | None, schemas: Mapping[str, Schema]) -> str:
    inherited = schemas[parent]["properties"] if parent else {}
    lines = [f"class {name}({parent or 'Document'}):", f'    """{schema.get("description", name)}"""', ""]
    required = schema.get("required", ())
    for field, described in schema.get("properties", {}).items():
        if field in inherited:
            continue
        lines += textwrap.wrap(
            described.get("description", ""), WIDTH - 6, initial_indent="    # ", subsequent_indent="    # "
        )
        default = "" if field in required else f" = {described.get('default')!r}"
        lines.append(f"    {field}: {kind(described)}{default}")
    return "\n".join(lines)


def kind(schema: Schema) -> str:
    """The Python type of a schema."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return str(name)
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " | ".join(dict.fromkeys(kind(one) for one in schema[several]))
    if "const" in schema:
        return f"Literal[{schema['const']!r}]"
    if "enum" in schema:
        return f"Literal[{', '.join(repr(one) for one in schema['enum'])}]"
    match schema.get("type"):
        case "array":
            return f"list[{kind(schema.get('items', {}))}]"
        case "object":
            values = schema.get("additionalProperties", True)
            return f"dict[str, {kind(values) if isinstance(values, Mapping) else 'Any'}]"
        case "string":
            return FORMATS.get(schema.get("format", ""), "str")
        case None:
            return "Any"
        case plain:
            return PLAIN[plain]


def formatted(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(MODELS), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    MODELS.write_text(source(create_app().openapi()))
