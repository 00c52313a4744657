"""A dashboard on which people of a forge act: each in a browser of their own, on regressions that a test opens."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page
from sqlalchemy import select

from service.app import create_app
from service.db.engine import disconnect, reading, transaction
from service.db.models import AuditEntry, Bisection, RegressionEvent, RegressionRow
from service.domain.states import FoundBy, RunState
from service.ledger.regressions import transitions
from service.settings import settings
from tests import world
from tests.dashboards.seed import RECIPE, watched
from tests.fakes.identity import CLIENT, SECRET, FakeIdentity
from tests.fakes.processes import served
from tests.fakes.repository import Repository

# Who they are on the forge: their permission on the repositories of the public and of the private target.
PEOPLE: Mapping[str, tuple[str | None, str | None]] = {
    "rita": ("read", None),
    "tina": ("triage", "triage"),
    "theo": ("triage", None),
    "wendy": ("write", None),
    "alma": (None, None),  # an administrator by the settings
}
HOSTILE = 'evil"><img src=x onerror=alert(1)>{{7*7}} </textarea><script>alert(2)</script>'
_places = count(10, 10)
# A target whose repository exists, and the cases that its recipe measures.
SEARCHED = tuple(f"rmsnorm.fwd.4096x{1024 * n}.bf16-fp32" for n in range(1, 13))
_OF_SEARCHED = f"""
devices = ["h200"]
suite = "all"

