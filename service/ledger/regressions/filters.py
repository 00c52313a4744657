"""Filters of regressions as values: conditions in a query, and for a page the same of groups that were read already."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import ColumnElement, exists, or_

from service.db.models import RegressionRow, Revision, Run, Series, Target
from service.domain.states import OPEN_REGRESSIONS, RegressionState

MAX_TEXT = 100
ACCEPTED = RegressionState.ACKNOWLEDGED  # nobody has to look at it before its date


class Attention(StrEnum):
    """What an open regression lacks."""

    UNASSIGNED = "unassigned"
    OVERDUE = "overdue"


@dataclass(frozen=True)
class RegressionFilter:
    """Which regressions; None and empty do not limit."""

    states: Collection[RegressionState] = ()
    target: Target | None = None
    device: str | None = None
    assignee: str | None = None
    attention: Attention | None = None
    text: str = ""  # of a case, of the subject of the commit, or with which a sha begins

    def conditions(self, now: float) -> list[ColumnElement[bool]]:
        """Conditions for a query of regressions and their series."""
        wanted: list[ColumnElement[bool]] = []
        if self.states:
            wanted.append(RegressionRow.state.in_(self.states))
        if self.target is not None:
            wanted.append(Series.target_id == self.target.id)
        if self.device is not None:
            wanted.append(Series.device == self.device)
        if self.assignee is not None:
            wanted.append(RegressionRow.assignee == self.assignee)
        if self.attention is not None:
            wanted += lacking(self.attention, now)
        if self.text:
            wanted.append(_named(self.text))
        return wanted


def lacking(what: Attention, now: float) -> list[ColumnElement[bool]]:
    """The conditions of regressions that lack this."""
    waiting = [state for state in OPEN_REGRESSIONS if state is not ACCEPTED]
    lacks = RegressionRow.assignee.is_(None) if what is Attention.UNASSIGNED else RegressionRow.due_at < now
    return [RegressionRow.state.in_(waiting), lacks]


def _named(text: str) -> ColumnElement[bool]:
    """Regressions of which the case, the commit or its subject is named so."""
    within = f"%{_literally(text)}%"
    begins = f"{_literally(text.lower())}%"
    of_run = exists().where(
        Run.id == RegressionRow.run_id,
        Revision.id == Run.revision_id,
        or_(Revision.subject.ilike(within, escape="\\"), Revision.sha.like(begins, escape="\\")),
    )
    return or_(Series.printed.ilike(within, escape="\\"), RegressionRow.culprit.like(begins, escape="\\"), of_run)


def _literally(text: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", text)
