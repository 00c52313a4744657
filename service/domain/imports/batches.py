"""Values of other tools as batches to send: one for each revision and machine, under our cases where they fit."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kernels.cases import parse_case
from service.domain.exports import SampleBatch
from service.domain.imports.formats import ImportFormat
from service.domain.imports.values import ImportedValue, fitting, is_revision
from service.domain.ingest import MAX_NAME, MAX_PROVIDER
from service.domain.metrics import metric_of
from service.domain.states import Better
from service.errors import BadInput

_FIELD = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class CasePattern:
    """Makes our case of a name of theirs: `norm/{rows}x{cols}=rmsnorm.fwd.{rows}x{cols}.bf16`."""

    theirs: re.Pattern[str]
    ours: str

    @classmethod
    def parse(cls, written: str) -> "CasePattern":
        """Read `THEIRS=OURS`; a field in braces stands for letters, digits and `_.-`, the fewest that fit.

        Raises:
            BadInput: If it has another form.
        """
        theirs, equals, ours = written.rpartition("=")
        if not equals or not theirs or not ours:
            raise BadInput(f"A pattern is THEIRS=OURS, not {written!r}.")
        fields = _FIELD.findall(theirs)
        for field in (*fields, *_FIELD.findall(ours)):
            if not field.isidentifier() or field not in fields or fields.count(field) > 1:
                raise BadInput(f"In the pattern {written!r}, {{{field}}} must be a word that THEIRS has once.")
        literals = _FIELD.split(theirs)
        parts = [rf"(?P<{part}>[\w.-]+?)" if at % 2 else re.escape(part) for at, part in enumerate(literals)]
        return cls(re.compile("".join(parts)), ours)

    def case_of(self, value: ImportedValue) -> str | None:
        """Our case, if the name fits and the samples can be those of the case.

        Raises:
            BadInput: If the name fits, but what comes out is no case.
        """
        match = self.theirs.fullmatch(value.name)
        if match is None:
            return None
        written = _FIELD.sub(lambda field: match[field[1]], self.ours)
        try:
            case = str(parse_case(written))
        except ValueError as error:
            raise BadInput(f"The pattern makes {written!r} of {value.name!r}: {error}.") from None
        metric = metric_of(case)
        fits = metric.unit == value.unit and value.better is Better.SMALLER
        possible = all(sample.is_integer() if metric.counts else sample > 0 for sample in value.samples)
        return case if fits and possible else None


@dataclass(frozen=True)
class ImportOptions:
    """What the person who imports says about the values of a file."""

    tool: ImportFormat
    target: str  # also the provider of values for which the file names none
    device: str
    revision: str | None = None  # of values for which the file names none
    unit: str | None = None  # likewise
    patterns: Sequence[CasePattern] = ()


def batches_of_values(values: Iterable[ImportedValue], options: ImportOptions, file: str) -> list[SampleBatch]:
    """A batch for each revision and machine, in the order of the file.

    Equal values have the same `digest` in the notes of their batch, whatever the file is named.

    Raises:
        BadInput: If a value has no revision, or the given one cannot be one.
    """
    if options.revision is not None and not is_revision(options.revision):
        raise BadInput(f"{options.revision!r} is no commit or release.")
    groups: dict[tuple[str, str], list[ImportedValue]] = {}
    for value in values:
        revision = value.origin.revision or options.revision
        if revision is None:
            raise BadInput(f"{file} names no commit: say which with --revision.")
        machine = fitting(value.origin.machine or "unknown", MAX_NAME)
        groups.setdefault((revision, machine), []).append(value)
    return [_batch(*key, group, options, file) for key, group in groups.items()]


def _batch(
    revision: str, machine: str, group: Sequence[ImportedValue], options: ImportOptions, file: str
) -> SampleBatch:
    lines = [_line(revision, value, options) for value in group]
    times = [value.origin.at for value in group if value.origin.at is not None]
    provenance: dict[str, Any] = {
        "tool": options.tool.value,
        "machine": machine,
        "device": options.device,
        "measured_at": datetime.fromtimestamp(max(times), UTC).isoformat() if times else None,
    }
    digest = hashlib.sha256(json.dumps([provenance, lines]).encode()).hexdigest()
    return SampleBatch(provenance | {"notes": {"file": fitting(file, MAX_NAME), "digest": digest}}, lines)


def _line(revision: str, value: ImportedValue, options: ImportOptions) -> Mapping[str, Any]:
    case = next((case for pattern in options.patterns if (case := pattern.case_of(value))), None)
    provider = fitting(value.origin.contender or options.target, MAX_PROVIDER)
    of = {"unit": value.unit, "better": value.better.value} if case is None else {}
    why = {"missing": value.missing.value} if value.missing else {}
    named = {"revision": revision, "provider": provider, "case": case or value.name}
    return {**named, "samples": list(value.samples), **of, **why}
