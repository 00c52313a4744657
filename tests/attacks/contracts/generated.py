"""Requests that schemathesis generates from the OpenAPI, and what its checks find wrong with the responses."""

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from schemathesis import hooks
from schemathesis.core.failures import Failure
from schemathesis.core.parameters import ParameterLocation
from schemathesis.engine import Status, events, from_schema
from schemathesis.openapi.checks import RejectedPositiveData

from tests.attacks.contracts.populated import DISPOSABLE_TARGETS, KEPT_TARGETS, SENT, Populated

SEED = 20261123
# How often a parameter gets a value that exists.
_EXISTING = 0.7
# Operations that may refuse with 422 what is valid by the schema, because JSON schema cannot say what they check.
_CHECKED_BY_MEANING = {
    "POST /api/v1/targets": "the location must answer and be allowed, and the recipe has a grammar",
    "PATCH /api/v1/targets/{name}": "the location must have the newest known revision, and the recipe has a grammar",
    "POST /api/v1/recipes/check": "the recipe has a grammar",
    "POST /api/v1/targets/{name}/replay": "the policy has a grammar",
    "POST /api/v1/targets/{name}/ingested": "each line of the body has a schema of its own",
    "POST /api/v1/targets/{name}/backfill": "the revisions must follow each other",
    "POST /api/v1/targets/{name}/calibrate": "the device, suite and worker must be known, and the recipe readable",
    "GET /api/v1/export/{what}": "each kind of thing has filters of its own",
    "POST /api/v1/targets/{name}/quarantine": "the case must have been measured on the device",
    "POST /api/v1/targets/{name}/release": "the case must be quarantined",
    "POST /api/v1/runs": "the device and the suite must be in the recipe",
    "POST /api/v1/bisections": "the revisions must follow each other, and the device must be in the recipe",
    "POST /api/v1/regressions/{regression_id}/acknowledge": "the time must not be past",
    "POST /api/v1/incidents/{incident_id}/acknowledge": "the time must not be past",
    "POST /api/v1/keys": "the time must not be past",
    "GET /api/v1/weekly": "the year must have the week",
    "GET /api/v1/weekly/markdown": "the year must have the week",
}
_ACCEPTED = ("2xx", "3xx", "401", "403", "404", "409", "429")
# Invalid data may also be too long for an address, a body or a head; the usual ones of schemathesis include 5xx.
_REFUSED = ("400", "401", "403", "404", "405", "409", "413", "414", "415", "422", "429", "431")
_LINES = "application/x-ndjson"
_VALID_REPEAT_KEY = re.compile("[!-~](?:[ -~]{0,198}[!-~])?")
# Fields of bodies that take the same values as parameters.
_FIELDS = {
    "target": "name", "revision": "revision", "device": "device", "suite": "suite", "case": "case",
    "provider": "provider", "base": "revision", "head": "revision", "good": "revision", "bad": "revision",
    "location": "location", "recipe": "recipe", "policy": "policy",
}  # fmt: skip


