"""The revisions of a bisection as a strip: what is known of each of them.  Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from service.domain.bisection.classify import Answer
from service.domain.bisection.search import Progress

STEP = 12.0  # px a revision
MAX_PLACES = 80  # of more revisions, neighbours of which nothing is known share a place


class Known(StrEnum):
    """What is known of a revision; the words of the legend."""

    GOOD = "as fast as the good end"
    BAD = "as slow as the bad end"
    CULPRIT = "culprit"
    SKIPPED = "cannot be tested"
    PENDING = "measured now"
    SUSPECT = "may be the culprit"
    CLEARED = "is not the culprit"


@dataclass(frozen=True)
class StripPlace:
    """Revisions next to each other of which the same is known."""

    x: float
    known: Known
    first: str
    count: int
    run_id: int | None


@dataclass(frozen=True)
class SearchStrip:
    """The revisions of a bisection, the good end at the left."""

    width: float
    places: tuple[StripPlace, ...]
    said: str


def search_strip(
    line: Sequence[str], progress: Progress, runs: dict[str, int], pending: tuple[str, int] | None
) -> SearchStrip:
    """Draw `line`; `runs` are the newest run by revision, `pending` the step that is queued or measured."""
    answers = {one.question.revision: one.answer for one in progress.answered}
    known = [_known(sha, n, len(line), answers, progress, pending) for n, sha in enumerate(line)]
    if pending is not None:
        runs = runs | {pending[0]: pending[1]}
    alone = {0, len(line) - 1, *(n for n, sha in enumerate(line) if len(line) <= MAX_PLACES or sha in answers)}
    kinds = [(each, n if n in alone else None) for n, each in enumerate(known)]
    groups = [list(group) for _, group in groupby(range(len(line)), key=kinds.__getitem__)]
    places = tuple(
        StripPlace(n * STEP, known[group[0]], line[group[0]], len(group), runs.get(line[group[0]]))
        for n, group in enumerate(groups)
    )
    counts = [f"{sum(one is each for one in known)} {each.value}" for each in Known if each in known]
    return SearchStrip(len(places) * STEP, places, ", ".join(counts))


def _known(
    sha: str,
    place: int,
    length: int,
    answers: dict[str, Answer],
    progress: Progress,
    pending: tuple[str, int] | None,
) -> Known:
    if progress.culprit == sha:
        return Known.CULPRIT
    if pending is not None and pending[0] == sha:
        return Known.PENDING
    answer = answers.get(sha, Answer.GOOD if place == 0 else Answer.BAD if place == length - 1 else None)
    match answer:
        case Answer.GOOD:
            return Known.GOOD
        case Answer.BAD:
            return Known.BAD
        case Answer.SKIP:
            return Known.SKIPPED
        case _:
            return Known.SUSPECT if sha in progress.suspects else Known.CLEARED
