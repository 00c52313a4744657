"""The limits of a recipe's `[facts]` table that a change breaks.  Pure: facts and a policy in, violations out."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from service.changes import STATES, Facts, paired, some, spelled
from service.compiled import Compiled, Place, State
from service.facts_policy import FactsPolicy


@dataclass(frozen=True)
class Violation:
    """A limit of the policy that the head breaks and the base did not."""

    rule: str  # the setting in [facts]
    said: str
    places: tuple[Place, ...]


def violations(base: Facts | None, head: Facts, policy: FactsPolicy) -> list[Violation]:
    """The limits that the head breaks and the base did not, the same ones together.  Without a base: hard limits."""
    found: dict[tuple[str, str], list[Place]] = defaultdict(list)
    for place, now in head.items():
        for rule, said in _broken((base or {}).get(place), now, policy):
            found[rule, said].append(place)
    return [Violation(rule, said, tuple(places)) for (rule, said), places in found.items()]


def known_before(base: Facts | None, head: Facts) -> tuple[Place, ...]:
    """Places that are over a hard limit now and were so before."""
    return tuple(place for place, now in head.items() if now.over and base and place in base and base[place].over)


def _broken(was: Compiled | None, now: Compiled, policy: FactsPolicy) -> Iterator[tuple[str, str]]:
    if now.over and not (was and was.over) and policy.over_limit:
        yield "over_limit", now.over
    if was is None or was.state is not State.COMPILED:
        return
    if now.state is not State.COMPILED:
        if policy.broken == "fail" and not now.over:
            yield "broken", f"compiled before, and now {STATES[now.state]}: {now.reason or 'no reason was given'}"
        return
    if was.spills is not None and now.spills is not None and was.spills <= policy.spills_allowed < now.spills:
        yield "spills_allowed", f"spills {spelled(was.spills)} → {spelled(now.spills)}"
    if policy.more_kernels == "fail" and now.count > was.count:
        yield "more_kernels", f"{some(now.count, 'kernel')} instead of {was.count}"
    if (
        policy.registers_growth is not None
        and (grown := _growth(was, now))
        and grown[1] > grown[0] * (1 + policy.registers_growth)
    ):
        yield "registers_growth", f"registers {grown[0]} → {grown[1]}"


def _growth(was: Compiled, now: Compiled) -> tuple[int, int] | None:
    """The registers, before and after, of the kernel in which they grew the most."""
    pairs = [(was.kernels[old].registers, now.kernels[new].registers) for _, old, new in paired(was, now)]
    grown = [(old, new) for old, new in pairs if old and new]
    return max(grown, key=lambda pair: pair[1] / pair[0], default=None)
