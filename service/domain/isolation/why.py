"""Why a component moved a case: what its swap changed in the compiled code.  Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from service.domain.attribution.causes import CaseMove, Cause, CauseCode, cause
from service.domain.codefacts.comparison import differences
from service.domain.isolation.evaluation import (
    FROM,
    TO,
    CaseIsolation,
    ComponentEffect,
    IsolatedCase,
    backward,
    forward,
)
from service.domain.verdicts.session_result import ContenderResult, same_kernels

# The others explain a change of the repository, which all arms have in common.
OF_THE_CODE = (CauseCode.EXPLAINED, CauseCode.CODE_CHANGED, CauseCode.CONFIGURATION, CauseCode.WAVERING)


@dataclass(frozen=True)
class SwapCause:
    """`cause` is None where no recorded fact explains the move; `differences` are those of the facts, in words."""

    cause: Cause | None
    differences: tuple[str, ...]


Moved = tuple[str, str, str]  # provider, case and component


def causes(cases: Iterable[IsolatedCase], judged: Iterable[CaseIsolation]) -> dict[Moved, SwapCause]:
    """Of every component that moved a case, from the facts of the swap that moved it more clearly."""
    by_name = {one.name: one for one in cases}
    found: dict[Moved, SwapCause] = {}
    for one in judged:
        for effect in one.components:
            if effect.moved and (swap := _swap(effect)) is not None:
                arms = by_name[one.provider, one.case].arms
                found[one.provider, one.case, effect.component] = _why(arms, *swap)
    return found


def _swap(effect: ComponentEffect) -> tuple[str, str, float] | None:
    """The arm with the new component, that with the old one, and the ratio of their times."""
    ahead = (forward(effect.component), FROM, effect.forward)
    back = (TO, backward(effect.component), effect.backward)
    measured = [one for one in (ahead, back) if one[2].ratio is not None]
    if not measured:
        return None
    arm, than, contrast = min(measured, key=lambda one: one[2].q)
    return arm, than, contrast.ratio or 1.0


def _why(arms: Mapping[str, ContenderResult], arm: str, than: str, ratio: float) -> SwapCause:
    head, base = arms[arm], arms[than]
    move = CaseMove(
        str(head.case),
        ratio,
        confirmed=True,
        head=head.facts,
        baseline=base.facts,
        same_code=same_kernels(head, base),
        us=base.median,
    )
    why = cause(move)
    return SwapCause(why if why.code in OF_THE_CODE else None, differences(head.facts, base.facts))
