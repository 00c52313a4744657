"""Fields of webhooks, checked as they are read.  Pure.

They raise BadInput for a value that cannot be right, and TypeError for one of another type than the forge documents.
"""

import re
from datetime import UTC, datetime
from typing import Any

from service.errors import BadInput

MAX_BRANCH = 255
MAX_NUMBER = 2**31 - 1  # of a pull request
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def pull_number(said: Any) -> int:
    if not isinstance(said, int) or isinstance(said, bool) or not 0 < said <= MAX_NUMBER:
        raise BadInput(f"{str(said)[:20]} is not the number of a pull request.")
    return said


def identifier(said: Any) -> int:
    """Of a comment, a person or a check."""
    if not isinstance(said, int) or isinstance(said, bool) or said <= 0:
        raise TypeError(f"an id expected, not {str(said)[:20]}")
    return said


def moment(said: Any) -> float | None:
    """Seconds since the epoch of an ISO 8601 time; None for anything else."""
    try:
        return datetime.fromisoformat(said).astimezone(UTC).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def commit(said: Any) -> str | None:
    """A full commit sha; None for all zeros, which mean "no commit"."""
    if not _SHA.fullmatch(text(said)):
        raise BadInput(f"{said[:80]!r} is not a commit.")
    return str(said) if said.strip("0") else None


def branch_name(name: str) -> str:
    if not name or len(name) > MAX_BRANCH:
        raise BadInput("A branch's name is empty or too long.")
    return name


def text(said: Any) -> str:
    if not isinstance(said, str):
        raise TypeError(f"text expected, not {type(said).__name__}")
    return said
