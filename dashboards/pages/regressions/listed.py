"""The list of regressions: a line for each revision that made something slower, which unfolds its cases."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Depends, Query, Response
from sqlalchemy import ColumnElement, TextClause, func, select
from sqlalchemy.orm import Session

from dashboards.rendering import commit_address, page, page_router
from dashboards.runs.filters import FilterChoice
from dashboards.target_lines import lines
from service.api.access import Reading
from service.api.common import Cursor
from service.db.engine import clock
from service.db.models import OPEN_ONES, SAMPLES, Gap, Pull, Series, Target
from service.db.paging import ResultPage
from service.domain.states import CLOSED_REGRESSIONS, OPEN_REGRESSIONS, RegressionState
from service.errors import BadInput
from service.ledger.reading.revisions import named
from service.ledger.regressions import grouped, listing
from service.ledger.regressions.grouped import MAX_TEXT, Attention, GroupOrder, RegressionFilter
from service.ledger.targets import target_named
from service.reports.encoders import csv_text
from service.reports.views import RegressionView

router = page_router()
_GROUPS = 30  # on one page
_CASES = 100  # of a group on one page
_CHOICES = 8  # of a filter
_EXPORTED = 10_000  # lines of a CSV file
_BEHIND = select(func.count(Gap.id)).join(Gap.series).where(Gap.behind_sota, Series.target_id.not_in(SAMPLES))


class StateFilter(StrEnum):
    """The regressions that the page lists."""

    ALL_OPEN = "all-open"
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    BISECTING = "bisecting"
    BLAMED = "blamed"
    FIXED = "fixed"
    DISMISSED = "dismissed"
    REMOVED = "removed"


@dataclass(frozen=True)
class ListAddress:
    """What the address of the list says."""

    state: StateFilter = StateFilter.ALL_OPEN
    target: str = ""
    device: str = ""
    assignee: str = ""
    attention: Attention | None = None
    q: str = ""
    sort: GroupOrder = GroupOrder.SEVERITY

    @property
    def states(self) -> tuple[RegressionState, ...]:
        return OPEN_REGRESSIONS if self.state is StateFilter.ALL_OPEN else (RegressionState(self.state.value),)

    @property
    def filtered(self) -> bool:
        return replace(self, sort=GroupOrder.SEVERITY) != ListAddress()

    @property
    def narrowed(self) -> bool:
        """Whether there are filters besides that of the state."""
        return replace(self, sort=GroupOrder.SEVERITY) != ListAddress(self.state)

    def values(self) -> dict[str, str]:
        """What differs from the page without filters."""
        values = {
            "state": "" if self.state is StateFilter.ALL_OPEN else self.state.value,
            "target": self.target,
            "device": self.device,
            "assignee": self.assignee,
            "attention": self.attention.value if self.attention else "",
            "q": self.q,
            "sort": "" if self.sort is GroupOrder.SEVERITY else self.sort.value,
        }
        return {key: value for key, value in values.items() if value}

    def to(self, path: str = "/regressions", **changed: str) -> str:
        kept = {key: value for key, value in (self.values() | changed).items() if value}
        return f"{path}?{urlencode(kept)}" if kept else path

    @property
    def json(self) -> str:
        """The regressions of this state and target from the API, which has no further filters."""
        of = f"targets/{quote(self.target, safe='')}/" if self.target else ""
        return f"/api/v1/{of}regressions?{urlencode([('state', one.value) for one in self.states])}"

    def which(self, session: Session) -> RegressionFilter:
        """As the ledger has it.  Raises NotFound for a target that there is not."""
        return RegressionFilter(
            states=self.states,
            target=target_named(session, self.target) if self.target else None,
            device=self.device or None,
            assignee=self.assignee or None,
            attention=self.attention,
            text=self.q,
        )


async def _address(
    state: StateFilter = StateFilter.ALL_OPEN,
    target: Annotated[str, Query(max_length=80)] = "",
    device: Annotated[str, Query(max_length=40)] = "",
    assignee: Annotated[str, Query(max_length=80)] = "",
    attention: Attention | None = None,
    q: Annotated[str, Query(max_length=MAX_TEXT)] = "",
    sort: GroupOrder = GroupOrder.SEVERITY,
) -> ListAddress:
    return ListAddress(state, target, device, assignee, attention, q.strip(), sort)


Address = Annotated[ListAddress, Depends(_address)]


@router.get("/regressions")
def regressions(session: Reading, address: Address, cursor: Cursor = None) -> str:
    """List the regressions of all mainlines by the revision that caused them, the most severe first."""
    now = clock(session)
    found = grouped.grouped(session, address.which(session), now, address.sort, cursor, _GROUPS)
    shown = found.groups.items
    ids = {one.target_id for one in shown} | set(found.counts["target"])
    targets = {one.id: one for one in session.scalars(select(Target).where(Target.id.in_(ids)))}
    return page(
        "regressions.html",
        now=now,
        address=address,
        found=found,
        open=not set(address.states) <= set(CLOSED_REGRESSIONS),
        newest=grouped.MAX_CLOSED,
        lines=lines(shown, targets, commit_address, now),
        filters=_choices(address, found.counts, targets),
        sorts=GroupOrder,
        later=bool(cursor),
        next=address.to(cursor=found.groups.next) if found.groups.next else None,
        behind=session.scalar(_BEHIND),
    )


@router.get("/regressions/cases")
def cases(
    session: Reading,
    address: Address,
    revision: Annotated[str, Query(max_length=64)] = "",
    run: Annotated[int, Query(ge=0, le=2**62)] = 0,
    cursor: Cursor = None,
) -> str:
    """List the cases of one line; the list fetches them when it is unfolded."""
    which = address.which(session)
    if which.target is None or bool(revision) == bool(run):
        raise BadInput("Name a target, and a revision or a run of it.")
    group = grouped.in_group(which.target.id, named(session, which.target, revision).id if revision else None, run)
    found = _of_group(session, which, group, cursor)
    first = found.items[0] if found.items else None
    this = {"revision": revision, "run": str(run) if run else ""}
    return page(
        "regression_cases.html",
        now=clock(session),
        address=address,
        target=which.target,
        first=first,
        found=found.items,
        pull=_pull(session, which.target, first.run.revision.sha) if first else None,
        next=address.to("/regressions/cases", cursor=found.next, **this) if found.next else None,
    )


@router.get("/regressions.csv")
def regressions_csv(session: Reading, address: Address) -> Response:
    """The regressions that fit as CSV, a line for each case."""
    which = address.which(session)
    where = which.conditions(clock(session))
    found = listing.listed(session, limit=_EXPORTED, where=where).items
    headers = {"Content-Disposition": 'attachment; filename="regressions.csv"'}
    return Response(csv_text(_COLUMNS, _rows(found)), media_type="text/csv; charset=utf-8", headers=headers)


_COLUMNS = (
    *("id", "state", "target", "device", "provider", "case", "ratio", "low", "high", "revision", "run_id"),
    *("last_good", "culprit", "cause", "assignee", "due_at", "opened_at", "fixed_by"),
)


def _rows(found: Iterable[RegressionView]) -> Iterable[tuple[object, ...]]:
    for one in found:
        row = one.row
        yield (
            *(row.id, row.state.value, one.target, row.device, row.provider, row.case, row.ratio, row.low, row.high),
            *(one.run.revision.sha, row.run_id, row.good, row.culprit, row.cause_text, row.assignee),
            *(row.due_at, row.opened_at, one.fixed_by.revision.sha if one.fixed_by else None),
        )


def _of_group(
    session: Session, which: RegressionFilter, group: ColumnElement[bool], cursor: str | None
) -> ResultPage[RegressionView]:
    where: list[ColumnElement[bool] | TextClause] = [group, *which.conditions(clock(session))]
    if all(state in OPEN_REGRESSIONS for state in which.states):
        where.append(OPEN_ONES)  # has an index
    return listing.largest(session, where, cursor, _CASES)


def _pull(session: Session, target: Target, sha: str) -> int | None:
    """The pull request that was merged as this commit."""
    merged = select(Pull.number).where(Pull.target_id == target.id, Pull.merged_as == sha)
    return session.scalar(merged.order_by(Pull.number.desc()).limit(1))


def _choices(address: ListAddress, counts: Any, targets: dict[int, Target]) -> dict[str, list[FilterChoice]]:
    """The filters with their values: those that are chosen, and the most frequent others."""
    states = counts["state"]
    each = {one: states[RegressionState(one.value)] for one in StateFilter if one is not StateFilter.ALL_OPEN}
    of_open = sum(states[state] for state in OPEN_REGRESSIONS)
    return {
        "state": [
            FilterChoice("all open", of_open, address.to(state=""), address.state is StateFilter.ALL_OPEN),
            *(FilterChoice(one.value, n, address.to(state=one.value), address.state is one) for one, n in each.items()),
        ],
        "attention": [
            _choice(address, "attention", one.value, counts["attention"][one], address.attention is one)
            for one in Attention
        ],
        "target": _frequent(address, "target", {targets[one].name: n for one, n in counts["target"].items()}),
        "device": _frequent(address, "device", counts["device"]),
        "assignee": _frequent(address, "assignee", counts["assignee"]),
    }


def _frequent(address: ListAddress, name: str, counts: dict[str, int]) -> list[FilterChoice]:
    chosen = getattr(address, name)
    values = sorted(counts, key=lambda one: (one != chosen, -counts[one], one))
    if chosen and chosen not in values:
        values.insert(0, chosen)
    return [_choice(address, name, one, counts.get(one, 0), one == chosen) for one in values[:_CHOICES]]


def _choice(address: ListAddress, name: str, value: str, count: int, chosen: bool) -> FilterChoice:
    """Choosing again what is chosen takes the filter away."""
    return FilterChoice(value, count, address.to(**{name: "" if chosen else value}), chosen)
