"""The revisions of a bisection as a strip: what is known of each of them.  Pure."""

from collections.abc import Sequence
from contextlib import nullcontext
from enum import StrEnum
from itertools import groupby

from dashboards.drawing import Figure
from service.domain.bisection.search import Answer, Progress
from service.domain.text import short

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


_OF_ANSWER = {Answer.GOOD: Known.GOOD, Answer.BAD: Known.BAD, Answer.SKIP: Known.SKIPPED}
# Top and height in px: slower stands above the middle and faster below it, so that nobody has to tell their colours.
_PLACES = {Known.CULPRIT: (2, 18), Known.BAD: (2, 10), Known.GOOD: (10, 10)}


def search_strip(
    line: Sequence[str], progress: Progress, runs: dict[str, int], pending: tuple[str, int] | None
) -> tuple[Figure, str]:
    """Draw `line`, the good end at the left, and say what is known of how many; `pending` is measured now.

    `runs` are the newest run by revision.
    """
    answers = {one.question.revision: one.answer for one in progress.answered}
    of_ends = dict(zip((*line[-1:], *line[:1]), (Answer.BAD, Answer.GOOD), strict=False))
    words = {sha: _OF_ANSWER.get(answer) for sha, answer in (of_ends | answers).items()}
    if pending is not None:
        words[pending[0]] = Known.PENDING
        runs = runs | {pending[0]: pending[1]}
    if progress.culprit is not None:
        words[progress.culprit] = Known.CULPRIT
    known = [words.get(sha) or (Known.SUSPECT if sha in progress.suspects else Known.CLEARED) for sha in line]
    alone = {0, len(line) - 1, *(n for n, sha in enumerate(line) if len(line) <= MAX_PLACES or sha in answers)}
    kinds = [(each, n if n in alone else None) for n, each in enumerate(known)]
    groups = [list(group) for _, group in groupby(range(len(line)), key=kinds.__getitem__)]
    said = ", ".join(f"{sum(one is each for one in known)} {each.value}" for each in Known if each in known)
    name = f"{len(groups)} places from the good end to the bad one: {said}"
    figure = Figure(len(groups) * STEP, 22, name, role="group", width=len(groups) * STEP, height=22)
    for n, group in enumerate(groups):
        sha, kind = short(line[group[0]]), known[group[0]]
        run_id, more = runs.get(line[group[0]]), f" and {len(group) - 1} more" if len(group) > 1 else ""
        y, height = _PLACES.get(kind, (6, 10))
        link = figure.within("a", href=f"/runs/{run_id}", aria_label=f"{sha} {kind.value}") if run_id else nullcontext()
        with link:
            figure.add(
                "rect", title=f"{sha}{more}: {kind.value}", kind=f"rev {kind.name.lower()}",
                x=n * STEP + 1, y=y, width=10, height=height, rx=2,
            )  # fmt: skip
    return figure, said
