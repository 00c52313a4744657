"""Changes of the executed code, and how much of a measured change each can explain.  Pure.

Every explanation comes with a range: by how much it makes a call slower or faster, as the log of a ratio.  The ranges
are estimates: bytes over the measured copy ceiling, launches times the gap between two kernels, blocks over the places
that the SMs have for them, elements over what an SM computes in a cycle.  Where the measured time or the ceiling is not
known a range is open, and the order of `Cause` below decides.

An explanation that predicts the other direction explains nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil, exp, inf, log, log1p, log2
from operator import attrgetter
from typing import Any

from kernels.cases import Case, Metric
from service.domain.codefacts.comparison import LABELS, changed_settings
from service.domain.codefacts.compiled import Access, Call, Kernel, calls_of, kernels_of, mean_width, texts_of, whole
from service.domain.codefacts.texts import paired
from service.domain.metrics import amount, metric_of
from service.domain.text import counted, listed

# What a change costs beyond the bytes and elements that it adds; (at least, at most), from runs on an H200.
LAUNCH_US = (0.6, 3.0)  # one more kernel inside of a CUDA graph
HOST_LAUNCH_US = (2.0, 15.0)  # the same on the host
BYTES_SHARE = (0.6, 1.7)  # of the time that a copy of as many bytes would take; simple kernels do not reach the ceiling
CACHED_SHARE = (0.15, 1.5)  # the same where the bytes may come from L2
CACHED_BYTES = 60 << 20  # what an L2 of these GPUs keeps
SM_MHZ = 1700.0
MIN_BYTES_IN_FLIGHT = 32_768  # of an SM, so that the memory is busy all the time
# Elements of an SM in a cycle, by the kinds of `kernels.facts.accesses`; layout changes in bytes through shared memory.
WORK = {
    "arithmetic": (128, "more arithmetic"),
    "convert": (64, "more conversions between types"),
    "special": (16, "more divisions, roots and exponentials"),
    "double": (16, "more arithmetic in float64"),
    "division": (4, "more divisions of integers"),
    "reduce": (64, "more reductions"),
    "layout_bytes": (64, "more changes of layout through shared memory"),
}
NAMED = 3  # operators and kernels that a sentence names


class By(StrEnum):
    """The property behind an explanation; equal explanations are listed in this order."""

    TRAFFIC = "traffic"  # other operators or kernels, or other bytes that they have to move
    ATOMICS = "atomics"
    SPILLS = "spills"
    REREADS = "rereads"  # bytes that are requested more than once
    WIDTH = "width"  # of loads and stores
    WORK = "work"  # the mix of instructions
    WAVES = "waves"
    OCCUPANCY = "occupancy"
    COMPILER = "compiler"  # graph breaks and recompilations of torch.compile
    CONFIGURATION = "configuration"
    HINTS = "hints"
    INSTRUCTIONS = "instructions"  # how many, where nothing says what they do
    RESOURCES = "resources"  # registers and shared memory, which matter through occupancy alone


# How far to trust the estimate of each, among those that can explain as much.
_TRUST = {
    By.TRAFFIC: 1.0,
    By.ATOMICS: 0.95,
    By.SPILLS: 0.9,
    By.REREADS: 0.85,
    By.WIDTH: 0.85,
    By.WORK: 0.75,
    By.WAVES: 0.8,
    By.OCCUPANCY: 0.7,
    By.COMPILER: 0.6,
    By.CONFIGURATION: 0.5,
    By.HINTS: 0.45,
    By.INSTRUCTIONS: 0.35,
    By.RESOURCES: 0.3,
}


@dataclass(frozen=True)
class Explanation:
    """One thing that changed.  `least` and `most` are log ratios, above 0; `slower` is None where it may be either."""

    by: By
    words: str  # a clause: "each call now also runs aten::clone, which moves 537 MB"
    slower: bool | None
    least: float = 0.0
    most: float = inf
    exact: bool = False  # the range is narrow enough to be counted on

    @property
    def of_kernel(self) -> bool:
        """Whether it is about one kernel, so that the width of the rows belongs to it."""
        return self.by not in (By.TRAFFIC, By.COMPILER)

    def explains(self, effect: float) -> float:
        """The share of a log ratio that this explains: 0 where it points the other way, 1 where it is in the range."""
        if not effect or (self.slower is not None and self.slower is not (effect > 0)) or self.most <= 0:
            return 0.0
        size = abs(effect)
        if size > self.most:
            return self.most / size
        return size / self.least if size < self.least else 1.0

    def score(self, effect: float) -> float:
        return self.explains(effect) * _TRUST[self.by]

    @property
    def expected(self) -> float:
        """The middle of its range, relative: 0.31 is 31 %."""
        middle = exp((self.least + self.most) / 2)
        return middle - 1 if self.slower else 1 - 1 / middle


@dataclass(frozen=True)
class Timing:
    """The time of a side, and the ceilings of the device."""

    case: str
    us: float | None = None  # of the baseline, in the unit of its metric
    copy_gb_s: float | None = None

    @property
    def metric(self) -> Metric:
        return metric_of(self.case)

    @property
    def rows(self) -> int:
        try:
            return Case.parse(self.case).rows
        except ValueError:  # written by another version
            return 1

    def range_of(self, least_us: float, most_us: float) -> tuple[float, float]:
        """As log ratios, what so many microseconds more come to."""
        return (log1p(least_us / self.us), log1p(most_us / self.us)) if self.us else (0.0, inf)

    def bytes_us(self, count: float) -> float | None:
        """Time in us of a copy that moves so many bytes."""
        return count / self.copy_gb_s / 1e3 if self.copy_gb_s else None

    def range_of_bytes(self, count: float, shares: tuple[float, float]) -> tuple[float, float]:
        copied = self.bytes_us(abs(count))
        return (0.0, inf) if copied is None else self.range_of(shares[0] * copied, shares[1] * copied)


@dataclass(frozen=True)
class Explained:
    """Every explanation, those that explain most of the effect first, and whether anything else changed."""

    explanations: tuple[Explanation, ...] = ()
    only_traffic: bool = False  # what ran on both sides ran the same machine code, launched alike
    differences: tuple[str, ...] = ()  # of the compiled kernels: named only where nothing explains the effect
    changed: tuple[Explanation, ...] = field(default=())  # all, whatever they explain


def explained(head: Mapping[str, Any], base: Mapping[str, Any], timing: Timing, effect: float) -> Explained:
    """Find the changed facts that can explain `effect`, a log ratio of head over base."""
    old, new = (kernels_of(facts.get("triton")) for facts in (base, head))
    every = list(paired(old, new, attrgetter("name")))
    pairs = [(was, now) for was, now in every if was and now]
    explanations = list(_traffic(head, base, every, timing))
    differences: list[str] = []
    inside = timing.metric in (Metric.KERNEL, Metric.BLOCK)
    for was, now_ in pairs:
        if _same_machine_code(was, now_):
            continue
        configuration, switches = _configuration(was, now_)
        differences += [*switches, *_other_widths(was, now_)]
        if inside:
            of_it = [*_in_kernel(was, now_, timing), *configuration]
            if not configuration and not any(
                explanation.by in _OF_THE_GRID and explanation.explains(effect) for explanation in of_it
            ):
                of_it += _programs(was, now_)
            several = len(pairs) > 1  # "its" and "the kernel" are not clear then
            explanations += [
                replace(explanation, words=f"{explanation.words} in {now_.name}") if several else explanation
                for explanation in of_it
            ]
    if all(kernel.registers is None for kernel in (*new, *old)):
        explanations += _counted_sizes(head, base) if inside else ()
    explanations += _compiler(head, base)
    bounded = [replace(explanation, least=max(0.0, explanation.least)) for explanation in explanations]
    able = [explanation for explanation in bounded if explanation.score(effect) > 0]
    ranked = sorted(
        able, key=lambda explanation: (-round(explanation.score(effect), 2), list(By).index(explanation.by))
    )
    same = all(_same_machine_code(was, now_) for was, now_ in pairs)
    return Explained(tuple(ranked), same, tuple(dict.fromkeys(differences)), tuple(bounded))


def other_count(head: Mapping[str, Any], base: Mapping[str, Any]) -> str | None:
    """What of the code makes a count another: the reasons of graph breaks, or what a call runs; None if unknown."""
    new, old = (texts_of(facts.get("break_reasons")) for facts in (head, base))
    if new != old:
        more, fewer = ([place for place in some if place not in others] for some, others in ((new, old), (old, new)))
        if more:
            return f"torch.compile now breaks at: {'; '.join(more[:NAMED])}"
        if fewer:
            return f"torch.compile no longer breaks at: {'; '.join(fewer[:NAMED])}"
    now, before = (tuple(replace(call, bytes=None) for call in _launched(side)) for side in (head, base))
    came, went = _unmatched(now, before), _unmatched(before, now)
    return _other_words(came, went) if came or went else None


def _launched(facts: Mapping[str, Any]) -> tuple[Call, ...]:
    """Everything that a call runs: what a GPU launched, or operators."""
    return tuple(Call(name, None) for name in texts_of(facts.get("launched"))) or calls_of(facts.get("operators"))


# -- operators and kernels --------------------------------------------------------------------------------------------


def _traffic(
    head: Mapping[str, Any],
    base: Mapping[str, Any],
    pairs: Sequence[tuple[Kernel | None, Kernel | None]],
    timing: Timing,
) -> Iterator[Explanation]:
    """Operators and kernels that one side has and the other has not, by the bytes that they move."""
    calls, others = (calls_of(facts.get("operators")) for facts in (head, base))
    now, before = (whole(facts.get("kernels")) for facts in (head, base))
    came = [*_unmatched(calls, others), *(Call(new.name, new.bytes) for old, new in pairs if new and not old)]
    went = [*_unmatched(others, calls), *(Call(old.name, old.bytes) for old, new in pairs if old and not new)]
    if came or went:
        yield _other_calls(came, went, timing)
    elif now is not None and before is not None and now != before:  # only the number of kernels is known
        words = f"it now launches {counted(now, 'kernel')} instead of {before:,}"
        more_us = LAUNCH_US[0] * abs(now - before)
        least = timing.range_of(more_us, inf)[0] if timing.metric is Metric.KERNEL else 0.0
        yield Explanation(By.TRAFFIC, words, now > before, least * 0.5)
    if timing.metric in (Metric.KERNEL, Metric.BLOCK):
        for was, now_ in pairs:
            if was and now_ and was.bytes and now_.bytes and abs(now_.bytes - was.bytes) > 0.02 * was.bytes:
                least, most = timing.range_of_bytes(now_.bytes - was.bytes, _shares(now_.bytes))
                words = f"the kernel now moves {_size(now_.bytes)} instead of {_size(was.bytes)}"
                yield Explanation(By.TRAFFIC, words, now_.bytes > was.bytes, least, most, exact=most < inf)


def _unmatched(calls: Sequence[Call], others: Sequence[Call]) -> list[Call]:
    """Return the elements that `others` lacks, in order."""
    left = Counter((call.name, call.bytes) for call in others)
    unmatched = []
    for call in calls:
        if left[call.name, call.bytes]:
            left[call.name, call.bytes] -= 1
        else:
            unmatched.append(call)
    return unmatched


def _other_calls(came: Sequence[Call], went: Sequence[Call], timing: Timing) -> Explanation:
    words, count = _other_words(came, went), len(came) - len(went)
    size = sum(call.bytes or 0 for call in came) - sum(call.bytes or 0 for call in went)
    if timing.metric is Metric.MEMORY or timing.metric is Metric.COMPILE:
        slower = count > 0 if count else size > 0 if size else None
        return Explanation(By.TRAFFIC, words, slower)
    sized = all(call.bytes is not None for call in (*came, *went))
    gaps = HOST_LAUNCH_US if timing.metric is Metric.CALL else LAUNCH_US
    copied = 0.0 if timing.metric is Metric.CALL else timing.bytes_us(size) if sized else None
    if copied is None:
        return Explanation(By.TRAFFIC, words, count > 0 if count else None)
    shares = _shares(max((call.bytes or 0 for call in (*came, *went)), default=0))
    ends = sorted(share * copied + gap * count for share, gap in zip(shares, gaps, strict=True))
    slower = sum(ends) > 0
    least, most = (max(0.0, end) for end in (ends if slower else (-ends[1], -ends[0])))
    if not slower and timing.us:  # what goes away is a share of what it took before
        least, most = (-log(max(0.02, 1 - end / timing.us)) for end in (least, most))
    else:
        least, most = timing.range_of(least, most)
    if came and went:  # as many bytes can take another time: which operator it is matters as well
        size_alike = abs(size) < 0.05 * max(_sum(came), _sum(went), 1)
        either = None if size_alike and not count else slower
        return Explanation(By.TRAFFIC, words, either, 0.0 if size_alike else least, max(most, 0.3))
    exact = timing.us is not None and min(abs(end) for end in ends) > 0 and ends[0] * ends[1] > 0
    return Explanation(By.TRAFFIC, words, slower, least, most, exact)


def _other_words(came: Sequence[Call], went: Sequence[Call]) -> str:
    if came and not went:
        return f"each call now also runs {_named(came)}{_moving(came, 'moves', 'move')}"
    if went and not came:
        return f"each call no longer runs {_named(went)}{_moving(went, 'moved', 'moved')}"
    return f"each call now runs {_named(came)}{_moving(came, 'moves', 'move')} instead of {_named(went)}" + (
        f" ({_size(_sum(went))})" if _sum(went) else ""
    )


def _named(calls: Sequence[Call]) -> str:
    counts = Counter(call.name for call in calls)
    names = [f"{name}{f' {count} times' if count > 1 else ''}" for name, count in counts.items()]
    more = len(names) - NAMED
    return listed([*names[:NAMED], f"{more} more"] if more > 0 else names)


def _moving(calls: Sequence[Call], singular: str, several: str) -> str:
    return f", which {singular if len(calls) == 1 else several} {_size(_sum(calls))}" if _sum(calls) else ""


def _sum(calls: Iterable[Call]) -> int:
    return sum(call.bytes or 0 for call in calls)


def _shares(count: int) -> tuple[float, float]:
    return BYTES_SHARE if count > CACHED_BYTES else CACHED_SHARE


# -- inside of a kernel -----------------------------------------------------------------------------------------------


def _in_kernel(was: Kernel, now: Kernel, timing: Timing) -> Iterator[Explanation]:
    yield from _atomics(was, now, timing)
    yield from _spills(was, now, timing)
    yield from _rereads(was, now, timing)
    yield from _widths(was, now)
    yield from _work(was, now, timing)
    yield from _grid(was, now)
    yield from _occupancy(was, now)
    yield from _hints(was, now, timing)
    yield from _instructions(was, now)
    yield from _resources(was, now)


def _atomics(was: Kernel, now: Kernel, timing: Timing) -> Iterator[Explanation]:
    more = now.work.get("atomic", 0) - was.work.get("atomic", 0)
    if more:
        least, most = timing.range_of(abs(more) / 3e5, abs(more) / 5e3)
        words = f"it now makes {_count(now.work.get('atomic', 0))} atomic operations"
        yield Explanation(By.ATOMICS, f"{words} instead of {_count(was.work.get('atomic', 0))}", more > 0, least, most)


def _spills(was: Kernel, now: Kernel, timing: Timing) -> Iterator[Explanation]:
    if was.spills is None or now.spills is None or was.spills == now.spills:
        return
    more = abs(now.spills - was.spills)
    threads = 32 * (now.warps or 4)
    programs = now.programs or 1
    # At most a kernel's body runs once for each row.
    least_bytes, most_bytes = (8 * more * threads * count for count in (programs, max(programs, timing.rows)))
    least, _ = timing.range_of_bytes(0.02 * least_bytes, (1.0, 1.0))
    _, most = timing.range_of_bytes(most_bytes, (1.0, 2.0))
    if not now.spills:
        words = f"the kernel no longer spills ({counted(was.spills, 'register')} before)"
    else:
        before = f" instead of {was.spills:,}" if was.spills else ""
        words = f"the kernel now spills {counted(now.spills, 'register')}{before}"
    yield Explanation(By.SPILLS, words, now.spills > was.spills, min(least, 0.2), max(most, 0.05))


def _rereads(was: Kernel, now: Kernel, timing: Timing) -> Iterator[Explanation]:
    """Explain loads of the same bytes more than once, in particular in loops."""
    for name, access in now.reads.items():
        before = was.reads.get(name)
        if before is None or not access.size or not before.size:
            continue
        more = _again(access) - _again(before)
        if abs(more) < 0.05 * max(before.asked, access.size):
            continue
        far = access.size > CACHED_BYTES // 2
        least, most = timing.range_of_bytes(more, (0.08, 1.2) if far else (0.0, 0.6))
        words = f"loads of {name} now ask for {_size(access.asked)} instead of {_size(before.asked)}"
        if far:
            words = (
                f"{name} is now read {access.asked / access.size:.2g} times instead of {before.asked / before.size:.2g}"
            )
        if now.looped.get(name, 0) > was.looped.get(name, 0):
            words += ", inside of a loop"
        yield Explanation(By.REREADS, words, more > 0, least, most)


def _again(access: Access) -> int:
    return max(0, access.asked - access.size)


def _widths(was: Kernel, now: Kernel) -> Iterator[Explanation]:
    for noun, before, after, weight in (
        ("loads", was.fetches, now.fetches, 1.0),
        ("stores", was.stores, now.stores, 0.7),
    ):
        old, new = mean_width(before), mean_width(after)
        if old is None or new is None or abs(log2(old / new)) < 0.4:
            continue
        steps = abs(log2(old / new)) * weight
        average = " on average" if len(before) > 1 or len(after) > 1 else ""
        words = f"its {noun} are now {_bytes(new)} wide{average} instead of {_bytes(old)}"
        yield Explanation(By.WIDTH, words, new < old, 0.01 * steps, 0.25 * steps)


def _work(was: Kernel, now: Kernel, timing: Timing) -> Iterator[Explanation]:
    sms = now.sms or 132
    rates = {kind: rate for kind, (rate, _) in WORK.items()}
    cycles = {kind: (now.work.get(kind, 0) - was.work.get(kind, 0)) / rate / sms for kind, rate in rates.items()}
    total, before = sum(cycles.values()), sum(was.work.get(kind, 0) / rate / sms for kind, rate in rates.items())
    if not was.work or not now.work or abs(total) < 0.05 * before:
        return
    kind = max(cycles, key=lambda name: cycles[name] * (1 if total > 0 else -1))
    least, most = timing.range_of(0.02 * abs(total) / SM_MHZ, 2.0 * abs(total) / SM_MHZ)
    more = WORK[kind][1]
    words = more if total > 0 else more.replace("more", "less" if kind in ("arithmetic", "double") else "fewer", 1)
    unit = _size if kind == "layout_bytes" else _count
    yield Explanation(
        By.WORK,
        f"the kernel now does {words} ({unit(was.work.get(kind, 0))} → {unit(now.work.get(kind, 0))})",
        total > 0,
        least,
        most,
    )


def _grid(was: Kernel, now: Kernel) -> Iterator[Explanation]:
    """How well the blocks fill the SMs: the last wave of many, or SMs without a block."""
    old, new = _filled(was), _filled(now)
    if old is None or new is None or abs(log(old / new)) < 0.01:
        return
    size = abs(log(old / new))
    sms = now.sms or 0
    if (now.programs or 0) < sms or (was.programs or 0) < sms:
        words = f"it now launches {now.programs:,} programs on {sms} SMs instead of {was.programs:,}"
    else:
        waves = [ceil((kernel.programs or 0) / (sms * max(1, kernel.blocks or 1))) for kernel in (was, now)]
        words = f"its {now.programs:,} blocks now take {counted(waves[1], 'wave')} on {sms} SMs instead of {waves[0]:,}"
        if waves[0] == waves[1]:
            words = f"its last wave of blocks is now {new:.0%} full instead of {old:.0%}".replace("%", " %")
    yield Explanation(By.WAVES, words, new < old, 0.2 * size, 1.2 * size)


_OF_THE_GRID = (By.WAVES, By.OCCUPANCY)


def _programs(was: Kernel, now: Kernel) -> Iterator[Explanation]:
    """Another grid of equal settings.

    More programs hide more latency, and each has costs of its own, such as partial sums, so that either may be faster.
    """
    if was.programs and now.programs and was.programs != now.programs:
        words = f"it now launches {counted(now.programs, 'program')} instead of {was.programs:,}"
        yield Explanation(By.CONFIGURATION, words, None)


def _filled(kernel: Kernel) -> float | None:
    """Of the time that the SMs are busy, the share in which all have work."""
    if not kernel.programs or not kernel.sms or not kernel.blocks:
        return None
    if kernel.programs <= kernel.sms * kernel.blocks:  # all at once: each SM has its share of them
        a_sm = kernel.programs / kernel.sms
        return a_sm / ceil(a_sm)
    waves = kernel.programs / (kernel.sms * kernel.blocks)
    return waves / ceil(waves)


def _occupancy(was: Kernel, now: Kernel) -> Iterator[Explanation]:
    """How many warps an SM has at a time: as many as its resources allow, or fewer where the grid is too small."""
    if not was.occupancy or not now.occupancy:
        return
    before, after = (kernel.occupancy * _resident(kernel) for kernel in (was, now) if kernel.occupancy)
    if abs(log(before / after)) < 0.01:
        return
    old, new = _in_flight(was), _in_flight(now)
    fewest = MIN_BYTES_IN_FLIGHT
    least = 0.0
    if old and new:
        least = 0.3 * max(0.0, abs(log(min(1.0, old / fewest) / min(1.0, new / fewest))))
    by = f" (limited by {now.limited_by})" if now.limited_by else ""
    if was.occupancy == now.occupancy and was.programs and now.programs:
        by = f": it launches {now.programs:,} programs instead of {was.programs:,}"
    words = f"its occupancy is now {after:.0%} instead of {before:.0%}".replace("%", " %")
    most = max(least, 0.8 * abs(log(after / before)))
    yield Explanation(By.OCCUPANCY, f"{words}{by}", after < before, least, most)


def _resident(kernel: Kernel) -> float:
    """Of the blocks that fit on an SM, the share that it has at a time: less than 1 where the grid is too small."""
    if not kernel.programs or not kernel.sms or not kernel.blocks:
        return 1.0
    return min(1.0, ceil(kernel.programs / kernel.sms) / kernel.blocks)


def _in_flight(kernel: Kernel) -> float | None:
    """Bytes that the loads of an SM's threads ask for at once."""
    a_thread = sum(int(width) * count for width, count in kernel.fetches.items() if width.isdecimal())
    if not a_thread or not kernel.blocks or not kernel.warps:
        return None
    return a_thread * kernel.blocks * _resident(kernel) * kernel.warps * 32


