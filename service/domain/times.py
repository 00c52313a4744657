"""Compare stored times with a clock that may have been set back since they were stored.

After such a step the stored times are too far in the future.  Each kind of wait has a longest duration, so a time that
is further ahead cannot be right.  The functions take numbers, and columns with numbers or SQL expressions.
"""

from typing import Any

WORKER_GONE_S = 60.0  # without a sign of a worker for so long, it is not online: workers report every few seconds


def is_due(at: Any, now: Any, longest_s: Any) -> Any:
    """Whether the time `at` has come, for waits of at most `longest_s`.  A time further ahead counts as due."""
    return (at <= now) | (at > now + longest_s)


def is_recent(at: Any, now: Any, within_s: Any) -> Any:
    """Whether something happened less than `within_s` ago.  A time further ahead than that is not recent."""
    return (at >= now - within_s) & (at <= now + within_s)
