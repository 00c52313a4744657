"""Find things by what people type: a name, a number, the beginning of a commit.  Every list is bounded.

What the reader may not know of is hidden from the session (`service.db.visibility`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import exists, func, or_, select
from sqlalchemy.orm import Session, joinedload

from service.db.models import Bisection, Incident, RegressionRow, Revision, Run, Series, Target, Worker
from service.domain.states import Purpose
from service.domain.text import one_line

MAX_QUERY = 200  # characters
MIN_SHA = 4  # characters of a commit
_MAX_WORDS = 8
_ID = "[1-9][0-9]{0,17}"  # fits into a column of the database
MAX_HITS = 20  # of each kind
_READ = MAX_HITS + 1  # one more says that there are more


class HitKind(StrEnum):
    """What a search finds, in the order of its page."""

    TARGET = "target"
    COMMIT = "commit"
    PULL = "pull request"
    RUN = "run"
    REGRESSION = "regression"
    INCIDENT = "incident"
    BISECTION = "bisection"
    CASE = "case"
    WORKER = "worker"


NUMBERED = (HitKind.PULL, HitKind.RUN, HitKind.REGRESSION, HitKind.INCIDENT, HitKind.BISECTION)
_OF_KIND = re.compile(rf"(?:({'|'.join(NUMBERED)})\s+)?[#!]?({_ID})", re.IGNORECASE)
_OF_REPOSITORY = re.compile(rf"(\S+?)\s*[#!]({_ID})")
_SHA = re.compile(f"[0-9a-f]{{{MIN_SHA},64}}")


@dataclass(frozen=True)
class Lookup:
    """A query by its meanings."""

    text: str = ""
    words: tuple[str, ...] = ()  # each is in the name of a case
    number: int | None = None
    kinds: tuple[HitKind, ...] = NUMBERED  # of which `number` may be the id
    repository: str | None = None  # of the pull request `number`: a target's name or the path at its forge
    sha: str | None = None  # the beginning of a commit


def parse(query: str) -> Lookup:
    """Read `norms`, `3f2a`, `7`, `#7`, `run 7`, `octo/norms#7`, or words that the name of a case has."""
    text = one_line(query, MAX_QUERY)
    sha = text.lower() if _SHA.fullmatch(text.lower()) else None
    words = tuple(text.split()[:_MAX_WORDS])
    if match := _OF_KIND.fullmatch(text):
        kinds = (HitKind(match[1].lower()),) if match[1] else NUMBERED
        return Lookup(text, words, int(match[2]), kinds, sha=sha)
    if match := _OF_REPOSITORY.fullmatch(text):
        return Lookup(text, words, int(match[2]), (HitKind.PULL,), repository=match[1])
    return Lookup(text, words, sha=sha)


@dataclass(frozen=True)
class Hit:
    """A thing that was found; which fields it has depends on its kind."""

    kind: HitKind
    target: Target | None = None  # of everything but workers
    id: int = 0  # its number at the forge, of a pull request
    revision: Revision | None = None
    run_id: int | None = None  # the newest one of a commit
    series: Series | None = None  # of a case or a regression
    worker: Worker | None = None


@dataclass(frozen=True)
class Hits:
    """What was found, by kind."""

    found: tuple[Hit, ...]
    cut: frozenset[HitKind]  # kinds of which there is more than was read

    @property
    def only(self) -> Hit | None:
        """The single thing that fits."""
        return self.found[0] if len(self.found) == 1 else None


def lookup(session: Session, query: Lookup) -> Hits:
    """Everything that fits, in the order of `HitKind`."""
    if not query.text:
        return Hits((), frozenset())
    lists = {
        HitKind.TARGET: _targets(session, query),
        HitKind.COMMIT: _commits(session, query),
        HitKind.PULL: _pulls(session, query),
        HitKind.RUN: _runs(session, query),
        HitKind.REGRESSION: _regressions(session, query),
        HitKind.INCIDENT: _incidents(session, query),
        HitKind.BISECTION: _bisections(session, query),
    }
    if not any(lists[kind] for kind in query.kinds if query.number is not None):  # most cases have a 1 in their name
        lists[HitKind.CASE] = _cases(session, query)
    lists[HitKind.WORKER] = _workers(session, query)
    return Hits(
        tuple(hit for hits in lists.values() for hit in hits[:MAX_HITS]),
        frozenset(kind for kind, hits in lists.items() if len(hits) > MAX_HITS),
    )


def _targets(session: Session, query: Lookup) -> Sequence[Hit]:
    named = or_(
        Target.name.icontains(query.text, autoescape=True),
        Target.forge.icontains(query.text, autoescape=True),
    )
    targets = session.scalars(select(Target).where(named).order_by(Target.name).limit(_READ))
    return [Hit(HitKind.TARGET, target) for target in targets]


def _commits(session: Session, query: Lookup) -> Sequence[Hit]:
    """Commits by a beginning, and versions by their whole name."""
    named = Revision.sha == query.text
    if query.sha is not None:
        # As a range, which an index finds.  The digits of a sha are smaller than "g".
        begins = Revision.sha.between(query.sha, query.sha + "g") & Revision.sha.startswith(query.sha)
        named = or_(named, begins)
    statement = select(Revision).where(named).options(joinedload(Revision.target))
    revisions = session.scalars(statement.order_by(Revision.sha, Revision.id).limit(_READ)).all()
    newest = (
        select(Run.revision_id, func.max(Run.id))
        .where(Run.revision_id.in_([revision.id for revision in revisions]), Run.purpose == Purpose.WATCH)
        .group_by(Run.revision_id)
    )
    runs = dict(session.execute(newest).all()) if revisions else {}
    return [
        Hit(HitKind.COMMIT, revision.target, revision.id, revision, runs.get(revision.id)) for revision in revisions
    ]


def _pulls(session: Session, query: Lookup) -> Sequence[Hit]:
    """Pull requests of which a run was queued; their page is made of those."""
    number = _number(query, HitKind.PULL)
    if number is None:
        return ()
    measured = exists().where(Run.target_id == Target.id, Run.pull == number)
    wanted = select(Target).where(measured).order_by(Target.name)
    if query.repository is not None:
        named = func.lower(Target.forge) == query.repository.lower()
        wanted = wanted.where(or_(Target.name == query.repository, named))
    targets = session.scalars(wanted.limit(_READ))
    return [Hit(HitKind.PULL, target, number) for target in targets]


def _runs(session: Session, query: Lookup) -> Sequence[Hit]:
    number = _number(query, HitKind.RUN)
    names = (joinedload(Run.target), joinedload(Run.revision))
    run = session.scalar(select(Run).where(Run.id == number).options(*names)) if number else None
    return [Hit(HitKind.RUN, run.target, run.id, run.revision, run.id)] if run else ()


def _regressions(session: Session, query: Lookup) -> Sequence[Hit]:
    number = _number(query, HitKind.REGRESSION)
    statement = select(RegressionRow, Target).join(RegressionRow.series).join(Target, Target.id == Series.target_id)
    regression = session.execute(statement.where(RegressionRow.id == number)).first() if number else None
    return [Hit(HitKind.REGRESSION, regression[1], regression[0].id, series=regression[0].series)] if regression else ()


def _incidents(session: Session, query: Lookup) -> Sequence[Hit]:
    number = _number(query, HitKind.INCIDENT)
    statement = select(Incident, Target).join(Target, Target.id == Incident.target_id)
    whole = statement.options(joinedload(Incident.revision)).where(Incident.id == number)
    incident = session.execute(whole).first() if number else None
    return [Hit(HitKind.INCIDENT, incident[1], incident[0].id, incident[0].revision)] if incident else ()


def _bisections(session: Session, query: Lookup) -> Sequence[Hit]:
    number = _number(query, HitKind.BISECTION)
    statement = select(Bisection).options(joinedload(Bisection.target)).where(Bisection.id == number)
    bisection = session.scalar(statement) if number else None
    return [Hit(HitKind.BISECTION, bisection.target, bisection.id)] if bisection else ()


def _cases(session: Session, query: Lookup) -> Sequence[Hit]:
    """Series of which the case has every word in its name.  There are some hundred of a target, so all are read."""
    named = [Series.printed.icontains(word, autoescape=True) for word in query.words]
    statement = select(Series, Target).join(Target, Target.id == Series.target_id).where(*named)
    ordered = statement.order_by(Target.name, Series.case, Series.metric, Series.device, Series.provider)
    return [
        Hit(HitKind.CASE, target, series.id, series=series) for series, target in session.execute(ordered.limit(_READ))
    ]


def _workers(session: Session, query: Lookup) -> Sequence[Hit]:
    named = Worker.name.icontains(query.text, autoescape=True)
    workers = session.scalars(select(Worker).where(named).order_by(Worker.name).limit(_READ))
    return [Hit(HitKind.WORKER, id=worker.id, worker=worker) for worker in workers]


def _number(query: Lookup, kind: HitKind) -> int | None:
    return query.number if kind in query.kinds else None
