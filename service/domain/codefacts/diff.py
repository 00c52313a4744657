"""Changes between the compiled code of two revisions, in words.  Pure: facts in, changes out."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Any

from kernels.cases import Metric
from service.domain.codefacts.comparison import LABELS, changed_settings
from service.domain.codefacts.compiled import (
    Access,
    Compiled,
    CompiledPlace,
    Kernel,
    State,
    definitions_of,
    is_number,
    kernel_pairs,
    mean_width,
)
from service.domain.codefacts.texts import SourceLines, paired
from service.domain.metrics import amount
from service.domain.text import listed

Facts = Mapping[CompiledPlace, Compiled]
Said = tuple["What", str, str, str, bool | None]  # what, its sentence, before, after, worse


class What(StrEnum):
    """The properties that can change, the most important first."""

    LIMIT = "limit"
    STATE = "state"
    KERNELS = "kernels"
    NAME = "name"
    SPILLS = "spills"
    EXTERN = "extern"
    CONFIGURATION = "configuration"
    CANDIDATES = "candidates"
    SHARED = "shared"
    OCCUPANCY = "occupancy"
    LOADS = "loads"
    STORES = "stores"
    READS = "reads"
    HINTS = "hints"
    REGISTERS = "registers"
    STACK = "stack"
    GRID = "grid"
    INSTRUCTIONS = "instructions"
    CODE = "code"


MAX_ALIKE = 3  # more changes of one property are reported as a range
_RANGED = {What.SHARED, What.OCCUPANCY, What.LOADS, What.STORES, What.REGISTERS, What.STACK, What.INSTRUCTIONS}
_WEIGHT = {what: number for number, what in enumerate(What)}


@dataclass(frozen=True)
class CodeChange:
    """One thing that changed at one place.  `worse` is None where a person must know whether it is good or bad."""

    place: CompiledPlace
    kernel: str  # which of several; empty where the case has one
    what: What
    said: str
    before: str
    after: str
    worse: bool | None = None
    source: SourceLines | None = None  # where the head defines the kernel, or the function that launches it


@dataclass(frozen=True)
class Group:
    """The same change at several places: one line to read."""

    what: What
    said: str
    kernel: str
    worse: bool | None
    places: tuple[CompiledPlace, ...]
    sources: tuple[SourceLines, ...] = ()


@dataclass(frozen=True)
class Moved:
    """One kernel whose machine code is another, at the first of the `places` at which it became exactly that."""

    place: CompiledPlace
    name: str
    before: int | None  # which of the case's kernels; None where there was none
    after: int | None
    every: tuple[CompiledPlace, ...]

    @property
    def places(self) -> int:
        return len(self.every)


def changes(base: Facts, head: Facts) -> list[CodeChange]:
    """Everything that differs at the places that both have, the weightiest first."""
    changes = [change for place in head if place in base for change in _at(place, base[place], head[place])]
    return sorted(
        changes, key=lambda change: (_WEIGHT[change.what], change.worse is not True, change.place, change.kernel)
    )


def kernel_changes(base: Iterable[Kernel], head: Iterable[Kernel]) -> Iterator[tuple[str, Said]]:
    """What differs between the kernels of a measured call, each with the kernel's name where there are several."""
    was, now = tuple(base), tuple(head)
    several = max(len(was), len(now)) > 1
    for before, after in kernel_pairs(was, now):
        yield from ((after.name if several else "", said) for said in _one_kernel(before, after))


def same_code(base: Facts, head: Facts) -> tuple[CompiledPlace, ...]:
    """Places at which both have the same machine code."""
    return tuple(
        place
        for place, now in head.items()
        if place in base
        and now.state is State.COMPILED is base[place].state
        and now.code is not None
        and now.code == base[place].code
    )


