"""CPU time that a server needs for a request: kernelwatch's and, where it is installed, LNT's, in one session.

    make bench-api

Both are real servers with one worker and SQLite, hold the same history, and take turns.  The client runs in this
process and does not count.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.api.history import DEVICE, PROVIDER, RECIPE, SAMPLES, History, fill
from benchmarks.api.servers import SUITE, TOKEN, Server, kernelwatch, lnt
from service.db import migrate
from service.db.engine import disconnect, transaction
from service.domain.access import local, read_grants
from service.ledger.access import keys
from service.ledger.acting import as_actor
from service.settings import settings
from tests import world

LNT_TIME = 3  # the index of execution_time among the fields of the suite
SUBMITTED = 10  # revisions of one turn


@dataclass(frozen=True)
class Document:
    """A document of both; the goal is CPU time of ours in ms."""

    name: str
    path: str
    lnt: str | None = None
    goal_ms: float | None = None


def documents(run: int, lnt_run: int, lnt_test: int, history: History) -> list[Document]:
    last, case = history.revisions - 1, history.cases[0]
    compare = f"targets/norms/compare?device={DEVICE}"
    page = f"{SUITE}/{lnt_run}"
    return [
        Document("run", f"runs/{run}", page, 40),
        Document("run, LNT's as JSON", f"runs/{run}", f"api/{SUITE}/runs/{lnt_run}", 40),
        Document("compare", f"{compare}&base=c{last - 1}&head=c{last}", f"{page}?compare_to={lnt_run - 1}", 40),
        Document("compare, unpaired", f"{compare}&base=c1&head=c{last}", f"{page}?compare_to=2", 40),
        Document(
            "series",
            f"targets/norms/series?case={case}&provider={PROVIDER}&device={DEVICE}",
            f"api/{SUITE}/graph/1/{lnt_test}/{LNT_TIME}",
            10,
        ),
        Document("regressions", "regressions", f"{SUITE}/regressions/?state=-1", 4),
        Document("runs", "targets/norms/runs"),
    ]


def cost_ms(server: Server, path: str, requests: int, headers: dict[str, str] | None = None) -> float:
    """CPU time of a request, in ms."""
    began = server.cpu_s()
    for _ in range(requests):
        server.client.get(path, headers=headers).raise_for_status()
    return (server.cpu_s() - began) / requests * 1e3


def figures(values: Sequence[float], places: int = 1) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.{places}f} ({min(values):.{places}f} to {max(values):.{places}f})"


def compare_reading(ours: Server, theirs: Server | None, which: Sequence[Document], rounds: int, requests: int) -> None:
    print(f"CPU ms a request: median of {rounds} rounds of {requests} requests (least to most)")
    print(f"{'':<20} {'ours':>22} {'304':>22} {'goal':>5} {'LNT':>25} {'LNT / ours':>20} {'bytes, LNT':>18}")
    for one in which:
        first = _same(ours.client, one.path)
        known = {"If-None-Match": first.headers["etag"]} if "etag" in first.headers else None
        sizes = f"{len(first.content)}"
        times, again, lnts = list[float](), list[float](), list[float]()
        if theirs and one.lnt:
            sizes += f", {len(_same(theirs.client, one.lnt).content)}"
        for _ in range(rounds):
            times.append(cost_ms(ours, one.path, requests))
            if known:
                again.append(_not_modified_ms(ours, one.path, requests, known))
            if theirs and one.lnt:
                lnts.append(cost_ms(theirs, one.lnt, requests))
        goal = f"{one.goal_ms:.0f}" if one.goal_ms else ""
        ratios = figures([b / a for a, b in zip(times, lnts, strict=True)]) if lnts else ""
        shown = figures(again) if again else ""
        print(
            f"{one.name:<20} {figures(times):>22} {shown:>22} {goal:>5} {figures(lnts) if lnts else '':>25}"
            f" {ratios:>20} {sizes:>18}",
            flush=True,
        )


def _same(client: httpx.Client, path: str) -> httpx.Response:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer


def _not_modified_ms(server: Server, path: str, requests: int, known: dict[str, str]) -> float:
    assert server.client.get(path, headers=known).status_code == 304
    began = server.cpu_s()
    for _ in range(requests):
        server.client.get(path, headers=known)
    return (server.cpu_s() - began) / requests * 1e3


def store(ours: Server, theirs: Server | None, key: str, history: History) -> int:
    """Send the history to both, in turns of some revisions, and print what a sample costs.  Returns LNT's last run."""
    cpu = dict[Server, list[float]]()
    last = 0

    def turn(server: Server, send: Callable[[], int]) -> int:
        began = server.cpu_s()
        sent = send()
        cpu.setdefault(server, []).append((server.cpu_s() - began) * 1e3)
        return sent

    for first in range(0, history.revisions, SUBMITTED):
        some = range(first, min(first + SUBMITTED, history.revisions))
        turn(ours, lambda some=some: _ingest(ours, key, history, some))
        if theirs:
            last = turn(theirs, lambda some=some: [submit_to_lnt(theirs, history, n) for n in some][-1])
    samples = history.series * SAMPLES * SUBMITTED / 1e3
    print(f"stored through the API: {history.size} samples, {SUBMITTED} revisions a turn; samples per second of CPU")
    rates = [[samples / ms * 1e6 for ms in times] for times in cpu.values()]
    print(f"ours {figures(rates[0], 0)}; goal 20000")
    if theirs:
        print(f"LNT {figures(rates[1], 0)}; ours / LNT {figures([a / b for a, b in zip(*rates, strict=True)])}")
    return last


