"""How the facts of one case moved over revisions, and what moved them: a commit, the stack, or neither.  Pure.

Each run measures a revision and its parent in one session.  So the difference between head and parent is the commit's,
and the difference between the parent of this session and the same revision in its own session is not: the code is
equal, and only the stack or the choice of an autotuner can have changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from service.domain.codefacts.comparison import LABELS, configurations, differences
from service.domain.codefacts.compiled import kernels_of, whole
from service.domain.codefacts.measured import interchangeable
from service.domain.states import MovedBy

Facts = Mapping[str, Any]
SAME_CODE = ("same code", "same operators")


@dataclass(frozen=True)
class FactsAt:
    """The facts of a case in the session of one revision."""

    run_id: int
    sha: str
    ordinal: int
    at: float
    stack_id: int | None
    head: Facts
    parent_sha: str | None = None
    parent: Facts | None = None  # of the parent in the same session; None where it was not measured


@dataclass(frozen=True)
class FactsMove:
    """What differs at a revision, and why."""

    at: FactsAt
    since: FactsAt  # the revision before
    by: MovedBy
    differences: tuple[str, ...]  # in words; the equality of the code is none


@dataclass(frozen=True)
class ConfigurationSpan:
    """Revisions in a row that ran one configuration."""

    configuration: str
    first: FactsAt
    revisions: int
    by: tuple[MovedBy, ...]  # what changed it at the first one; empty for the oldest that is known


@dataclass(frozen=True)
class FactTrack:
    """One fact over the revisions that have it: the place in the sequence, and the value."""

    name: str
    label: str
    values: tuple[tuple[int, float], ...]

    @property
    def moves(self) -> int:
        return sum(before != now for (_, before), (_, now) in pairwise(self.values))


def drifted(earlier: Facts, now: Facts) -> tuple[str, str] | None:
    """The configurations of one revision in two sessions, where they differ; None where neither explains anything.

    A contender whose autotuner wavered between trials, and ran the same configuration in some trial of both sessions,
    did not drift.
    """
    before, after = configuration(earlier), configuration(now)
    if not before or not after or before == after or interchangeable(now, earlier):
        return None
    return before, after


def configuration(facts: Facts) -> str:
    """The configurations of a contender's kernels, or what an old session stored of them; empty if unknown."""
    stored = facts.get("config")
    return configurations(facts) or (stored if isinstance(stored, str) else "")


def moves(history: Sequence[FactsAt]) -> list[FactsMove]:
    """What moved at each revision, oldest first."""
    moves = []
    for before, now in pairwise(history):
        same_stack = before.stack_id == now.stack_id
        paired = now.parent is not None and now.parent_sha == before.sha
        if paired and now.parent is not None:
            between = MovedBy.NOTHING if same_stack else MovedBy.STACK
            moves.append(FactsMove(now, before, between, _differences(now.parent, before.head)))
            moves.append(FactsMove(now, before, MovedBy.COMMIT, _differences(now.head, now.parent)))
        else:
            by = MovedBy.COMMIT if same_stack else MovedBy.STACK
            moves.append(FactsMove(now, before, by, _differences(now.head, before.head)))
    return [move for move in moves if move.differences]


def configuration_spans(history: Sequence[FactsAt]) -> list[ConfigurationSpan]:
    """The configurations of a case as a series, oldest first; revisions without a known one are left out."""
    configured = [(facts, configuration(facts.head)) for facts in history if configuration(facts.head)]
    spans = list[ConfigurationSpan]()
    last: FactsAt | None = None
    for now, chosen in configured:
        if last is None or (chosen != spans[-1].configuration and not interchangeable(now.head, last.head)):
            spans.append(ConfigurationSpan(chosen, now, 1, _configured_by(last, now) if last else ()))
        else:
            spans[-1] = replace(spans[-1], revisions=spans[-1].revisions + 1)
        last = now
    return spans


def _configured_by(before: FactsAt, now: FactsAt) -> tuple[MovedBy, ...]:
    """What changed the configuration between two revisions: the commit, and what its parent ran before and now."""
    between = MovedBy.NOTHING if before.stack_id == now.stack_id else MovedBy.STACK
    if now.parent is None or now.parent_sha != before.sha:
        return (MovedBy.COMMIT if between is MovedBy.NOTHING else between,)
    by_others = (between,) if drifted(before.head, now.parent) else ()
    return by_others + ((MovedBy.COMMIT,) if drifted(now.parent, now.head) else ())


def _differences(now: Facts, before: Facts) -> tuple[str, ...]:
    return tuple(difference for difference in differences(now, before) if difference not in SAME_CODE)


def tracks(history: Sequence[FactsAt]) -> list[FactTrack]:
    """Each numeric fact that any revision has, over the revisions."""
    tracks = []
    for name in _TRACKED:
        values = [
            (place, value) for place, facts in enumerate(history) if (value := _value(facts.head, name)) is not None
        ]
        if values:
            label = f"{LABELS[name]}, %" if name == "occupancy" else LABELS[name]
            tracks.append(FactTrack(name, label, tuple(values)))
    return tracks


def _value(facts: Facts, name: str) -> float | None:
    """Of the kernels' occupancy the lowest, in per cent; of their instructions the sum."""
    if name not in ("occupancy", "instructions"):
        return whole(facts.get(name))
    kernels = kernels_of(facts.get("triton"))
    values: list[float] = [value for kernel in kernels if (value := getattr(kernel, name)) is not None]
    if not values:
        return None
    return 100 * min(values) if name == "occupancy" else sum(values)


_TRACKED: tuple[str, ...] = ("registers", "spills", "occupancy", "shared", "kernels", "instructions")
_TRACKED += ("graphs", "graph_breaks", "recompiles")