def _hints(was: Kernel, now: Kernel, timing: Timing) -> Iterator[Explanation]:
    if was.hints == now.hints:
        return
    names = [name for name in dict.fromkeys((*was.hints, *now.hints)) if was.hints.get(name) != now.hints.get(name)]
    moved = listed(f"{name} {was.hints.get(name, 0)} → {now.hints.get(name, 0)}" for name in names)
    again = sum(map(_again, now.reads.values()))
    _, most = timing.range_of_bytes(again, (0.0, 1.0))
    yield Explanation(By.HINTS, f"its cache hints changed ({moved})", None, 0.0, max(most, 0.1) if most < inf else inf)


def _instructions(was: Kernel, now: Kernel) -> Iterator[Explanation]:
    if was.instructions and now.instructions and abs(log(now.instructions / was.instructions)) > 0.05:
        words = f"the kernel now has {now.instructions:,} instructions instead of {was.instructions:,}"
        most = 0.6 * abs(log(now.instructions / was.instructions))
        yield Explanation(By.INSTRUCTIONS, words, now.instructions > was.instructions, 0.0, most)


def _resources(was: Kernel, now: Kernel) -> Iterator[Explanation]:
    """Changed resources that limit occupancy; at equal occupancy they explain a few percent at most.

    Where every SM has one block at most, they limit nothing.
    """
    alone = [bool(kernel.programs and kernel.sms and kernel.programs <= kernel.sms) for kernel in (was, now)]
    if all(alone):
        return
    resident = [kernel.occupancy * _resident(kernel) if kernel.occupancy else None for kernel in (was, now)]
    as_full = None not in resident and resident[0] == resident[1]
    for noun, old, new in (
        (f"{LABELS['registers']} a thread", was.registers, now.registers),
        (LABELS["shared"], was.shared, now.shared),
    ):
        if old is not None and new is not None and old != new:
            words = f"the kernel now takes {new:,} {noun} instead of {old:,}"
            more = 0.0 if as_full else 0.3 * abs(log((new + 1) / (old + 1)))
            yield Explanation(By.RESOURCES, words, new > old, 0.0, 0.05 + more)


