"""Errors that know their HTTP status and say how to mend themselves."""


class ServiceError(Exception):
    """Something a person can act on.  The message is shown as it is: no secrets in it."""

    status = 500


class NotFound(ServiceError):
    status = 404

    def __init__(self, what: str, key: object, hint: str = "") -> None:
        super().__init__(f"No {what} {key!s}.{' ' + hint if hint else ''}")


class Unsigned(ServiceError):
    """Nobody whom we know says this."""

    status = 401


class TooLarge(ServiceError):
    status = 413


class Refused(ServiceError):
    """Understood, and not allowed."""

    status = 403


class BadInput(ServiceError):
    status = 422


class Conflict(ServiceError):
    status = 409


class LeaseLost(ServiceError):
    """The run was taken from this worker (its lease ended, or the run was cancelled): what it measured is void."""

    status = 409


class SourceFailed(ServiceError):
    """A repository or an index did not give what was asked.  `passing` says whether trying later may help."""

    status = 502

    def __init__(self, message: str, *, passing: bool = True) -> None:
        super().__init__(message)
        self.passing = passing


class Unavailable(ServiceError):
    """This machine lacks what a revision needs: a stack, a compiler, a sandbox.  Nothing is wrong with the revision."""

    status = 503


class BuildFailed(ServiceError):
    """A revision does not build.

    `log` holds the last lines, because someone will read them in a pull request, and `whole` all of it.
    """

    def __init__(self, message: str, log: str = "", whole: str = "") -> None:
        super().__init__(message)
        self.log, self.whole = log, whole or log
