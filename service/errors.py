"""Errors with an HTTP status and a message that says how to fix them."""

from collections.abc import Sequence
from dataclasses import dataclass


class ServiceError(Exception):
    """An error that a person can act on.  The message is shown verbatim and must not hold secrets.

    `kind` is that of `service/api/gateway/problems.py`, where the status alone does not tell it.
    """

    status = 500
    kind = ""


class NotFound(ServiceError):
    status = 404

    def __init__(self, what: str, key: object, hint: str = "") -> None:
        super().__init__(f"No {what} {key!s}.{' ' + hint if hint else ''}")


class Unsigned(ServiceError):
    """The sender cannot be verified."""

    status = 401


class Late(ServiceError):
    """The request did not arrive in time."""

    status = 408


class TooLarge(ServiceError):
    status = 413

    def __init__(self, limit: int) -> None:
        super().__init__(f"The body is longer than {limit} bytes.")


class UnsupportedMedia(ServiceError):
    status = 415


class Refused(ServiceError):
    """The request is valid but not allowed."""

    status = 403


class BadInput(ServiceError):
    status = 422


class Conflict(ServiceError):
    status = 409


@dataclass(frozen=True)
class LaterChange:
    """Something that somebody did since then: seconds since the epoch, who, and what."""

    at: float
    who: str
    what: str


class Stale(Conflict):
    """The thing was changed after the sender had read it."""

    def __init__(self, what: str, changes: Sequence[LaterChange]) -> None:
        super().__init__(f"{what} was changed after you opened the page. Read what changed, and send it again.")
        self.changes = tuple(changes)  # the oldest first


class StillHandled(Conflict):
    """The first request with an idempotency key goes on; a repeat gets its response later."""

    kind = "in-progress"
    retry_after_s = 1


class LeaseLost(ServiceError):
    """This worker lost the run: the lease expired or the run was cancelled.  Its measurements are discarded."""

    status = 409


class SourceFailed(ServiceError):
    """A request to a repository or an index failed.  `passing` is true if a retry may succeed."""

    status = 502

    def __init__(self, message: str, *, passing: bool = True) -> None:
        super().__init__(message)
        self.passing = passing


class Unavailable(ServiceError):
    """This machine lacks a stack, a compiler or a sandbox.  The revision is not at fault."""

    status = 503
    kind = "unavailable"


class Busy(ServiceError):
    """Too much is in progress; the same request succeeds later."""

    status = 503
    retry_after_s = 1


class SandboxFailed(ServiceError):
    """The sandbox of this machine did not start a program.  The revision is not at fault."""

    status = 503
    kind = "unavailable"


class BuildFailed(ServiceError):
    """A revision does not build.

    `log` holds the last lines of the build log, for the comment of a pull request; `whole` holds all of it.
    """

    def __init__(self, message: str, log: str = "", whole: str = "") -> None:
        super().__init__(message)
        self.log, self.whole = log, whole or log
