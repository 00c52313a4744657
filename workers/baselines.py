"""The revisions that a head is measured beside: its parent, the last good one where that is slow, the slow baseline.

All of them are built here.  What cannot be built is no fault of the head's: a note says so, and the run goes on.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from service.database import reading
from service.errors import BadInput, BuildFailed, NotFound, Refused, SourceFailed
from service.ledger import references
from service.models import Purpose
from service.recipes import LAST_RELEASE
from service.sources import Source
from service.texts import one_line, short
from workers import environments
from workers.assignments import Assignment
from workers.environments import Environment

FARTHEST_BASELINE = 20  # how many parents back a usable baseline is looked for
MOST_GOOD = 2  # last good revisions of one session: each is another build, and processes of its own

_UNAVAILABLE = (SourceFailed, BuildFailed, BadInput, NotFound, Refused)
Name = tuple[str, str]  # of a cell: provider and case


@dataclass(frozen=True)
class Built:
    """A revision that is ready to run; at `names` alone, where any are named."""

    sha: str
    place: Environment
    names: frozenset[Name] | None = None


@dataclass(frozen=True)
class References:
    """Who stands beside the head in its session, and why it is not who one would expect."""

    parent: Built | None
    good: tuple[Built, ...] = ()
    slow: Built | None = None
    notes: tuple[str, ...] = ()


class Baselines:
    """Finds and builds what one run is compared with; `keep_going` raises when the run is not ours any more."""

    def __init__(self, assignment: Assignment, source: Source, keep_going: Callable[[], None]) -> None:
        self._assignment, self._source, self._keep_going = assignment, source, keep_going

    def build(self, sha: str) -> Environment:
        """The environment of a revision.  Raises what building it raises."""
        return environments.build(
            self._source,
            sha,
            self._assignment.recipe,
            self._assignment.adapters,
            kind=self._assignment.target.kind.value,
            sandboxed=self._assignment.sandboxed,
            keep_going=self._keep_going,
        )

    def beside(self) -> References:
        """All that the head is measured beside.  A search and a calibration ask for exactly their baseline."""
        run = self._assignment.run
        if run.purpose is not Purpose.WATCH and run.baseline is not None:
            return References(Built(run.baseline, self._asked(run.baseline)))
        parent, notes = self._parent()
        good, good_notes = self._good(parent.sha) if parent else ((), ())
        slow, slow_notes = self._slow(parent)
        return References(parent, good, slow, (*notes, *good_notes, *slow_notes))

    def _asked(self, sha: str) -> Environment:
        """Without it there is nothing to say; and it is not the revision that fails then."""
        try:
            return self.build(sha)
        except BuildFailed as failure:
            raise BuildFailed(f"{short(sha)}, which it was to be compared with: {failure}", failure.log) from None

    # -- did this commit do it? ---------------------------------------------------------------------------------------

    def _parent(self) -> tuple[Built | None, tuple[str, ...]]:
        """The nearest first-parent ancestor that can be measured, and why it is not the parent itself.

        Where none is fit, the nearest that is wrong somewhere and can be built: at the cases that it gets right it
        serves as well.
        """
        run, sha = self._assignment.run, self._assignment.run.baseline
        passed, wrong = list[str](), list[str]()
        for _ in range(FARTHEST_BASELINE):
            if sha is None:
                break
            with reading() as session:
                why = references.unfit(session, run.target, sha, run.device)
            if why is not None:
                wrong += [sha] if why != references.DOES_NOT_BUILD else []
            elif isinstance(built := self._built(sha), Environment):
                return Built(sha, built), (*passed, f"compared with {sha[:10]} instead") if passed else ()
            else:
                why = built
            passed.append(f"{sha[:10]} was passed over as baseline: {why}")
            sha = self._parent_of(sha)
        for sha in wrong:
            if isinstance(built := self._built(sha), Environment):
                all_the_same = f"compared with {sha[:10]} all the same, since no earlier revision is fit"
                return Built(sha, built), (*passed, all_the_same)
        return None, (*passed, "there is no earlier revision to compare with")

    def _built(self, sha: str) -> Environment | str:
        """The environment of a baseline, or why there can be none; what may pass is tried again with the run."""
        try:
            return self.build(sha)
        except SourceFailed as failure:
            if failure.passing:
                raise
            return str(failure)
        except (BuildFailed, BadInput, NotFound) as failure:
            return str(failure)

    def _parent_of(self, sha: str) -> str | None:
        try:
            return self._source.describe(sha).parent
        except (BadInput, NotFound):  # history was rewritten, or a release taken back: nothing leads further
            return None

    # -- what does not become a reference by itself -------------------------------------------------------------------

    def _good(self, parent: str) -> tuple[tuple[Built, ...], tuple[str, ...]]:
        """Of the cases at which the parent is slow already, the last revisions at which they were not."""
        run = self._assignment.run
        with reading() as session:
            last_good = references.last_good(session, run.target_id, run.device, parent)
        built, notes = list[Built](), list[str]()
        for sha, names in _by_revision(last_good, self._names(), apart=(parent, run.revision.sha)):
            cases = f"{len(names)} case{'' if len(names) == 1 else 's'} at which the baseline is slow already"
            if len(built) == MOST_GOOD:
                notes.append(f"{short(sha)}, the last good revision of {cases}, is one too many for this session")
                continue
            try:
                built.append(Built(sha, self.build(sha), names))
            except _UNAVAILABLE as failure:
                notes.append(f"{short(sha)}, the last good revision of {cases}, is not there: {one_line(str(failure))}")
        return tuple(built), tuple(notes)

    def _names(self) -> frozenset[Name]:
        providers = self._assignment.recipe.providers_on(self._assignment.run.device)
        return frozenset((provider, str(case)) for provider in providers for case in self._assignment.cases)

    # -- what leaked away in small steps ------------------------------------------------------------------------------

    def _slow(self, parent: Built | None) -> tuple[Built | None, tuple[str, ...]]:
        """The slow baseline of a run of the mainline, where that is neither the head nor its baseline itself."""
        run, named = self._assignment.run, self._assignment.recipe.slow
        if named is None or not run.watched:
            return None, ()
        head = run.revision.sha
        try:
            last = named == LAST_RELEASE
            sha = self._source.last_release(head) if last else self._source.resolve(named)
            if sha is None:
                return None, ("there is no release before this revision to compare with",)
            if sha in (head, parent.sha if parent else None) or self._source.merge_base(sha, head) == head:
                return None, ()  # of a revision from before it there is nothing to say
            return Built(sha, self.build(sha)), ()
        except _UNAVAILABLE as failure:
            return None, (f"not compared with the slow baseline {named}: {one_line(str(failure))}",)


def _by_revision(
    last_good: Mapping[Name, str], asked: frozenset[Name], apart: Iterable[str]
) -> list[tuple[str, frozenset[Name]]]:
    """The revisions with what they were good at, those with most of it first."""
    found = defaultdict[str, set[Name]](set)
    for name, sha in last_good.items():
        if name in asked and sha not in apart:
            found[sha].add(name)
    return [(sha, frozenset(names)) for sha, names in sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))]