def _ingest(server: Server, key: str, history: History, revisions: Sequence[int]) -> int:
    answer = server.client.post(
        "targets/norms/ingested",
        content=b"".join(_lines(history, revisions)),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/x-ndjson"},
    )
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def _lines(history: History, revisions: Sequence[int]) -> Iterator[bytes]:
    yield json.dumps({"batch": {"tool": "a study", "machine": "box", "device": DEVICE}}).encode() + b"\n"
    for revision in revisions:
        for n, case in enumerate(history.cases):
            row = {"revision": f"{revision:040x}", "provider": PROVIDER, "case": case}
            yield json.dumps(row | {"samples": history.samples(revision, n)}).encode() + b"\n"


def submit_to_lnt(server: Server, history: History, revision: int) -> int:
    """Submit one revision.  Returns the id of LNT's run."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(1e9 + 60 * revision))
    report = {
        "format_version": "2",
        "machine": {"name": "box"},
        "run": {"start_time": at, "end_time": at, "llvm_project_revision": str(revision + 1)},
        "tests": [
            {"name": case, "execution_time": history.samples(revision, n)} for n, case in enumerate(history.cases)
        ],
    }
    answer = server.client.post(f"api/{SUITE}/runs", content=json.dumps(report), headers={"AuthToken": TOKEN})
    assert answer.status_code == 301, answer.text
    return int(answer.json()["run_id"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--revisions", type=int, default=300)
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=20, help="of a round")
    parser.add_argument("--lnt", type=Path, help="a Python with LNT; without it the table has no LNT")
    given = parser.parse_args()
    history = History(given.revisions, given.series)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["KERNELWATCH_STATE"] = str(folder)
        settings.cache_clear()
        migrate.upgrade(settings().database)
        target = world.target(RECIPE)
        with transaction() as session:
            run = fill(session, target.id, history)
        with as_actor(local("study")), transaction() as session:
            _, key = keys.create(session, "study", read_grants(["ingest:norms"]))
        disconnect()
        ours = stack.enter_context(kernelwatch())
        theirs = stack.enter_context(lnt(given.lnt, folder / "lnt")) if given.lnt and given.lnt.exists() else None
        lnt_run = store(ours, theirs, key, history)
        test = 1
        if theirs:
            tests = theirs.client.get(f"api/{SUITE}/tests").json()["tests"]
            test = next(one["id"] for one in tests if one["name"] == history.cases[0])
        compare_reading(ours, theirs, documents(run, lnt_run, test, history), given.rounds, given.requests)
        print(f"{len(ours.client.get('regressions').json()['items'])} regressions on the page of ours", end="")
        if theirs:
            listed = theirs.client.get(f"{SUITE}/regressions/?state=-1").text.count('name="regression_checkboxes"')
            print(f", {listed} on LNT's", end="")
        print(f"; load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
