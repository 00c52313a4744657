"""Every address of the app: its routes that answer GET, with values in the places of their parameters."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI, params
from fastapi.dependencies.utils import get_flat_params

Values = Mapping[str, tuple[str, ...]]  # by parameter
# Pages of other sites, and a stream without end.
NOT_ASKED = {"/sign-in/{name}", "/sign-in/{name}/callback", "/api/v1/runs/{run_id}/events"}


def addresses(app: FastAPI, values: Values) -> Iterator[str]:
    """Each path with its values, then also with each value of each parameter of its query."""
    for path, route in _routes(app.router):
        if path in NOT_ASKED:
            continue
        dependant = getattr(route, "dependant", None)
        every = get_flat_params(dependant) if dependant else []
        asked = [one for one in every if isinstance(one.field_info, params.Query)]
        required = [f"{one.alias}={values[one.alias][0]}" for one in asked if one.field_info.is_required()]
        others = [one.alias for one in asked if not one.field_info.is_required() and one.alias in values]
        for filled in with_values(path, {**values, **_choices(path, every, values)}):
            yield f"{filled}?{'&'.join(required)}"
            for name in others:
                yield from (f"{filled}?{'&'.join([*required, f'{name}={value}'])}" for value in values[name])


def _routes(router: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every route of an app that answers GET, by its path."""
    for one in router.routes:
        inner = getattr(one, "original_router", None)
        if inner is not None:
            yield from _routes(inner, prefix + one.include_context.prefix)
        elif "GET" in (getattr(one, "methods", None) or ()):
            yield prefix + one.path.replace(":path}", "}"), one


def _choices(path: str, every: Any, values: Values) -> dict[str, tuple[str, ...]]:
    """What a number in a path is of, and the verbs of its forms."""
    patterns = [str(one.field_info.metadata) for one in every if one.alias == "verb"]
    verbs = tuple(re.findall(r"\w+", re.findall(r"\^\((.*?)\)", patterns[0])[0])) if patterns else ()
    number = re.search(r"/(\w+)/{number}", path)
    return {"verb": verbs, "number": values.get(number[1], ("1",)) if number else ()}


def with_values(path: str, values: Values) -> list[str]:
    """A path with each of the values of its parameters."""
    found = [path]
    for name in re.findall(r"{(\w+)}", path):
        found = [one.replace(f"{{{name}}}", value) for one in found for value in values.get(name, ("1",))]
    return found