def moved(base: Facts, head: Facts) -> list[Moved]:
    """The kernels with other machine code, each pair of old and new code once, in the order of the cases."""
    found: dict[tuple[str, str | None, str | None], tuple[Moved, list[CompiledPlace]]] = {}
    for place, now in head.items():
        was = base.get(place)
        if was is None or was.state is not State.COMPILED or now.state is not State.COMPILED or was.code == now.code:
            continue
        numbered, others = (list(enumerate(side.kernels)) for side in (was, now))
        for before, after in paired(numbered, others, lambda pair: pair[1].name):
            hashes = place.provider, before[1].sass if before else None, after[1].sass if after else None
            if hashes[1] != hashes[2]:
                name = " and ".join(dict.fromkeys(pair[1].name for pair in (before, after) if pair))
                first = Moved(place, name, before[0] if before else None, after[0] if after else None, ())
                found.setdefault(hashes, (first, []))[1].append(place)
    return [replace(first, every=tuple(dict.fromkeys(places))) for first, places in found.values()]


def grouped(changes: Iterable[CodeChange]) -> list[Group]:
    """Changes that read the same as one, in the order of weight, those at the most places first.

    More than `MAX_ALIKE` changes of one property in one direction are reported as a range.
    """
    alike: dict[tuple[What, str, str, bool | None, bool], dict[str, list[CodeChange]]] = defaultdict(dict)
    for change in changes:
        grown = _value(change.after) > _value(change.before)
        alike[change.what, change.place.provider, change.kernel, change.worse, grown].setdefault(
            change.said, []
        ).append(change)
    groups = []
    for (what, _, kernel, worse, _), sayings in alike.items():
        many = len(sayings) > (1 if what is What.INSTRUCTIONS else MAX_ALIKE)
        for merged in [list(chain(*sayings.values()))] if many and what in _RANGED else sayings.values():
            words = _range(what, merged) if len({change.said for change in merged}) > 1 else merged[0].said
            places = tuple(dict.fromkeys(change.place for change in merged))
            sources = tuple(sorted({change.source for change in merged if change.source}, key=_by_place))
            groups.append(Group(what, words, kernel, worse, places, sources))
    return sorted(
        groups, key=lambda group: (_WEIGHT[group.what], group.worse is not True, -len(group.places), group.said)
    )


def _range(what: What, changes: list[CodeChange]) -> str:
    """`registers 42 to 100 → 31 to 62`; those that go with the case as percentages: `instructions -42 % to -24 %`."""
    if what in (What.LOADS, What.STORES):
        most = max(set(changes), key=lambda change: sum(other.said == change.said for other in changes))
        return f"{most.said}, and other {what} elsewhere"
    before, after = ([_value(getattr(change, side)) for change in changes] for side in ("before", "after"))
    if what is What.INSTRUCTIONS and all(before):
        grown = sorted(new / old - 1 for old, new in zip(before, after, strict=True))
        return f"{LABELS[what]} {_signed(grown[0])} to {_signed(grown[-1])}"
    percent = " %" * (what is What.OCCUPANCY)
    old, new = (f"{min(side):,g} to {max(side):,g}{percent}" for side in (before, after))
    return f"{LABELS[what]} {old} → {new}"


def _signed(part: float) -> str:
    return f"{part:+.0%}".replace("%", " %")


def _value(text: str) -> float:
    """The number that a change's side begins with; 0 where it is none."""
    number = text.split(" ")[0]
    return float(number) if is_number(number.replace(".", "", 1)) else 0.0


