"""Find and build the revisions that a head is compared with, and start a sandboxed contender of each.

Where the parent is wrong or failed at some cases, earlier revisions take its place there.  A baseline that cannot be
built is no fault of the head: the run continues, with a note.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernels.arena import protocol
from kernels.arena.channel import Channel
from kernels.arena.session import Contender
from kernels.cases import AnyCase, Role
from service.db.engine import reading
from service.domain.policy.recipes import LAST_RELEASE
from service.domain.states import Purpose
from service.domain.text import one_line, short
from service.errors import BadInput, BuildFailed, NotFound, Refused, SourceFailed
from service.ledger.runs import baselines
from service.ledger.runs.baselines import MAX_BASELINE_DISTANCE
from service.settings import GIB, MIB, settings
from service.sources.source import ANY, Source
from workers.machine import environments
from workers.machine.device import DeviceHere
from workers.machine.environments import BaseStack, Environment, cache_of, hash_seed
from workers.run.heartbeat import Assignment
from workers.sandbox import sandbox
from workers.sandbox.sandbox import Box, Limits
from workers.sandbox.usage import used
from workers.sandbox.walls import remove

# Each further revision costs a session another build and more processes.
MAX_EARLIER = 2  # that take the parent's place at the cases at which it is broken
MAX_LAST_GOOD = 3  # last good ones; more of them take turns over sessions

_UNAVAILABLE = (SourceFailed, BuildFailed, BadInput, NotFound, Refused)
Name = tuple[str, str]  # of a cell: provider and case


@dataclass(frozen=True)
class Built:
    """A revision that is ready to run; at `names` alone, where any are named."""

    sha: str
    place: Environment
    names: frozenset[Name] | None = None

    def cases_of(self, provider: str, cases: Sequence[AnyCase]) -> frozenset[AnyCase] | None:
        """The `cases` at which this provider takes part; None for all."""
        if self.names is None:
            return None
        return frozenset(case for case in cases if (provider, str(case)) in self.names)


@dataclass(frozen=True)
class References:
    """The revisions that a head is compared with in its session; `notes` say why they are not the usual ones.

    `parents` share the cases: the nearest usable revision first, then those that take its place where it is broken.
    They are empty where there is nothing to compare with.
    """

    parents: tuple[Built, ...]
    last_good: tuple[Built, ...] = ()
    pinned: Built | None = None
    notes: tuple[str, ...] = ()

    @property
    def baseline(self) -> str | None:
        """The nearest of the parents."""
        return self.parents[0].sha if self.parents else None

    @property
    def earlier(self) -> dict[Name, str]:
        """The cases at which the nearest is broken, each with the revision that takes its place."""
        return {name: one.sha for one in self.parents[1:] for name in one.names or ()}


class Baselines:
    """Finds and builds what one run is compared with; `keep_going` raises when the run is not ours any more."""

    def __init__(self, assignment: Assignment, source: Source, keep_going: Callable[[], None]) -> None:
        self._assignment, self._source, self._keep_going = assignment, source, keep_going

    def head(self) -> Environment:
        """The environment of the revision: in a calibration a fresh one, as its baseline is."""
        run = self._assignment.run
        if run.purpose is Purpose.CALIBRATION:
            return self.build(run.revision.sha, -run.id)
        return self.build(run.revision.sha)

    def build(self, sha: str, apart: int | None = None) -> Environment:
        """The environment of a revision; `apart` from others with another number.  Raises what building it raises.

        A second session has builds of its own, because it is to average what builds differ by.
        """
        run = self._assignment.run
        if apart is None and run.second_of is not None:
            apart = run.id
        return environments.build(
            self._source,
            sha,
            self._assignment.recipe,
            self._assignment.adapters,
            kind=self._assignment.target.kind.value,
            sandboxed=self._assignment.sandboxed,
            keep_going=self._keep_going,
            apart=apart,
        )

    def references(self) -> References:
        """All revisions that the head is compared with.  A bisection and a calibration have exactly one."""
        run = self._assignment.run
        if run.purpose is not Purpose.WATCH and run.baseline is not None:
            return References((Built(run.baseline, self._required(run.baseline)),))
        parents, notes = self._parents()
        last_good, more = self._last_good(parents)
        pinned, others = self._pinned(parents[0] if parents else None)
        return References(parents, last_good, pinned, (*notes, *more, *others))

    def _required(self, sha: str) -> Environment:
        """A baseline without which the run has no result.  Its failure is not that of the head."""
        run = self._assignment.run
        calibrating = run.purpose is Purpose.CALIBRATION  # a second build, whose caches no earlier night has warmed
        try:
            return self.build(sha, run.id if calibrating else None)
        except BuildFailed as failure:
            raise BuildFailed(
                f"The baseline {short(sha)} does not build: {failure}", failure.log, failure.whole
            ) from None

    # -- the parent ---------------------------------------------------------------------------------------------------

    def _parents(self) -> tuple[tuple[Built, ...], tuple[str, ...]]:
        """The nearest first-parent ancestor that can be measured, and earlier ones at the cases at which it is broken.

        A case that no ancestor within reach is known to get right keeps the nearest, and so does a run whose ancestors
        are all broken everywhere.  The notes say which revisions were skipped, and why.
        """
        run, sha = self._assignment.run, self._assignment.run.baseline
        open_still, found, everywhere_broken, notes = self._names(), list[Built](), list[str](), list[str]()
        for _ in range(MAX_BASELINE_DISTANCE):
            if sha is None:
                break
            with reading() as session:
                fit = baselines.fitness(session, run.target, sha, run.device)
            # A replacement costs a build, so it must be known to be right there.
            names = open_still & fit.measured if found else open_still - fit.broken
            why = None if fit.builds else "it does not build"
            if why is None and not names and not found:
                why = "it is wrong or failed at every case"
                everywhere_broken.append(sha)
            elif why is None and names:
                built = self._built(sha)
                if isinstance(built, Environment):
                    found.append(Built(sha, built, names))
                    open_still -= names
                else:
                    why = built
            if why is not None and not found:
                notes.append(f"{short(sha)} was skipped as a baseline: {why}")
            if not open_still or len(found) > MAX_EARLIER:
                break
            sha = self._parent_of(sha)
        if found:
            return self._shared(found, open_still), (*notes, *_instead(found, skipped=bool(notes)))
        for sha in everywhere_broken:
            if isinstance(built := self._built(sha), Environment):
                anyway = f"compared with {short(sha)} anyway, because no earlier revision is usable"
                return (Built(sha, built),), (*notes, anyway)
        return (), (*notes, "there is no earlier revision to compare with")

    def _shared(self, found: Sequence[Built], left: frozenset[Name]) -> tuple[Built, ...]:
        """The nearest also takes the cases that are left; alone it takes every case."""
        nearest, *others = found
        whole = None if not others else frozenset(nearest.names or ()) | left
        return (replace(nearest, names=whole), *others)

    def _built(self, sha: str) -> Environment | str:
        """The environment of a baseline, or the reason why it cannot be built.  Raises what may pass with a retry."""
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
        except (BadInput, NotFound):  # the history was rewritten, or a release was withdrawn
            return None

    # -- the last good revisions --------------------------------------------------------------------------------------

    def _last_good(self, parents: Sequence[Built]) -> tuple[tuple[Built, ...], tuple[str, ...]]:
        """The last good revisions of the cases at which the parent is slow."""
        run, wanted = self._assignment.run, dict[Name, str]()
        for parent in parents:
            with reading() as session:
                last_good = baselines.last_good(session, run.target_id, run.device, parent.sha)
            of_it = self._names() if parent.names is None else parent.names
            apart = (parent.sha, run.revision.sha)
            wanted |= {name: sha for name, sha in last_good.items() if name in of_it and sha not in apart}
        with reading() as session:
            turns = baselines.in_turn(session, run, wanted)
        built, notes = list[Built](), list[str]()
        for sha, names in turns:
            if len(built) == MAX_LAST_GOOD:
                break
            try:
                built.append(Built(sha, self.build(sha), names))
            except _UNAVAILABLE as failure:
                cases = f"{len(names)} case{'' if len(names) == 1 else 's'} at which the baseline is slow already"
                notes.append(
                    f"{short(sha)}, the last good revision of {cases}, cannot be built: {one_line(str(failure))}"
                )
        return tuple(built), tuple(notes)

    def _names(self) -> frozenset[Name]:
        providers = self._assignment.recipe.providers_on(self._assignment.run.device)
        return frozenset((provider, str(case)) for provider in providers for case in self._assignment.cases)

    # -- the pinned baseline ------------------------------------------------------------------------------------------

    def _pinned(self, parent: Built | None) -> tuple[Built | None, tuple[str, ...]]:
        """The pinned baseline of a mainline run, unless it is the head itself or its parent."""
        run, named = self._assignment.run, self._assignment.recipe.pinned
        if named is None or not run.watched:
            return None, ()
        head = run.revision.sha
        try:
            kind, _, pattern = named.partition(":")
            is_release = kind == LAST_RELEASE
            sha = self._source.last_release(head, pattern or ANY) if is_release else self._source.resolve(named)
            if sha is None:
                return None, ("there is no release before this revision to compare with",)
            if sha in (head, parent.sha if parent else None) or self._source.merge_base(sha, head) == head:
                return None, ()  # it is not older than the head
            return Built(sha, self.build(sha)), ()
        except _UNAVAILABLE as failure:
            return None, (f"not compared with the pinned baseline {named}: {one_line(str(failure))}",)


def _instead(found: Sequence[Built], *, skipped: bool) -> list[str]:
    """Notes on the revisions that take the place of the parent."""
    nearest, *others = found
    said = [f"compared with {short(nearest.sha)} instead"] if skipped else []
    for one in others:
        cases = f"{len(one.names or ())} case{'' if len(one.names or ()) == 1 else 's'}"
        said.append(f"{cases} compared with {short(one.sha)}, because {short(nearest.sha)} is wrong or failed there")
    return said


SCRATCH_DISK, MIN_DISK = 4 * GIB, 64 * MIB  # bytes of one start, with what the revision compiled before
LAST_CASE_S = 300.0  # how long a case that runs at the session's limit may still take
_CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "QUACK_CACHE_DIR": "quack",
    "CUDA_CACHE_PATH": "cuda",
}
_DRIVER = Path("/usr/local/nvidia/lib64")  # where some clusters mount the driver, outside of what the linker knows
_ON_CPU = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    # glibc gives large freed blocks back and faults them in again at every call: identical code then differed by up to
    # 1.6x; with these within 4 % (rmsnorm.bwd, November).
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    # Small freed blocks that a thread keeps for itself keep the large ones next to them apart, so each process cycled
    # through temporaries of its own: identical code differed by 0.68 to 1.46 from trial to trial at 128x2048, without
    # by 0.95 to 1.07 (November).
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
}


def contender(
    label: str,
    role: Role,
    provider: Mapping[str, Any],
    place: Environment | BaseStack,
    here: DeviceHere,
    *,
    sandboxed: bool,
    scratch: Path,
    cases: frozenset[AnyCase] | None = None,
) -> Contender:
    """A contender whose `start` opens a fresh process in a scratch folder of its own, with only its own GPU.

    It takes part at `cases`, or at all cases where there are none named.
    """
    starts = itertools.count()
    caches = cache_of(place.key)
    (caches / "tmp").mkdir(exist_ok=True)
    environment = {
        "PATH": f"{place.python.parent}:/usr/bin:/bin",
        "PYTHONPATH": ":".join(map(str, place.paths)),
        "KERNELWATCH_TREE": ":".join(map(str, place.tree)),  # imported from once it is asked to start
        **({"KERNELWATCH_CHECKOUT": str(place.checkout)} if isinstance(place, Environment) else {}),
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        # No pool of compile workers next to the measurement; a warm start takes 3.2 s instead of 6.2 s (CPU, November).
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # Inductor keeps its precompiled headers among the temporary files: fresh ones cost each start 5 s (November).
        "TMPDIR": str(caches / "tmp"),
        **{variable: str(caches / folder) for variable, folder in _CACHES.items()},
        **(hash_seed(place.hash_seed) if isinstance(place, Environment) else {}),
        **(_ON_CPU if here.name == "cpu" else _on_gpu(here)),
    }

    def start() -> Channel:
        folder = scratch / f"{label.replace(':', '-')}-{next(starts)}"
        cache_of(place.key)  # says that the environment is in use, which keeps it from being evicted
        (folder / "home").mkdir(parents=True)
        kept = used([caches], SCRATCH_DISK) if isinstance(place, Environment) else 0  # a stack's are everybody's
        box = Box(
            folder / "home",
            read_only=(*place.read_only, protocol.KERNELS),
            writable=(caches,),
            environment={**environment, "HOME": str(folder / "home")},
            devices=here.nodes,
            limits=Limits(wall_s=settings().session_limit_s + 2 * LAST_CASE_S, disk=max(SCRATCH_DISK - kept, MIN_DISK)),
            sandboxed=sandboxed,
            kept=False,
        )
        log = folder / "stderr.log"
        # With its provider it imports at once what is not the target's, also before its trial begins.
        command = [str(place.python), "-P", str(protocol.CONTENDER), json.dumps(provider)]
        process = sandbox.start(command, box, log)
        # Without removing it, a run could fill the disk, start by start.
        return Channel(process, log, sandbox.freezer(process), closed=lambda: remove(folder))

    return Contender(label, role, provider, start, cases)


def _on_gpu(here: DeviceHere) -> dict[str, str]:
    visible = {"OMP_NUM_THREADS": "4"} | ({"CUDA_VISIBLE_DEVICES": here.uuid} if here.uuid else {})
    return visible | ({"LD_LIBRARY_PATH": str(_DRIVER)} if _DRIVER.exists() else {})
