"""Kinds of errors: a name that never changes, the status, and what the page of the kind explains (RFC 9457)."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

from kernelwatch.documents.base import Problem

PAGES = "/problems"  # below it, each kind has a page of its name


@dataclass(frozen=True)
class ProblemKind:
    """What errors have in common that a program can handle in one way."""

    name: str
    status: int
    meaning: str
    remedy: str
    own_title: str = ""  # where the phrase of the status does not tell it from another kind

    @property
    def title(self) -> str:
        return self.own_title or HTTPStatus(self.status).phrase


# Of the kinds with one status, the first is that of an error that names none.
_KINDS = (
    ProblemKind(
        "bad-request",
        400,
        "The request is not HTTP, its Host is not one of this server, or its body is not JSON.",
        "Correct the request. KERNELWATCH_TRUSTED_HOSTS names further hosts.",
    ),
    ProblemKind(
        "unauthorized",
        401,
        "The request has no key, or one that is unknown, expired or revoked.",
        "Send a valid key as Authorization: Bearer KEY. The command kernelwatch key create makes one.",
    ),
    ProblemKind(
        "forbidden",
        403,
        "The key is valid and does not have the scope for this request.",
        "Use a key with the scope that the detail names.",
    ),
    ProblemKind(
        "not-found",
        404,
        "Nothing has this address, or the key may not know of it.",
        "Check the name or the id. Private targets are shown only to keys that may read them.",
    ),
    ProblemKind(
        "method-not-allowed",
        405,
        "The address exists and does not take this method.",
        "Use one of the methods in the header Allow.",
    ),
    ProblemKind(
        "request-timeout",
        408,
        "The request or its body did not arrive in time.",
        "Send it again, compressed or over a faster connection.",
    ),
    ProblemKind(
        "conflict",
        409,
        "The state of the thing does not allow this request.",
        "Read the thing again, and decide by its present state.",
    ),
    ProblemKind(
        "in-progress",
        409,
        "The first request with this Idempotency-Key has not ended.",
        "Repeat the request after Retry-After seconds: it gets the response of the first.",
        "Request In Progress",
    ),
    ProblemKind(
        "content-too-large",
        413,
        "The body is longer than the server takes.",
        "Send less at once. The detail has the limit.",
    ),
    ProblemKind(
        "uri-too-long",
        414,
        "Path and query are longer than the server takes.",
        "Use fewer or shorter parameters.",
    ),
    ProblemKind(
        "unsupported-media-type",
        415,
        "The body has a type or an encoding that this address does not read.",
        "Send the Content-Type that /openapi.json names.",
    ),
    ProblemKind(
        "invalid",
        422,
        "A parameter or a field is missing, unknown or not valid.",
        "Correct what the detail names.",
    ),
    ProblemKind(
        "too-many-requests",
        429,
        "This key, or this address without a key, sent more requests than the rate allows.",
        "Send the next request after Retry-After seconds.",
    ),
    ProblemKind(
        "headers-too-large",
        431,
        "The headers are longer than the server takes.",
        "Send fewer or shorter headers.",
    ),
    ProblemKind(
        "internal",
        500,
        "The server failed, and the request is not the cause.",
        "Tell the operator, who finds the reason in the log.",
    ),
    ProblemKind(
        "not-implemented",
        501,
        "The request uses a part of HTTP that this server does not have.",
        "Send the body in chunks or with a Content-Length.",
    ),
    ProblemKind(
        "source-failed",
        502,
        "A repository, a package index or a forge failed a request that this one needs.",
        "Read the detail: the other server is away, or its address or credentials are wrong.",
    ),
    ProblemKind(
        "busy",
        503,
        "Too many requests are in progress.",
        "Repeat the request after Retry-After seconds.",
    ),
    ProblemKind(
        "unavailable",
        503,
        "The server lacks what this request needs: a setting, a library, a sandbox or room on its disk.",
        "The operator has to add what the detail names.",
        "Not Available Here",
    ),
    ProblemKind(
        "database",
        503,
        "The database reports an error, or cannot be reached.",
        "Repeat the request later. The operator finds the reason at /readyz and in the log.",
        "Database Error",
    ),
)
PROBLEMS: Mapping[str, ProblemKind] = {kind.name: kind for kind in _KINDS}
_BY_STATUS = {kind.status: kind for kind in reversed(_KINDS)}


def problem(status: int, detail: str, path: str | None = None, kind: str = "") -> Problem:
    """The document of an error of this kind; without one, of the kind that the status names."""
    found = PROBLEMS[kind] if kind else _BY_STATUS[status]
    return Problem(type=f"{PAGES}/{found.name}", title=found.title, status=status, detail=detail, instance=path)