@dataclass
class Findings:
    """The requests of one key by status, and what the checks found."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    faults: dict[tuple[str, str, str], str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @property
    def classes(self) -> dict[str, int]:
        found = Counter(f"{status // 100}xx" for status in self.statuses.elements())
        return dict(sorted(found.items()))

    @property
    def server_errors(self) -> int:
        return self.classes.get("5xx", 0)

    def take(self, recorder: Any) -> None:
        """Count the requests of one scenario."""
        for interaction in recorder.interactions.values():
            self.requests += 1
            if interaction.response is not None:
                self.statuses[interaction.response.status_code] += 1
        for case_id, checks in recorder.checks.items():
            for one in checks:
                self.checks[one.name] += 1
                if one.status is Status.FAILURE:
                    self._note(recorder, case_id, one)

    def _note(self, recorder: Any, case_id: str, check: Any) -> None:
        failure = check.failure_info.failure
        of = failure.case_id or case_id
        found = recorder.interactions[of].response
        text = f"{failure.message}\n{check.failure_info.code_sample}\n{found.status_code} {found.text[:600]}"
        self.faults.setdefault((check.name, recorder.cases[of].value.operation.label, failure.title), text)


def send(
    document: str | Any, world: Populated, key: str, *, examples: int, seed: int = SEED, phases: Sequence[str] = ()
) -> Findings:
    """Send requests with one key to an address, or to an app in this process."""
    address = document if isinstance(document, str) else "http://127.0.0.1:8712"
    config = schemathesis.Config.from_dict(_config(address, world, key, examples, seed, phases))
    if isinstance(document, str):
        schema = schemathesis.openapi.from_url(f"{document}/openapi.json", config=config)
    else:
        schema = schemathesis.openapi.from_asgi(
            "/openapi.json", document, config=config, headers={"Host": "127.0.0.1:8712"}
        )
    found = Findings()
    with _edited(world):
        for event in from_schema(schema).execute():
            if isinstance(event, events.ScenarioFinished):
                found.take(event.recorder)
            elif isinstance(event, events.NonFatalError):
                found.errors.append(f"{event.label}: {event.info.title}: {event.info.message}")
            elif isinstance(event, events.FatalError):
                raise event.exception
    return found


def _config(
    address: str, world: Populated, key: str, examples: int, seed: int, phases: Sequence[str]
) -> dict[str, Any]:
    dictionaries = {name: {"values": [*values]} for name, values in world.values.items()}
    bound = {
        **{f"path.{name}": name for name in world.values if name.endswith("_id")},
        **{f"path.{name}": name for name in ("name", "login", "digest", "which", "revision")},
        **{f"query.{name}": name for name in ("case", "provider", "device", "op", "contender", "revision")},
        "query.target": "name",
        "query.base": "revision",
        "query.head": "revision",
        "query.worker": "worker",
        **{f"body.{name}": values for name, values in _FIELDS.items()},
    }
    operations: list[dict[str, Any]] = [
        {"include-path-regex": "^/api/v1/workers/", "parameters": {"path.name": _existing("worker")}}
    ]
    for name in _CHECKED_BY_MEANING:
        accepted = {"positive_data_acceptance": {"expected-statuses": [*_ACCEPTED, "422"]}}
        operations.append({"include-name": name, "checks": accepted})
    return {
        "seed": seed,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "continue-on-failure": True,
        "base-url": address,
        "max-stream-events": 1,
        "request-timeout": 60,
        "dictionaries": dictionaries,
        "parameters": {name: _existing(values) for name, values in bound.items()},
        "operations": operations,
        "checks": {
            "positive_data_acceptance": {"expected-statuses": [*_ACCEPTED]},
            "negative_data_rejection": {"expected-statuses": [*_REFUSED]},
        },
        "generation": {"max-examples": examples, "no-shrink": True, "database": "none"},
        "phases": {"enabled": False, **{name: {"enabled": True} for name in phases}} if phases else {},
    }  # fmt: skip


def _existing(values: str) -> dict[str, Any]:
    return {"dictionary": values, "probability": _EXISTING}


@contextmanager
def _edited(world: Populated) -> Iterator[None]:
    """Edit requests so that they do not destroy what later ones need, and are not all refused for one reason."""
    turn = itertools.count()

    def before_call(context: Any, case: Any, kwargs: Mapping[str, Any]) -> None:
        path, given = case.operation.path, case.path_parameters or {}
        if path == "/api/v1/targets/{name}" and case.method in ("DELETE", "PATCH") and given["name"] in KEPT_TARGETS:
            name = DISPOSABLE_TARGETS[next(turn) % len(DISPOSABLE_TARGETS)]
            case.path_parameters = given | {"name": name}
        if path.startswith("/api/v1/keys/{which}/") and _may_name_a_key_in_use(str(given["which"]), world):
            which = world.disposable_keys[next(turn) % len(world.disposable_keys)]
            case.path_parameters = given | {"which": which}
        # A key that was used for another request, and a cursor of another list, are refused with 422, as they should.
        if _has_valid_repeat_key(case):
            case.headers["Idempotency-Key"] = f"{case.headers['Idempotency-Key'][:150]}-{next(turn)}"
        if case.media_type == _LINES and isinstance(case.body, str):
            case.body = _BATCHES[next(turn) % len(_BATCHES)]
        valid = case.meta is not None and case.meta.generation.mode.is_positive
        if "cursor" in (case.query or {}) and valid and next(turn) % 4:
            case.query = {name: value for name, value in case.query.items() if name != "cursor"}

    def filter_failure(context: Any, failure: Failure, case: Any, response: Any) -> bool:
        """Accept the refusal of a cursor, which is the end of a page and has no form that a schema can describe.

        And accept events: OpenAPI 3.1 describes a stream as one text, which schemathesis expects of each event.
        """
        if isinstance(failure, RejectedPositiveData) and "cursor" in (case.query or {}):
            return False
        return failure.title != "SSE event violates schema"

    schemathesis.hook(before_call)
    schemathesis.hook(filter_failure)
    try:
        yield
    finally:
        hooks.unregister(before_call)
        hooks.unregister(filter_failure)


@schemathesis.serializer(_LINES)
def _lines(context: schemathesis.SerializationContext, value: Any) -> bytes:
    """Send text as it is, and other values as one line of JSON."""
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def _batches(count: int) -> list[str]:
    """Batches of measurements, most of them with a mistake."""
    dice = random.Random(SEED)
    names = ["device", "tool", "machine", "stack", "notes", "revision", "provider", "case", "samples", "batch", "x"]
    odd = [None, True, 0, -1, 2**70, 1e308, "", "\x00", "x" * 300, [], [0.0], [-1.0], ["1"], [1e999], {}, {"a": {}}]

    def line(usual: Mapping[str, Any]) -> str:
        changed = {dice.choice(names): dice.choice(odd) for _ in range(dice.choice((0, 0, 1, 2)))}
        text = json.dumps({**usual, **changed})
        return dice.choice((text, text, text, text, text[:-1], ""))

    def head() -> str:
        batch = {name: dice.choice(odd) if dice.random() < 0.1 else value for name, value in SENT[0]["batch"].items()}
        return line({"batch": batch})

    return ["\n".join([head(), *(line(SENT[1]) for _ in range(dice.randrange(4)))]) + "\n" for _ in range(count)]


_BATCHES = _batches(200)


def _has_valid_repeat_key(case: Any) -> bool:
    """Whether it has one, and tests something else than a header that is missing or wrong."""
    if "Idempotency-Key" not in case.operation.headers or not case.headers:
        return False
    tested = getattr(case.meta.phase.data, "parameter_location", None) if case.meta else None
    if tested is ParameterLocation.HEADER and case.meta.generation.mode.is_negative:
        return False
    return _VALID_REPEAT_KEY.fullmatch(str(case.headers.get("Idempotency-Key", ""))) is not None


def _may_name_a_key_in_use(which: str, world: Populated) -> bool:
    """Whether it may be an id, or a key that requests are sent with."""
    number = re.fullmatch(r"\s*[+-]?[\d_]+\s*", which)
    return number is not None or any(key and key.startswith(which.strip()[:8]) for key in world.keys.values())
