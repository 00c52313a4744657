"""Follows a commit, a sample and a threshold through the files of a tree, in one story: `python -P walks.py TREE`."""

import inspect
import json
import math
import os
import statistics
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

ROOMS = ("kernels", "service", "workers", "dashboards")
STORY = "test_a_slow_pull_request_is_told_so_once_and_the_comment_is_edited_in_place"
THRESHOLD = 0.05173  # instead of the `smallest_change` of the recipe of the stories
MAX_LEVELS, MAX_NESTED, MAX_MEMBERS = 2, 6, 50


@dataclass
class Walk:
    """Where values were: by file, the fewest attributes between an argument of a function there and one of them."""

    values: set[object] = field(default_factory=set)
    files: dict[str, int] = field(default_factory=dict)
    names: Counter[str] = field(default_factory=Counter)


class Walks:
    """A plugin of pytest that follows a commit, a sample and a threshold through the functions of a tree.

    Commit: the first head of the pull request, from its webhook until its comment is posted.
    Sample: the times of each turn and their median, in the same interval; the processes of contenders are not followed.
    Threshold: `smallest_change` and its logarithm, from the registration of the recipe until that comment is posted.
    """

    def __init__(self, tree: Path) -> None:
        self._tree = f"{tree}/"
        self.commit, self.sample, self.threshold = Walk(), Walk(), Walk({THRESHOLD, math.log1p(THRESHOLD)})
        self._on: list[Walk] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        """Plant the threshold, and follow the first head of a pull request."""
        module = items[0].module
        usual = module.Story.recipe
        module.Story.recipe = usual.replace("smallest_change = 0.05\n", f"smallest_change = {THRESHOLD}\n")
        if module.Story.recipe == usual:
            raise pytest.UsageError("The recipe of the story has no `smallest_change = 0.05` to replace.")
        head = module.Story.head

        def followed(story: object, number: int, sha: str, **rest: object) -> None:
            if not self.commit.values:
                self.commit.values.add(sha)
                self._on = [self.commit, self.sample, self.threshold]
            head(story, number, sha, **rest)
            self._on = []

        module.Story.head = followed
        json.loads = partial(self._read, json.loads)
        self._on = [self.threshold]

    def _read(self, loads: Callable[..., object], *given: object, **rest: object) -> object:
        """`json.loads`, which remembers the samples of contenders."""
        answer = loads(*given, **rest)
        if self.sample in self._on and isinstance(answer, dict) and isinstance(answer.get("samples"), list):
            self.sample.values.update(answer["samples"], [statistics.median(answer["samples"])])
        return answer

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Look at the arguments of a function that starts, and at the local names of one that ends."""
        file = frame.f_code.co_filename.removeprefix(self._tree)
        if not self._on or event not in ("call", "return") or file.split("/")[0] not in ROOMS:
            return
        named, *more = inspect.getargs(frame.f_code)
        arguments = {*named, *more} if event == "call" else set()
        for name, value in list(frame.f_locals.items()):
            for walk in self._on:
                for level, last in found(value, walk.values, name):
                    walk.names[last] += 1
                    if name in arguments:
                        walk.files[file] = min(level, walk.files.get(file, level))


def found(value: object, wanted: set[object], name: str, level: int = 0, nested: int = 0) -> Iterator[tuple[int, str]]:
    """Find wanted values in `value`, its members and its attributes: how many attributes deep, and the last name."""
    if isinstance(value, str | float):
        if value in wanted:
            yield level, name
    elif nested < MAX_NESTED and isinstance(value, dict):
        for key, one in list(value.items())[:MAX_MEMBERS]:
            yield from found(one, wanted, str(key), level, nested + 1)
    elif nested < MAX_NESTED and isinstance(value, list | tuple):
        fields = getattr(value, "_fields", ())
        for place, one in enumerate(value[:MAX_MEMBERS]):
            yield from found(one, wanted, fields[place] if fields else name, level + bool(fields), nested + 1)
    elif level < MAX_LEVELS and type(value).__module__.split(".")[0] in ROOMS:
        slots = {key: getattr(value, key, None) for key in getattr(type(value), "__slots__", ())}
        for key, one in {**slots, **getattr(value, "__dict__", {})}.items():
            yield from found(one, wanted, key, level + 1, nested)


def follow(tree: Path) -> int:
    """Run the story in a tree; print where the three values were, and at the end the numbers of files as JSON."""
    os.chdir(tree)
    walks = Walks(tree)
    threading.setprofile(walks.profile)
    sys.setprofile(walks.profile)
    [story] = (tree / "tests").rglob("test_story.py")
    status = pytest.main(["-q", "-p", "no:xdist", "-p", "no:cacheprovider", f"{story}::{STORY}"], plugins=[walks])
    every = {"commit": walks.commit, "sample": walks.sample, "threshold": walks.threshold}
    for title, walk in every.items():
        print(f"{title}: {len(walk.files)} files; {len(walk.names)} names: {dict(walk.names.most_common())}")
        for level in range(MAX_LEVELS + 1):
            files = sorted(file for file, least in walk.files.items() if least == level)
            print(f"  {level} attributes deep, {len(files)} files: {' '.join(files)}")
    print(json.dumps({f"files that a {title} passes": len(walk.files) for title, walk in every.items()}))
    return int(status)


if __name__ == "__main__":
    sys.exit(follow(Path(sys.argv[1]).resolve()))
