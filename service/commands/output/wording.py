"""Small words that several views share."""

from datetime import UTC, datetime


def minute(moment: datetime | None) -> str:
    """`2026-11-21 03:02`, in UTC; empty for none."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def day(moment: datetime | None) -> str:
    """`2026-11-21`, in UTC; empty for none."""
    return minute(moment)[:10]


def some(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
