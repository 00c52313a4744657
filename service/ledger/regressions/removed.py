"""Close what is open about cases that the recipe does not name any more, and open it again when they return.

The evidence is a run of the mainline, at a later revision, by the recipe as it is now.  Without it a renamed case would
stay slow, and behind SOTA, for ever: no run can show it to be fixed.
"""

from collections.abc import Collection, Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session, contains_eager

from service.db.models import Gap, RecipeRow, RegressionRow, Revision, Run, Series, Target
from service.domain.policy.recipes import Recipe
from service.domain.regressions.lifecycle import Action, Transition
from service.domain.states import OPEN_REGRESSIONS, RegressionState
from service.domain.verdicts.samples import Name
from service.ledger.regressions import transitions
from service.reports.report import readable


def note_removed(
    session: Session, run: Run, revision: Revision, judged: Collection[Name], now: float
) -> list[RegressionRow]:
    """The regressions that this changes; a case that the run `judged` is measured, whatever the recipe says.

    The caller holds the lock, and settles their incidents.
    """
    recipe_id = session.get_one(Target, run.target_id).recipe_id
    if run.recipe_id != recipe_id or revision.ordinal is None:
        return []
    recipe = readable(session.get_one(RecipeRow, recipe_id).text)
    if recipe is None:  # another version of kernelwatch wrote it
        return []
    changed = []
    states = (*OPEN_REGRESSIONS, RegressionState.REMOVED)
    for row, ordinal in _since(session, run, states):
        if ordinal is not None and ordinal >= revision.ordinal:
            continue
        here = row.series.device == run.device and row.name in judged
        is_removed, measured = row.state is RegressionState.REMOVED, here or _measures(recipe, row.series)
        if is_removed is not measured:
            continue
        what = f"{row.series.printed} of {row.series.provider} on {row.series.device}"
        if measured:
            transition = Transition(Action.MEASURE_AGAIN, words=f"the recipe has {what} again", run_id=run.id)
        else:
            transition = Transition(Action.REMOVE, words=f"the recipe has no {what} any more", run_id=run.id)
        transitions.change(session, row, transition, now)
        changed.append(row)
    for gap in _gaps_before(session, run, revision.ordinal):
        if not _measures(recipe, gap.series):
            gap.behind_sota, gap.last_run_id, gap.since_run_id, gap.ratio_then = False, run.id, None, None
    return changed


def _since(session: Session, run: Run, states: Iterable[RegressionState]) -> Iterable[tuple[RegressionRow, int | None]]:
    """The regressions of the target in these states, each with the place of its revision on the mainline."""
    rows = (
        select(RegressionRow, Revision.ordinal)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .join(RegressionRow.series)
        .options(contains_eager(RegressionRow.series))
        .where(Series.target_id == run.target_id, RegressionRow.state.in_(states))
        .order_by(RegressionRow.id)
        .execution_options(populate_existing=True)
    )
    return session.execute(rows).all()


def _gaps_before(session: Session, run: Run, ordinal: int) -> Iterable[Gap]:
    """The cases behind SOTA that were last measured at an earlier revision."""
    rows = (
        select(Gap)
        .join(Run, Run.id == Gap.last_run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .join(Gap.series)
        .options(contains_eager(Gap.series))
        .where(Series.target_id == run.target_id, Gap.behind_sota, Revision.ordinal < ordinal)
    )
    return session.scalars(rows).all()


def _measures(recipe: Recipe, series: Series) -> bool:
    """Whether the recipe has the case in any suite of the device, and a provider that offers it."""
    if series.device not in recipe.devices:
        return False
    provider = recipe.providers_on(series.device).get(series.provider)
    suites = {recipe.suite_on(series.device), *recipe.suites}
    return provider is not None and any(
        str(case) == series.printed and provider.offers(case) for suite in suites for case in recipe.cases(suite)
    )
