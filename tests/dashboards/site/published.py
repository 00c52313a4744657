"""A ledger to publish: a repository, a package with releases, a hostile name, and a private target; and its export."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.db.engine import transaction
from service.db.models import Run, Target
from service.domain.states import ForgeKind, RunState, TargetKind
from tests import world
from tests.dashboards import seed_deciding
from tests.dashboards.seed import CASES, RECIPE, watched
from tests.shell import attempt

HOSTILE = 'evil"><img src=x onerror=alert(1)>/../..'
SECRET = "zq-secret"
SUBJECT = "</title><script>alert('subject')</script>"
VERSIONS = ("1.0.0", "1.1.0", "2.0.0-rc.1+local/../x")
LONG_AGO = 1_700_000_000.0


@contextmanager
def ledger(folder: Path) -> Iterator[None]:
    """The story of `seed_deciding.py`, and the other targets."""
    with watched(folder, seed_deciding.seed):
        for name, columns in (
            (HOSTILE, {"kind": TargetKind.GIT}),
            ("pkg", {"kind": TargetKind.PACKAGE, "package": "pkg"}),
            (SECRET, {"kind": TargetKind.GIT, "private": True}),
        ):
            made = world.target(RECIPE, name, **columns)
            with transaction() as session:
                shas = VERSIONS if name == "pkg" else [f"{name[0]}{place:039x}" for place in range(3)]
                for place, sha in enumerate(shas):
                    subject = f"of {SECRET}" if name == SECRET else SUBJECT
                    _measured(session, made.id, place, sha, subject)
        rename("norms", forge_kind=ForgeKind.GITHUB)
        with transaction() as session:
            world.totalled(session)
        yield


def _measured(session: Session, target_id: int, place: int, sha: str, subject: str) -> Run:
    """A revision of the mainline, measured next to SOTA; each is 10 % slower than the one before."""
    found = world.commit(
        session,
        target_id,
        sha,
        ordinal=place,
        parent=None,
        subject=subject,
        committed_at=LONG_AGO + place * 86_400,
    )
    times = {"state": RunState.DONE, "started_at": LONG_AGO, "finished_at": LONG_AGO + place * 86_400 + 300}
    run = world.run(session, found, device="h200", worker="the-worker", **times)
    for number, case in enumerate(CASES):
        own = 10.0 * (number + 1) * 1.1**place
        world.measured(session, run, case, own)
        world.measured(session, run, case, own / 1.2, role="sota", provider="quack")
        world.judged(session, run, case, outcome="steady" if place else "new", ratio=1.1, low=1.09, high=1.11)
        world.judged(session, run, case, baseline_kind="sota", baseline="quack", ratio=1.2, behind_sota=True)
    return run


def measure_again() -> None:
    """Add what is newer than everything else: another revision of the package."""
    with transaction() as session:
        of = session.scalars(select(Target).where(Target.name == "pkg")).one()
        _measured(session, of.id, len(VERSIONS), "3.0.0", "newest")
        world.totalled(session)


def kernelwatch(*arguments: object) -> tuple[int, str]:
    """The exit code of a command, and what it printed or raised."""
    found = attempt(*[str(one) for one in arguments])
    return found.exit_code, f"{found.output}{found.exception or ''}"


def exported(folder: Path, *options: object) -> dict[str, bytes]:
    """Export a site; its files by their paths."""
    code, said = kernelwatch("export", "site", folder, *options)
    assert code == 0, said
    return files(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def rename(name: str, **columns: object) -> None:
    """Change the row of a target."""
    with transaction() as session:
        session.execute(update(Target).where(Target.name == name).values(**columns))
