"""Texts of changed kernels: show their differences, or write all of them into a folder."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from kernels.cases import Case, Role
from service.domain.codefacts.diff import Moved
from service.domain.codefacts.normalise import KINDS, Difference, difference, mix
from service.domain.codefacts.texts import KernelText
from service.errors import BadInput
from workers.compile.offline import Bench, Job, Text
from workers.environments import Environment

MAX_DIFFERENCES = 6  # shown; all of them go into a folder
MAX_STORED = 40  # changed kernels whose texts a check stores
MAX_TEXTS = 200  # kernels whose texts are written


@dataclass(frozen=True)
class Texts:
    """Gets texts from the contenders of both revisions."""

    bench: Bench
    before: Environment
    after: Environment
    providers: Mapping[str, Mapping[str, Any]]

    def of(self, moved: Sequence[Moved], kinds: Sequence[str]) -> dict[tuple[int, str], tuple[str, str]]:
        """(before, after) of each kernel by its number and kind, where at least one of them is there."""
        sides = [(self.before, "before"), (self.after, "after")]
        asked: dict[tuple[int, str], list[tuple[Job, Text] | None]] = {}
        wanted: dict[Job, list[Text]] = {}
        for number, one in enumerate(moved):
            for kind, (place, side) in product(kinds, sides):
                question = None
                if (kernel := getattr(one, side)) is not None:
                    job = Job(place, self.providers[one.place.provider], one.place.arch)
                    question = job, (Case.parse(one.place.case), kernel, kind)
                    wanted.setdefault(job, []).append(question[1])
                asked.setdefault((number, kind), []).append(question)
        said = self.bench.texts(wanted)
        pairs = {key: ["" if one is None else said.get(one, "") for one in both] for key, both in asked.items()}
        return {key: (old, new) for key, (old, new) in pairs.items() if old or new}


def differences(texts: Texts, moved: Sequence[Moved], kind: str, notes: list[str]) -> tuple[Difference, ...]:
    shown, found = moved[:MAX_DIFFERENCES], []
    pairs = texts.of(shown, [kind])
    for number, one in enumerate(shown):
        if (number, kind) not in pairs:
            notes.append(f"There is no {kind} of {one.name} at {one.place.case} on {one.place.arch}.")
            continue
        lines, cut = difference(kind, *pairs[number, kind])
        about = one.place.provider, one.place.case, one.place.arch, one.name, kind
        summary = mix(*pairs[number, kind]) if kind == "sass" else ""
        found.append(Difference(*about, lines, cut, summary, one.places))
    if rest := len(moved) - len(shown):
        notes.append(f"{rest} more kernels changed; --texts FOLDER writes the texts of all.")
    return tuple(found)


def stored(texts: Texts, moved: Sequence[Moved]) -> tuple[KernelText, ...]:
    """The texts of the first changed kernels before and after, at every place where they changed alike."""
    few = moved[:MAX_STORED]
    found = []
    for (number, kind), pair in texts.of(few, KINDS).items():
        one = few[number]
        for role, kernel, text in zip((Role.PARENT, Role.HEAD), (one.before, one.after), pair, strict=True):
            if text and kernel is not None:
                which = one.after if one.after is not None else kernel  # the same for both sides of a pair
                found += [
                    KernelText(f"{role}:{place.provider}", place.case, which, one.name, kind, text, place.arch)
                    for place in one.every
                ]
    return tuple(found)


def written(texts: Texts, moved: Sequence[Moved], folder: Path) -> str:
    """Write before and after of every changed kernel in every kind, and say where."""
    count = 0
    for (number, kind), pair in texts.of(moved[:MAX_TEXTS], KINDS).items():
        one = moved[number]
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", one.name)[:80]
        which = f"gone{one.before}" if one.after is None else str(one.after)
        place = folder / one.place.arch / one.place.provider / one.place.case
        try:
            place.mkdir(parents=True, exist_ok=True)
            for side, text in zip(("before", "after"), pair, strict=True):
                if text:
                    (place / f"{which}-{plain}.{side}.{kind}").write_text(text, errors="replace")
                    count += 1
        except OSError as error:
            raise BadInput(f"The texts cannot be written to {place}: {error.strerror}.") from None
    return f"{count} texts of {min(len(moved), MAX_TEXTS)} changed kernels were written to {folder}."