def _at(place: CompiledPlace, before: Compiled, after: Compiled) -> Iterator[CodeChange]:
    if before.state is State.COMPILED is after.state and before.code is not None and before.code == after.code:
        return
    several = max(len(before.kernels), len(after.kernels)) > 1
    own = source_of(after)
    sayings = [("", own, moved) for moved in _whole_case(before, after)]
    if before.state is State.COMPILED is after.state:
        for was, now in kernel_pairs(before.kernels, after.kernels):
            where = now.source or own
            sayings += [(now.name if several else "", where, moved) for moved in _one_kernel(was, now)]
        if not sayings and before.code != after.code:
            alike = [kernel.sass for kernel in before.kernels] == [kernel.sass for kernel in after.kernels]
            words = "the same machine code, launched differently" if alike else "other machine code, the same figures"
            sayings.append(("", own, (What.CODE, words, "", "", None)))
    for kernel, source, (what, words, was_said, now_said, worse) in sayings:
        yield CodeChange(
            place=place,
            kernel=kernel,
            what=what,
            said=words,
            before=was_said,
            after=now_said,
            worse=worse,
            source=source,
        )


def source_of(compiled: Compiled) -> SourceLines | None:
    """Where the code of a case is: its only kernel that the revision defines, else the function that launches it."""
    sources = {kernel.source for kernel in compiled.kernels if kernel.source}
    return sources.pop() if len(sources) == 1 else compiled.source or min(sources, key=_by_place, default=None)


def _by_place(source: SourceLines) -> tuple[str, int]:
    return source.file, source.first


def _whole_case(before: Compiled, after: Compiled) -> Iterator[Said]:
    if before.over != after.over:
        if after.over:
            yield What.LIMIT, f"over the limit of {after.over}", before.over or "none", after.over, True
        else:
            yield What.LIMIT, f"no longer over the limit of {before.over}", before.over or "", "none", False
    if before.state is not after.state and not before.over and not after.over:
        why = f": {after.reason}" if after.reason else ""
        words = f"{STATES[before.state]} before, {STATES[after.state]} now{why}"
        worse = before.state is State.COMPILED
        yield What.STATE, words, before.state.value, after.state.value, worse
    if before.state is not State.COMPILED or after.state is not State.COMPILED:
        return
    if no_longer := [over for over in after.refused if over not in before.refused]:
        words = f"a kernel no longer fits ({no_longer[0]}), another took its place"
        yield What.LIMIT, words, before.refused[0] if before.refused else "none", no_longer[0], True
    if before.count != after.count:
        words = f"{some(after.count, 'kernel')} instead of {before.count}"
        yield What.KERNELS, words, str(before.count), str(after.count), after.count > before.count
    if before.extern != after.extern:
        instead = f"instead of {before.extern or 'none'}{_which(before, after)}"
        words = f"{some(after.extern, 'call')} of other libraries {instead}"
        yield What.EXTERN, words, str(before.extern), str(after.extern), None


def _which(before: Compiled, after: Compiled) -> str:
    """`: aten::clone (537 MB) more`, where the operators were seen."""
    now, was = (Counter(side.calls) for side in (after, before))
    sides = ((now - was, "more"), (was - now, "fewer"))
    words = [
        f"{listed(f'{call.name} ({amount(float(call.bytes or 0), Metric.MEMORY)})' for call in list(calls)[:3])} {word}"
        for calls, word in sides
        if calls
    ]
    return f": {', '.join(words)}" if words else ""


STATES = {State.COMPILED: "compiled", State.UNSUPPORTED: "unsupported", State.FAILED: "failed to compile"}


def moved_definition(head: Mapping[str, Any], base: Mapping[str, Any]) -> SourceLines | None:
    """Where the code of a measured case is that differs from its baseline's: a kernel, else the called function."""
    now = definitions_of(head.get("triton"))
    if not any(kernel.source for kernel in now):
        return SourceLines.read(head.get("source"))
    pairs = paired(definitions_of(base.get("triton")), now, lambda kernel: kernel.name)
    moved = (new for old, new in pairs if new and (old is None or new.sass is None or new.sass != old.sass))
    return next((kernel.source for kernel in moved if kernel.source), None) or SourceLines.read(head.get("source"))