def _counted_sizes(head: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[Explanation]:
    """The same of facts that name no kernels one by one."""
    was, now = (
        Kernel(
            "",
            registers=whole(facts.get("registers")),
            spills=whole(facts.get("spills")),
            shared_dynamic=whole(facts.get("shared")),
        )
        for facts in (base, head)
    )
    yield from _spills(was, now, Timing(""))
    yield from _resources(was, now)
    before, after = (str(facts.get("config") or "") for facts in (base, head))
    if before and after and before != after:
        yield Explanation(By.CONFIGURATION, f"its configuration is {after[:120]} instead of {before[:120]}", None)


# -- configurations ---------------------------------------------------------------------------------------------------


def _configuration(was: Kernel, now: Kernel) -> tuple[list[Explanation], list[str]]:
    """How a kernel is launched and tiled, and apart from that the constants that only select something.

    Of a kernel with another name and other constants, a comparison of these would name settings that it does not have.
    A constant that one side lacks belongs to a kernel that was rewritten, and is no setting of the other.
    """
    if was.name != now.name and was.configuration.keys() != now.configuration.keys():
        return [Explanation(By.CONFIGURATION, f"{now.name} runs instead of {was.name}", None)], []
    moved = changed_settings(was.configuration, now.configuration)
    both = [name for name in moved if name in was.configuration and name in now.configuration]
    sizes = [name for name in both if not _selects(was.configuration[name], now.configuration[name])]
    switches = [_switch(name, was, now) for name in moved if name not in sizes]
    if not sizes:
        return [], switches
    before, after = (listed(f"{name}={side.configuration[name]}" for name in sizes) for side in (was, now))
    return [Explanation(By.CONFIGURATION, f"its configuration is {after} instead of {before}", None)], switches


def _switch(name: str, was: Kernel, now: Kernel) -> str:
    before, after = was.configuration.get(name), now.configuration.get(name)
    if after is None:
        return f"no constant {name}={before} any more"
    return f"the new constant {name}={after}" if before is None else f"{name} {before} → {after}"


def _other_widths(was: Kernel, now: Kernel) -> Iterator[str]:
    """`stores of 2 → 4 bytes`: few accesses that became wider or narrower say what is stored in another type."""
    for noun, before, after in (("loads", was.fetches, now.fetches), ("stores", was.stores, now.stores)):
        went, came = (sorted(map(str, a.keys() - b.keys())) for a, b in ((before, after), (after, before)))
        if went and came:
            yield f"{noun} of {listed(went)} → {listed(came)} bytes"


def _selects(before: str, after: str) -> bool:
    """A flag or a name, and no size: 0 and 1 are flags as well."""
    return all(not value.lstrip("-").isdecimal() or value in ("0", "1") for value in (before, after))


def _compiler(head: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[Explanation]:
    for key, noun in (("graph_breaks", "graph break"), ("recompiles", "recompilation")):
        now, before = whole(head.get(key)), whole(base.get(key))
        if now is not None and before is not None and now != before:
            words = f"torch.compile now has {counted(now, noun)} instead of {before:,}"
            yield Explanation(By.COMPILER, words, now > before)


# -- words ------------------------------------------------------------------------------------------------------------


def _same_machine_code(was: Kernel, now: Kernel) -> bool:
    launched = (was.grid, was.configuration.get("num_warps")) == (now.grid, now.configuration.get("num_warps"))
    return was.sass is not None and was.sass == now.sass and launched and was.reads == now.reads


def _size(count: float) -> str:
    return amount(float(count), Metric.MEMORY)


def _bytes(width: float) -> str:
    return f"{width:.3g} byte{'s' * (round(width, 2) != 1)}"


def _count(count: int) -> str:
    for divisor, symbol in ((1e9, " billion"), (1e6, " million"), (1e3, " thousand")):
        if count >= divisor:
            return f"{count / divisor:.3g}{symbol}"
    return str(count)
