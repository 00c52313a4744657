"""A value that another tool measured, as every parser of a file gives it."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from service.domain.imports.units import ImportUnit
from service.domain.ingest import LARGEST_SAMPLE, MAX_NAME, MAX_SAMPLES, MAX_UNIT, US
from service.domain.states import Better, Missing
from service.domain.text import printable

_DIGEST = 12  # characters that keep cut names apart
_REVISION = re.compile(r"[\w.+-]{1,64}", re.ASCII)
_LAST_SECOND = datetime(9999, 12, 31, tzinfo=UTC).timestamp()

Amount = float | Missing | None


@dataclass(frozen=True)
class ImportFile:
    """A file as it was read, and the unit of its values where it does not name it."""

    name: str
    content: bytes
    unit: str | None = None


@dataclass(frozen=True)
class ValueOrigin:
    """What a file says about where its values come from."""

    contender: str | None = None
    revision: str | None = None
    at: float | None = None  # seconds since 1970
    machine: str | None = None


MISSING_WORDS: Mapping[Missing, str] = {
    Missing.NULL: "null",
    Missing.NOT_A_NUMBER: "not a number",
    Missing.BELOW_CLOCK: "0, below the clock",
    Missing.NEGATIVE: "negative",
    Missing.OUT_OF_MEMORY: "out of memory",
    Missing.FAILED: "failed",
}
UNKNOWN = ValueOrigin()


@dataclass(frozen=True)
class ImportedValue:
    """What was measured of one name, in `unit`: samples, or why there is no number."""

    name: str
    unit: str
    better: Better
    samples: tuple[float, ...]
    missing: Missing | None
    origin: ValueOrigin


def imported(
    name: str, amounts: Sequence[Amount], unit: ImportUnit, better: Better | None = None, origin: ValueOrigin = UNKNOWN
) -> ImportedValue:
    """A value of amounts in the tool's unit.  If one of them is no number, the value has none.

    Of more than 10,000 samples every second, third, … is kept.
    """
    kept = amounts[:: math.ceil(len(amounts) / MAX_SAMPLES) or 1]
    better = better or unit.better or Better.SMALLER
    scaled = [_scaled(amount, unit) for amount in kept]
    numbers = tuple(amount for amount in scaled if not isinstance(amount, Missing))
    missing = next((amount for amount in scaled if isinstance(amount, Missing)), None if numbers else Missing.NULL)
    return ImportedValue(
        fitting(name, MAX_NAME), fitting(unit.name, MAX_UNIT), better, () if missing else numbers, missing, origin
    )


def _scaled(amount: Amount, unit: ImportUnit) -> float | Missing:
    if amount is None:
        return Missing.NULL
    if isinstance(amount, Missing):
        return amount
    scaled = amount * unit.factor
    if not abs(scaled) <= LARGEST_SAMPLE:
        return Missing.NOT_A_NUMBER
    if scaled < 0:
        return Missing.NEGATIVE
    return Missing.BELOW_CLOCK if unit.name == US and not scaled else scaled


def fitting(name: str, most: int) -> str:
    """A name on one line.  A longer one ends with a digest of the whole, so that two of them stay apart."""
    words = " ".join(printable(name).split()) or "unnamed"
    if len(words) <= most:
        return words
    digest = hashlib.sha256(words.encode()).hexdigest()[:_DIGEST]
    return f"{words[: most - _DIGEST - 1]}…{digest}"


def is_revision(written: str) -> bool:
    """Whether it can be a commit or a release."""
    return _REVISION.fullmatch(written) is not None


def moment(written: str) -> float | None:
    """Seconds since 1970 of an ISO 8601 time, in UTC unless it says otherwise; None for other text."""
    try:
        at = datetime.fromisoformat(written.strip())
        return in_calendar((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return None


def in_calendar(seconds: float) -> float | None:
    """The time if it is one after 1970 that a calendar has."""
    return seconds if 0 <= seconds < _LAST_SECOND else None
