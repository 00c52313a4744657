"""The limits of a recipe's `[facts]` table that a change breaks.  Pure: facts and a policy in, violations out."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from service.domain.codefacts.compiled import Compiled, CompiledPlace, State, kernel_pairs
from service.domain.codefacts.diff import MAX_ALIKE, STATES, Facts, some, spelled
from service.domain.policy.policy import FactsPolicy


@dataclass(frozen=True)
class Violation:
    """A limit of the policy that the head breaks and the base did not."""

    rule: str  # the setting in [facts]
    said: str
    places: tuple[CompiledPlace, ...]


def violations(base: Facts | None, head: Facts, policy: FactsPolicy) -> list[Violation]:
    """The limits that the head breaks and the base did not.  Without a base: `over_limit` alone.

    Equal violations are merged; more than `MAX_ALIKE` of one rule are merged into the worst of them.
    """
    found: dict[str, dict[str, list[CompiledPlace]]] = defaultdict(dict)
    sizes: dict[tuple[str, str], float] = {}
    for place, now in head.items():
        for rule, said, size in _broken((base or {}).get(place), now, policy):
            found[rule].setdefault(said, []).append(place)
            sizes[rule, said] = size
    broken = []
    for rule, sayings in found.items():
        worst = sorted(sayings, key=lambda said: -sizes[rule, said])
        if len(worst) > MAX_ALIKE:
            every = chain(*(sayings[said] for said in worst))
            broken.append(Violation(rule, f"{worst[0]}, and {len(worst) - 1} others", tuple(every)))
        else:
            broken += [Violation(rule, said, tuple(sayings[said])) for said in worst]
    return broken


def known_before(base: Facts | None, head: Facts) -> tuple[CompiledPlace, ...]:
    """Places that are over a hard limit now and were so before."""
    return tuple(place for place, now in head.items() if now.over and base and place in base and base[place].over)


def _broken(was: Compiled | None, now: Compiled, policy: FactsPolicy) -> Iterator[tuple[str, str, float]]:
    if now.over and not (was and was.over) and policy.over_limit:
        yield "over_limit", now.over, _excess(now.over)
    if was is None or was.state is not State.COMPILED:
        return
    if now.state is not State.COMPILED:
        if policy.broken == "fail" and not now.over:
            yield "broken", f"compiled before, and now {STATES[now.state]}: {now.reason or 'no reason was given'}", 0
        return
    if policy.refused == "fail" and now.refused and not was.refused:
        yield "refused", f"a kernel no longer fits ({now.refused[0]}), another took its place", _excess(now.refused[0])
    if was.spills is not None and now.spills is not None and was.spills <= policy.spills_allowed < now.spills:
        yield "spills_allowed", f"spills {spelled(was.spills)} → {spelled(now.spills)}", now.spills
    if policy.more_kernels == "fail" and now.count > was.count:
        yield "more_kernels", f"{some(now.count, 'kernel')} instead of {was.count}", now.count - was.count
    if (
        policy.registers_growth is not None
        and (grown := _growth(was, now))
        and grown[1] > grown[0] * (1 + policy.registers_growth)
    ):
        yield "registers_growth", f"registers {grown[0]} → {grown[1]}", grown[1] / grown[0]


def _excess(over: str) -> float:
    """Return the requested amount over the limit; 0 if the text does not contain them."""
    asked = re.search(r"asks for ([0-9]{1,15}) .*of ([1-9][0-9]{0,14})$", over, re.ASCII)
    return int(asked[1]) / int(asked[2]) if asked else 0


def _growth(was: Compiled, now: Compiled) -> tuple[int, int] | None:
    """The registers, before and after, of the kernel in which they grew the most."""
    pairs = ((old.registers, new.registers) for old, new in kernel_pairs(was.kernels, now.kernels))
    grown = [(old, new) for old, new in pairs if old and new]
    return max(grown, key=lambda pair: pair[1] / pair[0], default=None)
