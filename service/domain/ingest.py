"""Measurements made elsewhere, as they are sent: a line about the batch, then a line for each measurement."""

import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from kernels.cases import parse_case
from service.domain.metrics import metric_of
from service.domain.states import Better, Missing
from service.domain.text import ONE_LINE, within_calendar
from service.errors import BadInput

MAX_LINE = 256 << 10  # bytes
MAX_SAMPLES = 10_000  # of one measurement
LARGEST_SAMPLE = 1e18  # in any unit; the median of larger floats may be infinite
MAX_NAME, MAX_PROVIDER, MAX_UNIT = 120, 80, 20  # characters
US, BYTES, COUNT = "us", "bytes", "count"
_MAX_CASES = 65_536
_MAX_EMPTY = 1_000  # lines; gzip makes of a million of them one kilobyte

Text = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=ONE_LINE)]
Sample = Annotated[float, Field(ge=0, le=LARGEST_SAMPLE, allow_inf_nan=False)]


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
    provider: Annotated[Text, Field(max_length=MAX_PROVIDER)]
    case: Text = Field(description="A case; with `unit`, any name.")
    samples: Annotated[list[Sample], Field(max_length=MAX_SAMPLES)] = Field(
        default_factory=list, description="One or more, unless `missing` says why there are none."
    )
    unit: Annotated[Text, Field(max_length=MAX_UNIT)] | None = Field(
        None, description="Of the samples: `us` for times, else any unit.", examples=["us", "GB/s", "TFLOP/s", "ratio"]
    )
    better: Better | None = Field(None, description="Which samples are better, with `unit`; smaller ones by default.")
    missing: Missing | None = Field(None, description="Why there are no samples.")


class BatchLine(BaseModel):
    """The first line of a batch."""

    model_config = ConfigDict(extra="forbid")

    batch: Provenance


LINE_MODELS = (BatchLine, MeasurementLine)


@dataclass(frozen=True)
class Sent:
    """A measurement that was sent: `samples` in `unit`, or in that of the case's metric: us, bytes or count."""

    revision: str
    provider: str
    case: str
    median: float | None  # None where `missing` says why
    samples: tuple[float, ...]
    unit: str | None = None  # None where the case tells it
    better: Better | None = None
    missing: Missing | None = None


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
        case, unit = (sent.case, sent.unit) if sent.unit else _checked(sent.case)
        _check_samples(sent, unit)
    except ValidationError as error:
        raise BadInput(f"Line {number}: {_first_of(error)}") from None
    except ValueError as error:
        raise BadInput(f"Line {number}: {error}.") from None
    middle = median(sent.samples) if sent.samples else None
    return Sent(sent.revision, sent.provider, case, middle, tuple(sent.samples), sent.unit, sent.better, sent.missing)


@lru_cache(_MAX_CASES)
def _checked(text: str) -> tuple[str, str]:
    """The case as it is stored, and its unit.  Raises ValueError."""
    try:
        case = str(parse_case(text))
    except ValueError as error:
        raise ValueError(f"case: {error}") from None
    return case, unit_of(case, None)


def _check_samples(sent: MeasurementLine, unit: str) -> None:
    """Raises ValueError for a time or a size of 0, for a count that is not whole, and if there are none without why."""
    if not sent.samples and sent.missing is None:
        raise ValueError("samples: List should have at least 1 item, or missing says why it has none")
    if sent.samples and sent.missing is not None:
        raise ValueError("missing: it says why there are no samples, and there are some")
    if sent.better and not sent.unit:
        raise ValueError("better: it needs a unit; of a case, smaller samples are better")
    whole, positive = unit == COUNT and not sent.unit, unit == US or (unit == BYTES and not sent.unit)
    if not whole and (not positive or all(sent.samples)):
        return
    for number, sample in enumerate(sent.samples):
        if whole and sample % 1:
            raise ValueError(f"samples.{number}: a count is a whole number, not {sample:g}")
        if positive and not sample:
            raise ValueError(f"samples.{number}: a time or a size is more than 0")


def _first_of(error: ValidationError) -> str:
    """The first mistake, and where it is."""
    mistake = error.errors()[0]
    place = ".".join(str(part) for part in mistake["loc"])
    return f"{place}: {mistake['msg']}." if place else f"{mistake['msg']}."


def pack_samples(samples: tuple[float, ...]) -> str:
    """Samples as JSON with six significant digits: more than any clock has."""
    return f"[{','.join(['%.6g'] * len(samples)) % samples}]"


def unpack_samples(packed: str) -> list[float]:
    """The inverse of `pack_samples`."""
    samples: list[float] = json.loads(packed, parse_int=float)
    return samples


def unit_of(case: str, sent: str | None) -> str:
    """The unit of samples: that which was sent, or else the case's: us, bytes or count."""
    return sent or metric_of(case).unit
