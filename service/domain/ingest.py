"""Measurements made elsewhere, as they are sent: a line about the batch, then a line for each measurement."""

import json
import math
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from kernels.cases import Case
from service.domain.metrics import metric_of
from service.domain.text import ONE_LINE, within_calendar
from service.errors import BadInput

MAX_LINE = 256 << 10  # bytes
MAX_SAMPLES = 10_000  # of one measurement
_MAX_CASES = 65_536
_MAX_EMPTY = 1_000  # lines; gzip makes of a million of them one kilobyte

Text = Annotated[str, Field(min_length=1, max_length=120, pattern=ONE_LINE)]
Sample = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Provenance(BaseModel):
    """Who measured a batch, with what and where; kept as it was sent."""

    model_config = ConfigDict(extra="forbid")

    tool: Text = Field(description="The program that measured, with its version.", examples=["triton.testing 3.6"])
    machine: Text = Field(description="Where it ran.", examples=["ci-runner-7, NVIDIA H200"])
    device: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,39}$")] = Field(examples=["h200"])
    measured_at: Annotated[AwareDatetime, AfterValidator(within_calendar)] | None = Field(
        None, description="When, as RFC 3339 with its offset."
    )
    stack: dict[str, Any] = Field(default_factory=dict, description="Versions.", examples=[{"torch": "2.11.0"}])
    notes: dict[str, Any] = Field(default_factory=dict, description="Anything else, for example the address of a job.")


class MeasurementLine(BaseModel):
    """One measurement as it is sent."""

    model_config = ConfigDict(extra="forbid")

    revision: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w.+-]+$")]
    provider: Annotated[Text, Field(max_length=80)]
    case: Text
    samples: Annotated[list[Sample], Field(min_length=1, max_length=MAX_SAMPLES)]


class BatchLine(BaseModel):
    """The first line of a batch."""

    model_config = ConfigDict(extra="forbid")

    batch: Provenance


LINE_MODELS = (BatchLine, MeasurementLine)


@dataclass(frozen=True)
class Sent:
    """A measurement that was sent: `samples` in the unit of the case's metric, us, bytes or count."""

    revision: str
    provider: str
    case: str
    median: float
    samples: tuple[float, ...]


def read_first(line: bytes) -> Provenance:
    """Read the line about the batch; a byte order mark before it is skipped.  Raises BadInput."""
    try:
        return BatchLine.model_validate_json(line.removeprefix(BOM_UTF8)).batch
    except ValidationError as error:
        raise BadInput(f'Line 1 must be {{"batch": {{"tool", "machine", "device"}}}}: {_first_of(error)}') from None


def read_lines(lines: Iterable[bytes], first: int = 2) -> Iterator[Sent]:
    """Read measurements, one JSON object a line; a few empty lines are skipped.

    Raises BadInput that names the first line with a mistake.
    """
    empty = 0
    for number, line in enumerate(lines, first):
        if line.strip():
            yield _read(number, line)
            continue
        empty += 1
        if empty > _MAX_EMPTY:
            raise BadInput(f"Line {number}: more than {_MAX_EMPTY} lines are empty; send one measurement a line.")


def _read(number: int, line: bytes) -> Sent:
    try:
        sent = MeasurementLine.model_validate_json(line)
        case = _checked(sent.case)
        _check_samples(case, sent.samples)
    except ValidationError as error:
        raise BadInput(f"Line {number}: {_first_of(error)}") from None
    except ValueError as error:
        raise BadInput(f"Line {number}: {error}.") from None
    return Sent(sent.revision, sent.provider, case, median(sent.samples), tuple(sent.samples))


@lru_cache(_MAX_CASES)
def _checked(text: str) -> str:
    """The case as it is stored.  Raises ValueError."""
    try:
        return str(Case.parse(text))
    except ValueError as error:
        raise ValueError(f"case: {error}") from None


def _check_samples(case: str, samples: Sequence[float]) -> None:
    """Raises ValueError for a time or a size of 0, and for a count that is not whole."""
    counts = metric_of(case).counts
    for number, sample in enumerate(samples):
        if counts and sample % 1:
            raise ValueError(f"samples.{number}: a count is a whole number, not {sample:g}")
        if not counts and not sample:
            raise ValueError(f"samples.{number}: a time or a size is more than 0")


def _first_of(error: ValidationError) -> str:
    """The first mistake, and where it is."""
    mistake = error.errors()[0]
    place = ".".join(str(part) for part in mistake["loc"])
    return f"{place}: {mistake['msg']}." if place else f"{mistake['msg']}."


def pack_samples(samples: Iterable[float]) -> str:
    """Samples as JSON with six significant digits: more than any clock has."""
    return json.dumps([_rounded(sample) for sample in samples], separators=(",", ":"))


def unpack_samples(packed: str) -> list[float]:
    """The inverse of `pack_samples`."""
    samples: list[float] = json.loads(packed)
    return samples


def _rounded(value: float) -> float:
    return round(value, 5 - math.floor(math.log10(value))) if value else value


def unit_of(case: str) -> str:
    """The unit of a case's samples: us, bytes or count."""
    return metric_of(case).unit
