"""Draw the pictures of README and docs again: pages, and what pull requests and channels receive.

    make pictures

Verdicts, times and causes are those of stored sessions on an H200; `acme/norms` stands for its repository.  The
annotated kernel is compiled now, without a GPU.
"""

import argparse
import gzip
import lzma
import os
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from benchmarks.pictures import render
from dashboards.change_pictures import draw
from kernels.studies import records
from service.db import migrate
from service.db.engine import clock, disconnect, reading, transaction
from service.db.models import OutboxMessage, Revision, Run, Target, Worker
from service.domain.codefacts.findings import KernelFindings, by_kernel
from service.domain.notices import EventKind, NotableEvent
from service.domain.policy import recipes
from service.domain.slash_commands import NAME
from service.domain.states import OutboxState, RunState
from service.ledger.intake import samples
from service.ledger.reading.queries import found_in
from service.ledger.studies import sessions as studies
from service.reports import answers, markdown
from service.reports.change_picture import change_picture
from service.reports.feeds import notices
from service.reports.payloads import annotations
from service.reports.report import Report
from service.settings import settings
from service.sources.checkout import Checkout
from tests.dashboards.asking import asking
from tests.fakes.repository import Repository
from tests.stories.test_facts_command import NORMS, RECIPE
from workers.compile import compare
from workers.compile.offline import Subject
from workers.machine import environments

DOCS = Path(__file__).parents[2] / "docs"
SESSION = DOCS / "measurements" / "2026-11-22-h200-commits" / "session" / "kernelwatch.db.gz"
PUBLIC = "6a2c4913"  # of the sample: Liger-Kernel's pull request 815, which 945 took back four months later
SLOWER, UNCHANGED = 16, 4  # runs of it: a pull request, and a commit of the mainline
PAGES = {  # of the dashboard
    "dashboard": "/",
    "board": "/targets/warpnorm/board",
    "trend": "/targets/warpnorm/trend",
}
STUDIES = {  # the fullest session of each
    **dict.fromkeys(("s1", "s2", "s3"), "2026-11-24-h200-studies-2"),
    "s4": "2026-11-26-h200-studies-3",
}
STUDY_PAGES = {f"study-{name}": f"/studies/{name}" for name in STUDIES}
BADGES = ("status", "sota")
FIRST = 1000  # pixels of a page of the dashboard: what a reader sees first
TOP = 1400  # of a study's page: its claims and the first figures or tables


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the pictures of README and docs again.")
    parser.add_argument("--out", type=Path, default=DOCS / "pictures", help="folder of the pictures")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    with stored_session(samples.FILE, "linkedin/Liger-Kernel"):
        public = _comment(_of_commit(PUBLIC))
    with stored_session(SESSION, "acme/norms"):
        pages = {"comment-public": public} | comments() | check() | notice()
        store_studies()
        taken = (
            *render.take(pages, folder),
            *render.take_pages(PAGES, folder, top=FIRST),
            *badges(folder),
            *render.take_pages(STUDY_PAGES, folder, top=TOP),
        )
        for file in taken:
            print(file)


@contextmanager
def stored_session(packed: Path, forge: str) -> Iterator[None]:
    """A copy of the stored database is the database of this process, and its targets are of that repository."""
    with tempfile.TemporaryDirectory() as state:
        Path(state, "kernelwatch.db").write_bytes(gzip.decompress(packed.read_bytes()))
        os.environ |= {"KERNELWATCH_STATE": state, "KERNELWATCH_PUBLIC_URL": "https://kernelwatch.example.org"}
        settings.cache_clear()
        disconnect()
        migrate.upgrade()
        with transaction() as session:
            session.execute(update(Target).values(forge=forge))
            _as_if_it_ran(session)
        yield


def _of_commit(sha: str) -> Report:
    """The report of the run that measured this commit."""
    with reading() as session:
        run = select(Run.id).join(Revision, Revision.id == Run.revision_id).where(Revision.sha.startswith(sha))
        return found_in(session, session.scalars(run).one())


def store_studies() -> None:
    """Store the sessions of the studies, as `kernelwatch study add` does."""
    for name, folder in STUDIES.items():
        text = lzma.decompress((DOCS / "measurements" / folder / "session" / f"{name}.jsonl.xz").read_bytes()).decode()
        with transaction() as session:
            studies.store(session, records.parse(text.splitlines()))


