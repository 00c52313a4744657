"""Group changes of many cases at about the same revision into incidents."""

from collections.abc import Sequence

from service.domain.changepoints.types import Marked


def incidents(marked: Sequence[Marked], within: int = 2) -> list[tuple[Marked, ...]]:
    """Group changes at most `within` revisions after the previous one; oldest incident first."""
    if within < 0:
        raise ValueError(f"within is a number of revisions, 0 or more, not {within}.")
    groups: list[list[Marked]] = []
    for one in sorted(marked, key=lambda one: (one.change.ordinal, one.provider, one.case)):
        if groups and one.change.ordinal - groups[-1][-1].change.ordinal <= within:
            groups[-1].append(one)
        else:
            groups.append([one])
    return [tuple(group) for group in groups]
