"""What can go wrong between a client and a server: one exception for each thing that a program may handle."""

from collections.abc import Mapping
from typing import Any


class KernelwatchError(Exception):
    """Base of all errors of the client; its text is a sentence for people."""


class BadArgument(KernelwatchError, ValueError):
    """An argument that no server could take."""


class Unreachable(KernelwatchError):
    """The server did not answer, or not in time."""


class NotAServer(KernelwatchError):
    """Something answered that is no kernelwatch server, or one of a version that this client cannot read."""


class StillRunning(KernelwatchError):
    """What was waited for did not end in time; it goes on."""


class ApiError(KernelwatchError):
    """The server refused a request: the members of its problem details (RFC 9457).  `detail` says how to fix it."""

    def __init__(self, status: int, detail: str, members: Mapping[str, Any], retry_after_s: float | None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.type = str(members.get("type", "about:blank"))
        self.title = str(members.get("title", ""))
        self.instance = str(members.get("instance", ""))
        self.members = dict(members)  # all of them, with those of a newer server
        self.retry_after_s = retry_after_s


class NoValidKey(ApiError):
    """401: there is no key, or it is unknown, expired or revoked."""


class NotAllowed(ApiError):
    """403: the key does not have the scope for this."""


class NotFound(ApiError):
    """404: there is no such thing, or the key may not know of it."""


class Conflict(ApiError):
    """409: the state of the thing does not allow this."""


class TooLarge(ApiError):
    """413: the body is longer than the server takes."""


class Invalid(ApiError):
    """400 or 422: a parameter or the body is not valid."""


class RateLimited(ApiError):
    """429: too many requests of this key; `retry_after_s` says when to try again."""


class Unavailable(ApiError):
    """503: the server is busy or its database is away; `retry_after_s` may say when to try again."""


KINDS: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: NoValidKey,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: Invalid,
    429: RateLimited,
    503: Unavailable,
}