def _as_if_it_ran(session: Session) -> None:
    """The processes of the service are there, and the messages were sent: pictures show what was measured."""
    now = clock(session)
    session.execute(update(Target).values(poll_at=now + 60))
    session.execute(update(Worker).values(seen_at=now))
    session.execute(update(OutboxMessage).values(state=OutboxState.SENT, error=None))


def comments() -> dict[str, str]:
    """The comment of a slower head, of an unchanged one, and of a held one, and an answer."""
    with reading() as session:
        slower, unchanged = found_in(session, SLOWER), found_in(session, UNCHANGED)
        run = session.scalars(select(Run).where(Run.id == SLOWER)).one()
        command = f"{NAME} run"
        told = answers.of_run(run, slower.sha, slower.url, place=None, eta_s=None)
    answer = answers.comment(command, "ada", "comment 1", [told])
    return {
        "comment-slower": _comment(slower),
        "comment-unchanged": _comment(replace(unchanged, pull=slower.pull)),
        "comment-held": _comment(unmeasured(slower, RunState.HELD)),
        "comment-answer": render.comment(command, "ada", bot=False) + render.comment(answer),
    }


def _comment(report: Report) -> str:
    """The comment with the picture that the service would serve to the forge."""
    shown, picture = render.comment(markdown.comment(report)), change_picture(report)
    if picture is None:
        return shown
    svg = b64encode(draw(picture).__html__().encode()).decode()
    return shown.replace(f"{report.url}/changes.svg?v={picture.version}", f"data:image/svg+xml;base64,{svg}")


def badges(folder: Path) -> list[Path]:
    """Write the badges of the target, as the service serves them however long ago it was measured."""
    get, files = asking(), [folder / f"badge-{name}.svg" for name in BADGES]
    for name, file in zip(BADGES, files, strict=True):
        file.write_text(get(f"/badges/warpnorm/{name}.svg?stale_days=3650").text)
    return files


def unmeasured(report: Report, state: RunState) -> Report:
    """The report of the same head before it is measured."""
    return replace(report, state=state, reason=None, rows=(), summaries=(), stack={}, ceilings={}, unsupported=())


def check() -> dict[str, str]:
    """The check of a head whose kernel spills, before it is measured."""
    text, found = spilling()
    with reading() as session:
        report = unmeasured(found_in(session, SLOWER), RunState.QUEUED)
    of_check = markdown.check(report)
    remarks = annotations(report, found)
    return {"check-annotations": render.check(of_check.name, of_check.title) + render.annotated(text, remarks)}


def notice() -> dict[str, str]:
    """The message to a channel, if the slower head were a commit of the mainline, and what it says of a failed run."""
    with reading() as session:
        slower = found_in(session, SLOWER)
    at = slower.finished_at or 0.0
    opened = [
        NotableEvent(
            EventKind.REGRESSION_OPENED,
            at,
            slower.target,
            slower.device,
            row.provider,
            row.case,
            row.ratio,
            slower.revision,
            text=row.cause.words if row.cause else None,
            regression_id=number,
            incident_id=1,
            run_id=slower.run_id,
        )
        for number, row in enumerate(slower.regressions, 1)
    ]
    failed = NotableEvent(
        EventKind.RUN_FAILED,
        slower.finished_at or 0.0,
        slower.target,
        slower.device,
        run_id=17,
        text="the build failed",
    )
    found = notices.document(
        [*opened, failed], subscription_id=1, address=settings().address, at=slower.finished_at or 0.0
    )
    return {"notice": render.message(found.data.title, notices.body(found))}


def spilling() -> tuple[str, tuple[KernelFindings, ...]]:
    """A kernel that holds too much of a row, compiled for an H200: its file, and what changed."""
    before, after = (NORMS.strip().replace("WARPS(block)", rule) for rule in ("max(4, block // 1024)", "1"))
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(Path(folder, "norms"))
        base = repository.commit("enough warps", {"norms.py": before})
        head = repository.commit("four warps", {"norms.py": after})
        environments.adopt_stack("host", Path(sys.executable), [])
        subject = Subject("norms", "git", Checkout(repository.folder), recipes.parse(RECIPE), {}, sandboxed=False)
        report = compare.facts(subject, compare.Wish(f"{base}..{head}", archs=("sm_90",)))
    return after, by_kernel(report)


if __name__ == "__main__":
    main()
