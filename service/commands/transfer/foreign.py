"""Files of other tools, read from disk and sent batch by batch; what a server already has is not sent again."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from service.commands.connection import client
from service.domain.imports.batches import ImportOptions, batches_of_values
from service.domain.imports.formats import MAX_FILE, ImportFormat, values_of
from service.domain.imports.values import ImportFile
from service.errors import BadInput

if TYPE_CHECKING:
    from kernelwatch.client.models import BatchItem
    from service.domain.exports import SampleBatch


@dataclass
class Imported:
    """What became of files: the batches that were stored, those that were there before, and what has no number."""

    stored: list["BatchItem"] = field(default_factory=list)
    known: int = 0
    missing: Counter[str] = field(default_factory=Counter)


def send_files(files: Sequence[Path], options: ImportOptions, show: Callable[[str], object]) -> Imported:
    """Read every file, then send what the target does not have; `show` is told how far it is.

    Raises:
        BadInput: If a file cannot be read or is not of this format; nothing is sent then.
    """
    batches = [batch for path in _all(files, options.tool) for batch in _read(path, options)]
    if not batches:
        raise BadInput(f"Nothing to import in {', '.join(map(str, files))}: no values.")
    known = {batch.notes.get("digest") for batch in client().ingested.list(options.target)}
    result = Imported()
    for batch in batches:
        lines = list(batch.measurements)
        result.missing.update(line["missing"] for line in lines if "missing" in line)
        digest = batch.provenance["notes"]["digest"]
        if digest in known:
            result.known += 1
            continue
        known.add(digest)
        result.stored.append(client().ingested.send(options.target, batch.provenance, lines))
        show(f"{len(result.stored):,} of {len(batches):,} batches sent")
    return result


def _all(files: Iterable[Path], tool: ImportFormat) -> Iterator[Path]:
    """The files, and of a folder of criterion its newest samples."""
    for path in files:
        if tool is ImportFormat.CRITERION and path.is_dir():
            yield from sorted(path.rglob("new/sample.json"))
        else:
            yield path


def _read(path: Path, options: ImportOptions) -> Sequence["SampleBatch"]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}.") from None
    values = values_of(options.tool, ImportFile(str(path), content, options.unit))
    return batches_of_values(values, options, path.name)
