"""Strangers and storms at the way in: late and forged heads, bombs, other people's commits, thousands of deliveries."""

import hashlib
import json
import os
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import selectinload

from service.db.engine import reading, transaction
from service.db.models import Delivery, Revision, Run, Target
from service.domain.states import RunState
from service.errors import Refused
from service.ledger import targets
from service.ledger.intake import deliveries
from service.ledger.notify import compose, outbox
from service.settings import MIB, settings
from service.sources import git
from tests.attacks.conftest import Outcome
from tests.fakes.contracts import webhooks
from tests.fakes.github import FakeGitHub
from tests.fakes.processes import served
from tests.fakes.repository import Repository
from workers import control

RECIPE = """
devices = ["cpu"]
suite = "one"
[base]
stack = "scripted"
[paths]
ignore = ["*.md"]
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
[suites]
one = ["rmsnorm.fwd.512x512.fp32"]
"""
QUEUED, HELD, FAILED = RunState.QUEUED, RunState.HELD, RunState.FAILED
SUPERSEDED, CANCELLED = RunState.SUPERSEDED, RunState.CANCELLED


class House:
    """A watched repository, the webhooks that arrive of it, and control."""

    def __init__(self, repository: Repository, github: FakeGitHub) -> None:
        self.repository, self.git, self.github = repository, repository.git, github
        self.delivered = 0

    # -- what people do

    def tree(self, *entries: tuple[str, str, str], base: str | None = "main") -> str:
        """A tree: that of `base` with these entries (mode, name, text or the sha of a submodule or folder)."""
        lines = self.git("ls-tree", base).splitlines() if base else []
        for mode, name, content in entries:
            kind = {"160000": "commit", "040000": "tree"}.get(mode, "blob")
            sha = content if kind != "blob" else self.git("hash-object", "-w", "--stdin", given=content)
            lines.append(f"{mode} {kind} {sha}\t{name}")
        return self.git("mktree", "-z", given="".join(f"{line}\0" for line in lines))

    def commit_of(self, tree: str, subject: str = "work", *, parent: str | None = "main", date: str = "") -> str:
        dates = {"GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date} if date else {}
        command = ["commit-tree", tree, *(["-p", parent] if parent else []), "-F", "-"]
        os.environ.update(dates)
        try:
            return self.git(*command, given=subject)
        finally:
            for name in dates:
                del os.environ[name]

    def commit(self, name: str, text: str = "", *, parent: str = "main") -> str:
        """A commit that adds one file and that no branch has."""
        return self.commit_of(self.tree(("100644", name, text), base=parent), f"add {name}", parent=parent)

    def ref(self, number: int, sha: str) -> str:
        """Make this the head of a pull request."""
        self.git("update-ref", f"refs/pull/{number}/head", sha)
        return sha

    def own(self, number: int, sha: str) -> str:
        """Make this the head of a pull request from a branch of the repository itself."""
        self.git("update-ref", f"refs/heads/p{number}", sha)
        return self.ref(number, sha)

    def pulled(
        self, number: int, sha: str, action: str = "opened", *, fork: bool = True, **more: Any
    ) -> tuple[str, bytes]:
        """The delivery of a new head of a pull request."""
        whose = "stranger/norms" if fork else "acme/norms"
        body = webhooks.pull_request(number, action, sha, self.git("rev-parse", "main"), whose=whose, **more)
        return "pull_request", webhooks.body_from_github("pull_request", body)

    def pushed(self, before: str, after: str, branch: str = "main") -> tuple[str, bytes]:
        return "push", webhooks.body_from_github("push", webhooks.push(before, after, branch=branch))

    def pull(self, *arguments: Any, **more: Any) -> int:
        return self.deliver(*self.pulled(*arguments, **more))

    def push(self, *arguments: str) -> int:
        return self.deliver(*self.pushed(*arguments))

    def deliver(self, event: str, raw: bytes) -> int:
        """Store a webhook as the API does, which is not processed yet."""
        self.delivered += 1
        with transaction() as session:
            deliveries.store_delivery(session, f"guid-{self.delivered}", event, raw)
        with reading() as session:
            return session.execute(select(func.max(Delivery.id))).scalar_one()

    # -- what the service does

    def speak(self) -> None:
        compose.notify_due()
        outbox.deliver_due()

    # -- what there is to see

    def states(self, number: int | None = None, sha: str | None = None) -> list[tuple[str, RunState]]:
        """Runs by revision, oldest first."""
        wanted = select(Run).join(Revision).order_by(Run.id).options(selectinload(Run.revision))
        wanted = wanted.where(Run.pull == number) if number is not None else wanted
        wanted = wanted.where(Revision.sha == sha) if sha is not None else wanted
        with reading() as session:
            return [(run.revision.sha, run.state) for run in session.execute(wanted).scalars()]

    def reason(self, number: int) -> str:
        with reading() as session:
            newest = select(Run).where(Run.pull == number).order_by(Run.id.desc()).limit(1)
            run = session.execute(newest).scalar_one_or_none()
            return "" if run is None else run.reason or ""

    def waiting(self) -> list[str]:
        """The outcomes of deliveries that are not processed."""
        with reading() as session:
            rows = session.execute(select(Delivery).where(Delivery.processed_at.is_(None))).scalars()
            return [row.outcome or "" for row in rows]

    def outcome_of(self, delivery: int) -> str:
        with reading() as session:
            return session.get_one(Delivery, delivery).outcome or ""

    def status(self, sha: str) -> str:
        said = self.github.statuses["acme/norms", sha]
        return f"{said[-1]['state']}: {said[-1]['description']}" if said else ""

    def target(self) -> Target:
        with reading() as session:
            return session.execute(select(Target).where(Target.name == "norms")).scalar_one()


@pytest.fixture
def house(either: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """A target with one commit that is known; its runs wait, because no worker takes them."""
    yield from _house(tmp_path, monkeypatch)


@pytest.fixture
def quick_house(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """The same on SQLite alone, where the database does not matter."""
    yield from _house(tmp_path, monkeypatch)


def _house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    github = FakeGitHub()
    repository = Repository(tmp_path / "norms")
    with served(github.app) as forge:
        for name, value in {
            "ALLOWED_ROOTS": json.dumps([str(tmp_path)]),
            "GITHUB_API": forge,
            "GITHUB_TOKEN": "a-token",
            "DEVICE": "cpu",
            "WRITE_PAUSE_S": "0",
        }.items():
            monkeypatch.setenv(f"KERNELWATCH_{name}", value)
        settings.cache_clear()
        control.devices.cache_clear()
        house = House(repository, github)
        repository.commit("first", {"norms.py": "1"})
        with transaction() as session:
            where = {"location": str(repository.folder), "branch": "main", "forge": "acme/norms"}
            target = targets.register(session, "norms", recipe_text=RECIPE, **where)
        deliveries.backfill_last(target.id, 1)
        yield house
    control.devices.cache_clear()


BOTH = pytest.mark.parametrize("either", ["sqlite", pytest.param("postgres", marks=pytest.mark.attack)], indirect=True)


@pytest.fixture(autouse=True)
def bare_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start git directly: tests/service/sources/test_git.py proves that it ends with the process that started it."""
    monkeypatch.setattr(git, "_ending_with_us", lambda: ())


# -- the newest head wins


@BOTH
def test_an_older_head_that_arrives_late_does_not_win(house: House, outcome: Outcome) -> None:
    old = house.commit("a.txt")
    new = house.own(7, house.commit("b.txt", parent=old))
    house.pull(7, new, "synchronize", fork=False)
    deliveries.process_due()
    house.pull(7, old, "opened", fork=False)
    deliveries.process_due()
    open_runs = [sha for sha, state in house.states(7) if state in (QUEUED, HELD)]
    seen = f"open runs: {['newest' if sha == new else 'OLD' for sha in open_runs]}"
    attack = "an older head of a pull request is delivered after the newest"
    outcome("order", attack, held=open_runs == [new], seen=seen, goal="one open run, of the newest head")


@BOTH
def test_two_heads_in_the_wrong_order_at_once(house: House, outcome: Outcome) -> None:
    old = house.commit("a.txt")
    new = house.own(7, house.commit("b.txt", parent=old))
    house.pull(7, new, "synchronize", fork=False)
    house.pull(7, old, "opened", fork=False)
    deliveries.process_due()
    open_runs = [sha for sha, state in house.states(7) if state in (QUEUED, HELD)]
    seen = f"open runs: {['newest' if sha == new else 'OLD' for sha in open_runs]}"
    outcome("order", "two heads at once, in the wrong order", held=open_runs == [new], seen=seen, goal="the newest")


@BOTH
def test_a_late_opening_does_not_open_a_closed_pull_request(house: House, outcome: Outcome) -> None:
    head = house.own(7, house.commit("a.txt"))
    house.pull(7, head, "closed", fork=False)
    deliveries.process_due()
    house.pull(7, head, "opened", fork=False)
    deliveries.process_due()
    late = house.states(7)
    house.pull(7, head, "reopened", fork=False)
    deliveries.process_due()
    reopened = [state for _, state in house.states(7)]
    held = late == [] and reopened == [QUEUED]
    seen = f"runs after the late opening: {len(late)}; after reopening: {len(reopened)}"
    outcome("order", "`opened` arrives after `closed`", held=held, seen=seen, goal="0 runs, then 1")


@BOTH
def test_eight_forced_pushes_leave_one_open_run(house: House, outcome: Outcome) -> None:
    heads = []
    for number in range(8):
        heads.append(house.own(7, house.commit("f.txt", str(number))))
        house.pull(7, heads[-1], "opened" if number == 0 else "synchronize", fork=False)
        if number % 3 == 0:
            deliveries.process_due()
    deliveries.process_due()
    states = Counter(state for _, state in house.states(7))
    held = [sha for sha, state in house.states(7) if state is QUEUED] == [heads[-1]]
    outcome("order", "8 forced pushes in a row", held=held, seen=dict(states), goal="1 open run, of the last")


@BOTH
def test_two_pull_requests_with_one_commit_are_both_answered(house: House, outcome: Outcome) -> None:
    same = house.commit("same.txt")
    house.git("update-ref", "refs/heads/same", same)
    for number in (7, 8):
        house.own(number, same)
        house.pull(number, same, fork=False)
    deliveries.process_due()
    seen = {number: [state.value for _, state in house.states(number)] for number in (7, 8)}
    held = seen == {7: ["queued"], 8: ["queued"]}
    outcome("order", "two pull requests with one commit", held=held, seen=seen, goal="a run for each")


def test_several_controls_agree_on_the_newest_head(house: House, either: str, outcome: Outcome) -> None:
    wrong, rounds = 0, 2 if either == "sqlite" else 6
    for number in range(1, rounds + 1):
        old = house.commit("a.txt", str(number))
        house.git("update-ref", f"refs/heads/topic-{number}", old)
        house.own(number, old)
        house.pull(number, old, fork=False)
        with ThreadPoolExecutor(3) as pool:
            begun = [pool.submit(deliveries.process_due) for _ in range(2)]
            new = house.commit("b.txt", str(number), parent=old)
            house.git("update-ref", f"refs/heads/topic-{number}", new)
            house.own(number, new)
            house.pull(number, new, "synchronize", fork=False)
            begun += [pool.submit(deliveries.process_due)]
            [one.result() for one in begun]
        deliveries.process_due()
        wrong += [sha for sha, state in house.states(number) if state is QUEUED] != [new]
    seen = f"{wrong} of {rounds} wrong"
    outcome("order", "two controls process heads of one pull request", held=not wrong, seen=seen, goal="0 wrong")


# -- one forged head does not stop its target


def _bytes_of_a_commit(house: House) -> str:
    """Invalid UTF-8 in name, author and subject, and dates that are no dates."""
    tree, main = house.tree(("100644", "u", "12")), house.git("rev-parse", "main")
    raw = f"tree {tree}\nparent {main}\n".encode()
    raw += (
        b"author \xff\xfe<b>x</b> <a@b> 1700000000 +0000\ncommitter \xff <a@b> 1700000000 +0000\n\nsubj\xff\xed\xa0\x80"
    )
    return _raw(house, "commit", raw)


def _raw(house: House, kind: str, content: bytes) -> str:
    command = ["git", "-C", str(house.repository.folder), "hash-object", "-t", kind, "-w", "--literally", "--stdin"]
    return subprocess.run(command, input=content, check=True, capture_output=True).stdout.decode().strip()


def _wide(house: House, folders: int) -> str:
    """A tree of a thousand files in each folder."""
    blob = house.git("hash-object", "-w", "--stdin", given="x")
    thousand = house.git("mktree", given="".join(f"100644 blob {blob}\tf{n}\n" for n in range(1000)))
    return house.git("mktree", given="".join(f"040000 tree {thousand}\td{n}\n" for n in range(folders)))


def _bomb(house: House, mode: str = "100644") -> str:
    """A tree that holds itself ten deep and ten wide: 10^10 paths in ten small objects."""
    blob = house.git("hash-object", "-w", "--stdin", given="x") if mode != "160000" else house.git("rev-parse", "main")
    kind = "commit" if mode == "160000" else "blob"
    tree = house.git("mktree", given="".join(f"{mode} {kind} {blob}\tf{n}\n" for n in range(10)))
    for _ in range(9):
        tree = house.git("mktree", given="".join(f"040000 tree {tree}\td{n}\n" for n in range(10)))
    return tree


def _deep(house: House, levels: int = 5_000) -> str:
    tree = house.tree(("100644", "leaf", "x"), base=None)
    for _ in range(levels):  # written by hand, because a process for each takes minutes
        raw = b"40000 d\0" + bytes.fromhex(tree)
        raw = b"tree %d\0" % len(raw) + raw
        tree = hashlib.sha1(raw).hexdigest()
        file = house.repository.folder / ".git/objects" / tree[:2] / tree[2:]
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(zlib.compress(raw))
    return tree


FAR = "@99999999999999 +0000"
XSS = (
    "<script>alert(1)</script><img src=x onerror=alert(2)> [x](javascript:alert(3)) @everyone ![i](http://127.0.0.1/x)"
)
# What a stranger's head may be, and whether it is refused at the way in; None: a newer git refuses it.  The others are
# held for approval.
EVIL: dict[str, tuple[bool | None, Callable[[House], str]]] = {
    "a date in the year 3,170,843": (False, lambda h: h.commit_of(h.tree(("100644", "a", "1")), date=FAR)),
    "a date of the year 12000": (
        False,
        lambda h: h.commit_of(h.tree(("100644", "a", "2")), date="@316000000000 +0000"),
    ),
    "HTML and Markdown in the subject": (False, lambda h: h.commit_of(h.tree(("100644", "a", "3")), XSS)),
    "escapes and 200 KB in the subject": (
        False,
        lambda h: h.commit_of(h.tree(("100644", "a", "4")), "\u202eevil \x1b]0;pwned\x07 " + "A" * 200_000),
    ),
    "a submodule of ext::": (
        False,
        lambda h: h.commit_of(
            h.tree(
                ("160000", "sub", h.git("rev-parse", "main")),
                ("100644", ".gitmodules", '[submodule "x"]\n path = sub\n url = ext::sh -c touch% pwned\n'),
            )
        ),
    ),
    "filters and export-subst in .gitattributes": (
        False,
        lambda h: h.commit_of(h.tree(("100644", ".gitattributes", "* filter=evil export-subst ident\n"))),
    ),
    "paths with quotes, newlines and options": (
        False,
        lambda h: h.commit_of(h.tree(("100644", "new\tline\"'<b>", "7"), ("100644", "--upload-pack=touch x", "x"))),
    ),
    "a path .GIT": (True, lambda h: h.commit_of(h.tree(("100644", ".GIT", "8")))),
    "links out of the tree and to links": (
        False,
        lambda h: h.commit_of(h.tree(("120000", "out", "/etc"), ("120000", "l1", "l2"), ("120000", "l2", "../.."))),
    ),
    "names that differ by case": (
        False,
        lambda h: h.commit_of(h.tree(("100644", "Speed.json", "{}"), ("100644", "SPEED.JSON", "{}"))),
    ),
    "a link to /proc/1/environ": (
        False,
        lambda h: h.commit_of(h.tree(("120000", "speed.json", "/proc/1/environ"), base=None)),
    ),
    "invalid UTF-8 in names and subject": (True, _bytes_of_a_commit),
    "a build that fails": (False, lambda h: h.commit("broken")),
    "201,000 files": (False, lambda h: h.commit_of(_wide(h, 201))),
    "10^10 paths": (False, lambda h: h.commit_of(_bomb(h))),
    # Five more.
    "10^10 submodules": (False, lambda h: h.commit_of(_bomb(h, "160000"))),
    "a tree 5,000 levels deep": (None, lambda h: h.commit_of(_deep(h))),
    "a reference to a blob": (True, lambda h: h.git("hash-object", "-w", "--stdin", given="not a commit")),
    "a commit without a parent": (True, lambda h: h.commit_of(h.tree(("100644", "alone", "1")), parent=None)),
    "a commit without a date": (
        True,
        lambda h: _raw(h, "commit", f"tree {h.tree(('100644', 'z', ''))}\nauthor x\ncommitter y\n\nno date\n".encode()),
    ),
    "a commit that lacks its tree": (
        True,
        lambda h: _raw(
            h,
            "commit",
            f"tree {'d' * 40}\nparent {h.git('rev-parse', 'main')}\nauthor x <x@y> 1 +0000\n"
            "committer x <x@y> 1 +0000\n\nno tree\n".encode(),
        ),
    ),
}


QUICK = ("a path .GIT", "a reference to a blob")  # one that git refuses, one that is no commit


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.attack) for name in EVIL]
)
def test_an_evil_head_fails_alone(quick_house: House, outcome: Outcome, name: str) -> None:
    """The mainline and another pull request go on, and the reason is where people see it."""
    house = quick_house
    refused, make = EVIL[name]
    began = time.monotonic()
    made = make(house)
    command = ["git", "-C", str(house.repository.folder), "update-ref", "refs/pull/7/head", made]
    if subprocess.run(command, capture_output=True, check=False).returncode:  # git itself refuses such a reference
        (house.repository.folder / ".git/refs/pull/7").mkdir(parents=True)
        (house.repository.folder / ".git/refs/pull/7/head").write_text(f"{made}\n")
    before = house.git("rev-parse", "main")
    house.pull(7, made)
    house.pull(8, house.ref(8, house.commit("honest.txt")))
    deliveries.process_due()
    took = time.monotonic() - began
    after = house.repository.commit("honest work", {"honest.txt": "1"})
    house.push(before, after)
    deliveries.process_due()
    house.speak()
    mainline, other = house.states(sha=after), house.states(8)
    evil = [state for _, state in house.states(7)]
    if refused is None:
        refused = evil == [FAILED]
    shown = house.status(made) if refused else "-"
    held = (
        [state for _, state in mainline] == [QUEUED]
        and [state for _, state in other] == [HELD]
        and evil == ([FAILED] if refused else [HELD])
        and house.waiting() == []
        and (not refused or (house.reason(7) and "Not measured" in shown))
    )
    seen = (
        f"mainline {[state.value for _, state in mainline]}, other {[state.value for _, state in other]}, "
        f"this {[state.value for state in evil]} {house.reason(7)[:60]!r}, status {shown[:40]!r}, {took:.0f} s"
    )
    goal = "mainline queued, other held, this " + ("failed with a reason and a status" if refused else "held")
    outcome("forged heads", name, held=held, seen=seen, goal=goal)


# -- strangers who push much

MEGABYTES = 3


def _grown(house: House) -> int:
    """Bytes of all mirrors."""
    return sum(file.stat().st_size for file in settings().state.glob("mirrors/*/objects/**/*") if file.is_file())


def test_a_head_that_brings_too_much_is_not_kept(
    quick_house: House, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWATCH_PULL_LIMIT", str(MIB))
    settings.cache_clear()
    house, before = quick_house, _grown(quick_house)
    head = house.ref(7, house.commit("noise", os.urandom(MEGABYTES * MIB // 2).hex()))
    house.pull(7, head)
    house.pull(8, house.ref(8, house.commit("honest.txt")))
    deliveries.process_due()
    house.speak()
    grown = (_grown(house) - before) / MIB
    held = grown < 1 and house.states(8)[0][1] is HELD and "KERNELWATCH_PULL_LIMIT" in house.reason(7)
    seen = f"{grown:.1f} MiB more, other pull request {house.states(8)[0][1].value}, {house.reason(7)!r}"
    outcome("mirrors", "a head of 1.5 MiB where 1 MiB is allowed", held=held, seen=seen, goal="refused, nothing kept")


def test_a_target_at_its_limit_says_so_and_others_go_on(
    quick_house: House, outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = quick_house
    small = Repository(tmp_path / "small")
    sha = small.commit("small", {"small.py": "1"})  # another commit than the first of the other repository
    with transaction() as session:
        other = targets.register(session, "small", location=str(small.folder), branch="main", recipe_text=RECIPE)
    monkeypatch.setenv("KERNELWATCH_MIRROR_LIMIT", str(MIB))
    settings.cache_clear()
    house.repository.commit("large", {"noise": os.urandom(MEGABYTES * MIB // 2).hex()})
    went = [deliveries.poll(house.target().id), deliveries.poll(other.id)]
    error = house.target().poll_error or ""
    held = went == [False, True] and "KERNELWATCH_MIRROR_LIMIT" in error and len(house.states(sha=sha)) == 1
    seen = f"poll of the large one: {error!r}, of the other: {'done' if went[1] else 'failed'}"
    outcome(
        "mirrors", "a branch of 1.5 MiB where 1 MiB is allowed", held=held, seen=seen, goal="a reason; others go on"
    )


# -- a storm

STORM_S = 30.0


@pytest.mark.parametrize(
    ("either", "total", "pulls"),
    [
        ("sqlite", 100, 6),
        pytest.param("sqlite", 2000, 50, marks=pytest.mark.attack),
        pytest.param("postgres", 2000, 50, marks=pytest.mark.attack),
    ],
    indirect=["either"],
)
def test_a_storm_of_deliveries_is_understood(
    house: House, either: str, outcome: Outcome, total: int, pulls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliveries of pushes and pull requests, all of them waiting at once."""
    heads = {}
    for number in range(1, pulls + 1):
        heads[number] = house.ref(number, house.commit("p.txt", str(number)))
    before = house.git("rev-parse", "main")
    tip = house.repository.commit("storm", {"norms.py": "2"})
    for start in range(0, total, 100):
        with transaction() as session:
            for n in range(start, start + 100):
                number = n % pulls + 1
                event, raw = house.pushed(before, tip) if n % 2 else house.pulled(number, heads[number], "synchronize")
                deliveries.store_delivery(session, f"storm-{n}", event, raw)
    fetches, fetch = list[Sequence[str]](), git.GitSource._fetch

    def noted(source: git.GitSource, to: Path, site: Any, refspecs: Sequence[str], *rest: Any, **more: Any) -> None:
        fetches.append(refspecs)
        fetch(source, to, site, refspecs, *rest, **more)

    monkeypatch.setattr(git.GitSource, "_fetch", noted)
    began = time.monotonic()
    while deliveries.process_due():
        pass
    took = time.monotonic() - began
    runs = [sha for sha, _ in house.states() if sha in {*heads.values(), tip}]
    of_heads = sum("refs/pull/" in refspecs[0] for refspecs in fetches)
    few = of_heads == 1 and len(fetches) - of_heads <= 2  # branches and the default branch
    held = (
        few
        and took <= STORM_S
        and not house.waiting()
        and sorted(runs) == sorted([*(heads[n] for n in heads if n % 2), tip])
    )
    left = len(house.waiting())
    seen = f"understood in {took:.0f} s with {len(fetches)} fetches; {len(runs)} runs, {left} waiting"
    outcome("storm", f"{total} deliveries ({either})", held=held, seen=seen, goal=f"{STORM_S:.0f} s, 3 fetches")


# -- a stranger's commit is a stranger's commit, whoever names it


def _fork(house: House) -> str:
    head = house.ref(9, house.commit("fork.txt"))
    house.pull(9, head, fork=True)
    deliveries.process_due()
    assert house.states(9) == [(head, HELD)]
    return head


def _name_it(house: House, head: str) -> None:
    deliveries.run_revision("norms", "pull/9/head")


def _name_its_sha(house: House, head: str) -> None:
    deliveries.run_revision("norms", head, again=True)


def _backfill_it(house: House, head: str) -> None:
    deliveries.backfill("norms", "main", head)


def _bisect_to_it(house: House, head: str) -> None:
    from service.ledger.bisections import advance

    advance.search("norms", "main", head, asked_by="ada")
    advance.advance_due()


def _open_it_ourselves(house: House, head: str) -> None:
    house.pull(10, house.ref(10, head), fork=False)
    deliveries.process_due()


def _push_it_elsewhere(house: House, head: str) -> None:
    house.push("0" * 40, head, "pull/9/head")
    deliveries.process_due()


@pytest.mark.parametrize(
    "way", [_name_it, _name_its_sha, _backfill_it, _bisect_to_it, _open_it_ourselves, _push_it_elsewhere]
)
def test_a_strangers_commit_is_held_whoever_names_it(
    quick_house: House, outcome: Outcome, way: Callable[[House, str], None]
) -> None:
    head = _fork(quick_house)
    try:
        way(quick_house, head)
        said = ""
    except Refused as refusal:
        said = f", refused: {refusal}"
    with reading() as session:
        found = list(session.execute(select(Run).join(Revision).where(Revision.sha == head)).scalars())
    loose = [run.id for run in found if run.state is not HELD or run.trusted]
    seen = f"{len(found)} runs, {len(loose)} not held{said[:80]}"
    attack = f"a held commit of a fork: {way.__name__.strip('_').replace('_', ' ')}"
    outcome("trust", attack, held=not loose, seen=seen, goal="0 not held")


# -- lists of paths


@pytest.mark.parametrize("files", [200_001, 1_000_000])
@pytest.mark.attack
def test_a_commit_that_touches_very_many_paths(quick_house: House, outcome: Outcome, files: int) -> None:
    house = quick_house
    head = house.ref(7, house.commit_of(_wide(house, files // 1000 + 1)))
    began = time.monotonic()
    house.pull(7, head)
    deliveries.process_due()
    took = time.monotonic() - began
    with reading() as session:
        kept = session.execute(select(Revision.paths).where(Revision.sha == head)).scalar()
    size = len(json.dumps(kept or []))
    held = house.states(7) == [(head, HELD)] and size < MIB
    seen = f"{house.states(7)[:1]}, {size / 1e6:.1f} MB of paths stored, {took:.1f} s"
    outcome("paths", f"a commit with {files:,} files", held=held, seen=seen, goal="a run, at most 1 MB stored")