def _one_kernel(was: Kernel, now: Kernel) -> Iterator[Said]:
    if was.sass is not None and was.sass == now.sass and (was.grid, was.configuration) == (now.grid, now.configuration):
        return
    if was.name != now.name:
        yield What.NAME, f"the kernel {now.name} instead of {was.name}", was.name, now.name, None
    numbers: tuple[tuple[What, int | None, int | None], ...] = (
        (What.SPILLS, was.spills, now.spills),
        (What.CANDIDATES, was.candidates, now.candidates),
        (What.SHARED, was.shared, now.shared),
        (What.REGISTERS, was.registers, now.registers),
        (What.STACK, was.stack, now.stack),
        (What.INSTRUCTIONS, was.instructions, now.instructions),
    )
    for what, old, new in numbers:
        if old is not None and new is not None and old != new:
            # More registers, shared memory or instructions are not worse in themselves; lower occupancy and spills are.
            worse = new > old if what in (What.SPILLS, What.STACK) else None
            yield what, f"{LABELS[what]} {spelled(old)} → {spelled(new)}", str(old), str(new), worse
    if was.occupancy is not None and now.occupancy is not None and was.occupancy != now.occupancy:
        by = f" ({now.limited_by})" if now.limited_by else ""
        sides = _percent(was.occupancy), _percent(now.occupancy)
        yield _moved(What.OCCUPANCY, "occupancy", *sides, now.occupancy < was.occupancy, by)
    for what, widths, others in ((What.LOADS, was.fetches, now.fetches), (What.STORES, was.stores, now.stores)):
        if widths != others:
            yield _moved(what, f"{what}:", _widths(widths), _widths(others), _narrower(widths, others))
    for name, access in now.reads.items():
        before = was.reads.get(name)
        if before and before.size and access.size and abs(_times(access) - _times(before)) > 0.05:
            times = f"{_times(before):,.3g}", f"{_times(access):,.3g}"
            yield _moved(What.READS, f"{name} is read, times:", *times, _times(access) > _times(before))
    if was.hints != now.hints:
        yield _moved(What.HINTS, "cache hints:", _hints(was.hints), _hints(now.hints), None)
    if was.configuration != now.configuration:
        yield _configuration(was.configuration, now.configuration)
    if was.grid is not None and now.grid is not None and was.grid != now.grid:
        yield _moved(What.GRID, "grid", " x ".join(map(str, was.grid)), " x ".join(map(str, now.grid)), None)


def _moved(what: What, name: str, old: str, new: str, worse: bool | None, more: str = "") -> Said:
    return what, f"{name} {old} → {new}{more}", old, new, worse


def _configuration(was: Mapping[str, str], now: Mapping[str, str]) -> Said:
    names = changed_settings(was, now)
    old, new = ({name: table.get(name, "none") for name in names} for table in (was, now))
    moved = ", ".join(f"{name} {old[name]} → {new[name]}" for name in names)
    before, after = (", ".join(f"{name}={value}" for name, value in side.items()) for side in (old, new))
    return What.CONFIGURATION, f"configuration: {moved}", before, after, None


def _times(access: Access) -> float:
    return access.asked / access.size


def _hints(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def _widths(counts: Mapping[str, int]) -> str:
    """`16-byte 12, 4-byte 2`: the widest first, and last what has no width."""
    ordered = sorted(counts, key=lambda width: (-int(width), "") if is_number(width) else (1, width))
    return ", ".join(f"{width}{'-byte' * is_number(width)} {counts[width]}" for width in ordered) or "none"


def _narrower(was: Mapping[str, int], now: Mapping[str, int]) -> bool | None:
    """Whether an instruction moves fewer bytes than before on average; None if as many."""
    old, new = mean_width(was), mean_width(now)
    return None if old is None or new is None or abs(old - new) < 1e-9 else new < old


def spelled(value: int) -> str:
    return f"{value:,}" if value else "none"


def _percent(part: float) -> str:
    return f"{part:.0%}".replace("%", " %")


def some(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"
