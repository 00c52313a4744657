"""What somebody types into the search field, and what it may mean.  Pure."""

import re
from dataclasses import dataclass
from enum import StrEnum

from service.domain.text import one_line

MAX_QUERY = 200  # characters
MIN_SHA = 4  # characters of a commit
_MAX_WORDS = 8
_ID = "[1-9][0-9]{0,17}"  # fits into a column of the database


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
    if found := _OF_KIND.fullmatch(text):
        kinds = (HitKind(found[1].lower()),) if found[1] else NUMBERED
        return Lookup(text, words, int(found[2]), kinds, sha=sha)
    if found := _OF_REPOSITORY.fullmatch(text):
        return Lookup(text, words, int(found[2]), (HitKind.PULL,), repository=found[1])
    return Lookup(text, words, sha=sha)
