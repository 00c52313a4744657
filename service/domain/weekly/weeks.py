"""Weeks of the calendar: ISO 8601, from Monday 00:00 to Monday 00:00 UTC.  Pure."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Self

from service.errors import BadInput

_NAME = re.compile(r"(\d{4})-W(\d{2})", re.ASCII)
FIRST_YEAR = 1971  # the week before it and all later ones have times after 1970


@dataclass(frozen=True, order=True)
class Week:
    """A week of an ISO year, which begins up to three days before or after the year itself."""

    year: int
    number: int

    @classmethod
    def parse(cls, name: str) -> Self:
        """`2026-W47`.  Raises BadInput for anything else, and for a week that the year does not have."""
        found = _NAME.fullmatch(name)
        if found is None or not FIRST_YEAR <= int(found[1]) < 9999:
            raise BadInput(f"{name[:20]!r} is no week: write year and ISO week, as in 2026-W47.")
        year, number = int(found[1]), int(found[2])
        if not 1 <= number <= weeks_in(year):
            raise BadInput(f"There is no week {number} in {year}: it has the weeks 1 to {weeks_in(year)}.")
        return cls(year, number)

    @classmethod
    def at(cls, seconds: float) -> Self:
        """The week of a time in seconds since the epoch."""
        found = datetime.fromtimestamp(seconds, UTC).isocalendar()
        return cls(found.year, found.week)

    def __str__(self) -> str:
        return f"{self.year}-W{self.number:02}"

    @property
    def monday(self) -> date:
        return date.fromisocalendar(self.year, self.number, 1)

    @property
    def sunday(self) -> date:
        return self.monday + timedelta(days=6)

    @property
    def start(self) -> float:
        """Its first moment, in seconds since the epoch."""
        return datetime(self.monday.year, self.monday.month, self.monday.day, tzinfo=UTC).timestamp()

    @property
    def end(self) -> float:
        """The first moment of the next week."""
        return self.start + 7 * 86_400.0

    @property
    def previous(self) -> "Week":
        return Week.at(self.start - 1)

    @property
    def next(self) -> "Week":
        return Week.at(self.end)


def weeks_in(year: int) -> int:
    """52 or 53: the last week of an ISO year is that of 28 December."""
    return date(year, 12, 28).isocalendar().week
