"""The medians of a mainline, revision by revision, as other tools keep them: exported rows in, documents out."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from kernels.cases import Role
from kernelwatch.client.models import TargetDocument
from service.commands.files.benchmarks import Benchmark, metric_format, of_action
from service.domain.exports import HistoryFormat
from service.domain.forges import commit_address
from service.domain.states import CellState, ForgeKind, Purpose


class RevisionRow(BaseModel):
    """What is read of an exported revision."""

    sha: str
    ordinal: int | None
    subject: str
    author: str
    committed_at: datetime


class MeasurementRow(BaseModel):
    """What is read of an exported measurement."""

    run_id: int
    revision: str
    device: str
    purpose: str
    role: str
    provider: str
    case: str
    state: str
    unit: str
    median: float | None


@dataclass(frozen=True)
class MeasuredRevision:
    """What the newest run of a revision of the mainline took on one device."""

    revision: RevisionRow
    device: str
    benchmarks: Sequence[Benchmark]


def measured(revisions: Iterable[RevisionRow], rows: Iterable[MeasurementRow]) -> list[MeasuredRevision]:
    """The revisions in the order of the mainline; `rows` begin with the newest run."""
    mainline = {one.sha: one for one in revisions if one.ordinal is not None}
    runs = dict[tuple[str, str], int]()
    found = defaultdict[tuple[str, str], list[Benchmark]](list)
    for row in rows:
        is_own = row.purpose == Purpose.WATCH and row.role == Role.HEAD and row.revision in mainline
        if not is_own or row.state != CellState.MEASURED or row.median is None:
            continue
        place = (row.revision, row.device)
        if runs.setdefault(place, row.run_id) == row.run_id:
            found[place].append(Benchmark(row.device, row.provider, row.case, row.unit, row.median))
    places = sorted(found, key=lambda place: (mainline[place[0]].ordinal or 0, place[1]))
    return [MeasuredRevision(mainline[sha], device, found[sha, device]) for sha, device in places]


def written(form: HistoryFormat, target: TargetDocument, measured: Sequence[MeasuredRevision]) -> Iterator[bytes]:
    """The file, in parts."""
    match form:
        case HistoryFormat.GITHUB_ACTION_BENCHMARK:
            yield json.dumps(data_of_action(target, measured), ensure_ascii=False, indent=2).encode() + b"\n"
        case HistoryFormat.BENCHER:
            for one in measured:
                yield json.dumps(report(target, one), ensure_ascii=False).encode() + b"\n"


def data_of_action(target: TargetDocument, measured: Sequence[MeasuredRevision]) -> dict[str, Any]:
    """The data of github-action-benchmark, which has a suite for each device."""
    entries = defaultdict[str, list[Mapping[str, Any]]](list)
    for one in measured:
        entries[f"{target.name} on {one.device}"].append(
            {
                "commit": _commit(target, one.revision),
                "date": _milliseconds(one.revision),
                "tool": "customSmallerIsBetter",
                "benches": [of_action(each) for each in one.benchmarks],
            }
        )
    newest = max((_milliseconds(one.revision) for one in measured), default=0)
    return {"lastUpdate": newest, "repoUrl": _repository(target), "entries": entries}


def _commit(target: TargetDocument, revision: RevisionRow) -> Mapping[str, Any]:
    person = {"name": revision.author, "username": revision.author}
    return {
        "author": person,
        "committer": person,
        "id": revision.sha,
        "message": revision.subject,
        "timestamp": revision.committed_at.isoformat(),
        "url": commit_address(ForgeKind(target.forge_kind or ForgeKind.GITHUB), _repository(target), revision.sha),
    }


def _milliseconds(revision: RevisionRow) -> int:
    return round(revision.committed_at.timestamp() * 1000)


def _repository(target: TargetDocument) -> str:
    return target.location.rstrip("/").removesuffix(".git")


def report(target: TargetDocument, one: MeasuredRevision) -> dict[str, Any]:
    """A new report of Bencher's API, at the time of the commit, because Bencher draws over time."""
    at = one.revision.committed_at.isoformat()
    is_commit = target.package is None
    return {
        "branch": target.branch or "main",
        **({"hash": one.revision.sha} if is_commit else {}),
        "testbed": one.device,
        "start_time": at,
        "end_time": at,
        "results": [json.dumps(metric_format(one.benchmarks))],
        "settings": {"adapter": "json"},
    }