[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"

[suites]
all = {list(SEARCHED)}
"""


@dataclass
class Site:
    """An address, the forge of its people, and what became of their decisions."""

    address: str
    forge: FakeIdentity
    targets: dict[str, int] = field(default_factory=dict)
    repository: Repository | None = None  # of the target "searched"
    _searched: int = 0  # cases of it that have a regression

    @contextmanager
    def as_person(self, browser: Browser, who: str | None, **options: object) -> Iterator[Page]:
        """A page of somebody who signed in, or of nobody.  Every complaint of the browser fails the test."""
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)  # type: ignore[arg-type]
        page = context.new_page()
        complaints: list[str] = []
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        if who is not None:
            self.forge.person = {"id": sorted(PEOPLE).index(who) + 1, "login": who}
            page.goto(f"{self.address}/sign-in")
        yield page
        context.close()
        # A browser reports each answer of 400 and more; which those are is what the tests are about.
        assert [one for one in complaints if "the server responded with a status of" not in one] == []

    def regressions(self, cases: int = 1, target: str = "norms") -> Sequence[int]:
        """Open regressions of one incident, of a revision of their own."""
        place = next(_places)
        with transaction() as session:
            target_id = self.targets[target]
            good = world.commit(session, target_id, place)
            world.commit(session, target_id, place + 1)
            bad = world.commit(session, target_id, place + 2, subject=f"{HOSTILE} at {place}")
            run = world.run(session, bad, state=RunState.DONE, finished_at=1.0, baseline=good.sha)
            found = []
            for n in range(cases):
                case = f"rmsnorm.fwd.{place}x{1024 * (n + 1)}.bf16-fp32"
                world.measured(session, run, case, 60.0)
                world.measured(session, run, case, 50.0, role="parent")
                verdict = {"outcome": "regression", "ratio": 1.2, "low": 1.19, "high": 1.21, "baseline": good.sha}
                world.judged(session, run, case, **verdict)
                slower = transitions.Slower("norms", case, 1.2 + n / 100, 1.19, 1.21)
                row = transitions.open_one(session, run, slower, found_by=FoundBy.HISTORY, good=good.sha)
                found.append(row.id)
            return found

    def searchable(self, cases: int) -> Sequence[int]:
        """Open regressions of one incident, whose cases and commits exist, so that a bisection of them can start."""
        assert self.repository is not None
        shas = [self.repository.commit(f"work {self._searched} {n}") for n in range(3)]
        of_them = SEARCHED[self._searched : self._searched + cases]
        self._searched += cases
        with transaction() as session:
            target_id = self.targets["searched"]
            first = self._searched * 100
            line = [world.commit(session, target_id, sha, ordinal=first + n) for n, sha in enumerate(shas)]
            ended = {"state": RunState.DONE, "finished_at": 1.0, "device": "h200", "suite": "all"}
            run = world.run(session, line[-1], baseline=shas[0], **ended)
            return [
                transitions.open_one(
                    session,
                    run,
                    transitions.Slower("norms", case, 1.2, 1.19, 1.21),
                    found_by=FoundBy.HISTORY,
                    good=shas[0],
                ).id
                for case in of_them
            ]

    def bisections_of(self, numbers: Sequence[int]) -> Sequence[Bisection]:
        """The bisections that measure the case of the first of these regressions, the oldest first."""
        row = self.row(numbers[0])
        with reading() as session:
            of_target = select(Bisection).where(Bisection.target_id == row.target_id).order_by(Bisection.id)
            return [one for one in session.scalars(of_target) if row.case in one.cases]

    def bisection(self) -> int:
        """A bisection that waits for its first step."""
        place = next(_places)
        with transaction() as session:
            line = [world.commit(session, self.targets["norms"], place + n) for n in range(6)]
            return world.bisection(session, line, "rmsnorm.fwd.4096x1024.bf16-fp32", device="h200", suite="norms").id

    def row(self, regression_id: int) -> RegressionRow:
        with reading() as session:
            return session.get_one(RegressionRow, regression_id)

    def history(self, regression_id: int) -> list[str]:
        """What was done to a regression and by whom, after it was opened."""
        mine = RegressionEvent.regression_id == regression_id
        with reading() as session:
            found = session.scalars(select(RegressionEvent).where(mine).order_by(RegressionEvent.id)).all()
        return [f"{one.who} {one.what}" for one in found[1:]]

    def audited(self, thing: str) -> list[str]:
        """The entries of the audit log about something."""
        with reading() as session:
            found = session.scalars(select(AuditEntry).where(AuditEntry.object == thing).order_by(AuditEntry.id)).all()
        return [f"{one.actor_kind} {one.actor} {one.action}" for one in found]


@contextmanager
def client(site: Site, who: str | None) -> Iterator[httpx.Client]:
    """Somebody who signed in, or nobody, without a browser."""
    with httpx.Client(base_url=site.address, follow_redirects=True, timeout=60) as made:
        if who is not None:
            site.forge.person = {"id": sorted(PEOPLE).index(who) + 1, "login": who}
            assert made.get("/sign-in").status_code == 200
        yield made


def fields(person: httpx.Client, **more: str) -> dict[str, str]:
    """What a form of theirs sends."""
    return {"csrf_token": person.get("/api/v1/me").json()["csrf_token"] or "", **more}


@contextmanager
def acting_site(folder: Path) -> Iterator[Site]:
    """The site, with a public and a private target."""
    forge = FakeIdentity()
    with pytest.MonkeyPatch.context() as patch, served(forge.app) as there, watched(folder, lambda *_: None):
        forge.issuer = there
        for name, value in {
            "GITHUB_URL": there,
            "GITHUB_API": there,
            "GITHUB_CLIENT_ID": CLIENT,
            "GITHUB_CLIENT_SECRET": SECRET,
            "GITHUB_TOKEN": "a-token",
            "ADMINS": '["alma"]',
        }.items():
            patch.setenv(f"KERNELWATCH_{name}", value)
        settings.cache_clear()
        for person, permissions in PEOPLE.items():
            for repository, permission in zip(("octo/norms", "octo/secret"), permissions, strict=True):
                if permission:
                    forge.permissions[repository, person] = permission
        with served(create_app()) as address:
            patch.setenv("KERNELWATCH_PUBLIC_URL", address)
            settings.cache_clear()
            targets = {
                name: world.target(RECIPE, name=name, forge=f"octo/{name}", private=name == "secret").id
                for name in ("norms", "secret")
            }
            repository = Repository(folder / "demo" / "searched")
            searched = world.target(
                _OF_SEARCHED, name="searched", forge="octo/norms", location=str(repository.folder), branch="main"
            )
            yield Site(address, forge, targets | {"searched": searched.id}, repository)
    disconnect()
