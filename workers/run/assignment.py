"""Read a leased run, and check whether it may run on this worker."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import selectinload

from kernels.arena.session import KnownRepeats
from kernels.cases import Case
from service.db.engine import reading
from service.db.models import Run, Target
from service.domain.policy import recipes
from service.domain.policy.recipes import Recipe
from service.domain.verdicts.analysis import KnownVariances
from service.errors import SandboxFailed
from service.ledger.calibration.known_variances import known_variances
from service.ledger.runs import queue, repeatability
from service.ledger.server_policy import effective
from workers.sandbox import sandbox


@dataclass(frozen=True)
class Assignment:
    """A leased run, with its recipe."""

    run: Run
    recipe: Recipe
    adapters: Mapping[str, str]
    no_sandbox: str | None  # why it is measured without a sandbox; None where there is one
    repeats_before: KnownRepeats = field(default_factory=dict)  # by the last runs of the target
    known: KnownVariances = field(default_factory=dict)  # by the last runs of the target on this worker

    @property
    def sandboxed(self) -> bool:
        return self.no_sandbox is None

    @property
    def target(self) -> Target:
        return self.run.target

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases of the suite, or those of them that the run is limited to."""
        cases = self.recipe.cases(self.run.suite)
        if self.run.only_cases is None:
            return cases
        wanted = set(self.run.only_cases)
        return tuple(case for case in cases if str(case) in wanted)


def assigned(lease: queue.Lease) -> Assignment:
    """Read a leased run.  Raises SandboxFailed where the sandbox does not work any more and the run needs it."""
    loads = (selectinload(Run.target), selectinload(Run.recipe), selectinload(Run.revision))
    with reading() as session:
        run = session.execute(select(Run).where(Run.id == lease.run_id).options(*loads)).scalar_one()
        recipe = recipes.parse(run.recipe.text)
        before = repeatability.repeats_before(session, run, recipe.cases(run.suite))
        known = known_variances(session, run, effective(recipe, run.device))
    trouble = sandbox.self_test()
    if trouble and not (run.trusted and run.target.allow_unsandboxed):
        raise SandboxFailed(f"The sandbox stopped working: {trouble}.")
    return Assignment(run, recipe, run.recipe.adapters, trouble, before, known)
