"""Addresses of the large database that people and programs read, with those of its distant past."""

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from kernels.cases import Role
from service.db.engine import reading
from service.db.models import WATCHED, Measurement, RegressionRow, Revision, Run, Target
from service.db.paging import cursor_of
from service.domain.states import RegressionState, RunState
from service.domain.weekly.weeks import Week
from tests.big.seeder import Places

_API = "/api/v1"
_SMALL = "liger"  # a target with few runs: its lists must not read those of the others


def every(at: Places) -> dict[str, str]:
    """The addresses by name."""
    with reading() as session:
        return pages(at) | _of_runs(session, at) | _of_revisions(session, at) | _of_all(session, at) | _of_programs(at)


def pages(at: Places) -> dict[str, str]:
    """The pages that `make bench-pages` measures."""
    series = urlencode({"device": "h200", "provider": "norms", "case": at.case})
    base, head = at.shas
    compare = urlencode({"base": base, "head": head, "device": "h200"})
    return {
        "health": "/",
        "search": "/search?q=rmsnorm",
        "run, newest": f"/runs/{at.newest}",
        "run, worst": f"/runs/{at.worst}",
        "run, pull request": f"/runs/{at.pull}",
        "pull request": f"/targets/norms/pulls/{at.pull_number}",
        "run, failed": f"/runs/{at.failed}",
        "run, running": f"/runs/{at.running}",
        "run, hostile": f"/runs/{at.hostile}",
        "board": "/targets/norms/board?device=h200",
        "board, all": "/board",
        "compare": f"/targets/norms/compare?{compare}",
        "trend": f"/targets/norms/trend?{series}",
        "facts": f"/targets/norms/facts?{series}",
        "measured elsewhere": "/targets/norms/imported",
        "target": "/targets/norms",
        "target, older": "/targets/norms?before=100",
        "recipe": "/targets/norms/recipe",
        "add a target": "/targets/new",
        "target, hostile": f"/targets/{quote(at.hostile_target)}",
        "weekly": "/weekly",
        "studies": "/studies",
        "study": "/studies/s3",
        "regressions": "/regressions",
        "regressions, fixed": "/regressions?state=fixed",
        "bisections": "/bisections",
        "regression": f"/regressions/{at.regression}",
        "incident": f"/incidents/{at.incident}",
        "form of a regression": f"/regressions/{at.regression}/acknowledge",
        "bisection": f"/bisections/{at.bisection}",
        "workers": "/workers",
        "policy": "/targets/norms/policy?device=h200",
        "calibration": "/calibration",
        "statistics": "/statistics",
        "kind of error": "/problems/not-found",
        "documentation": "/docs/glossary",
    }


def _of_runs(session: Session, at: Places) -> dict[str, str]:
    case = quote(at.case)
    parts = ("cases.csv", "cases.json", "comment", "telemetry", "unsupported", f"cases/{case}")
    found = {f"run, {part.partition('/')[0]}": f"/runs/{at.newest}/{part}" for part in parts}
    old = _oldest(session, at).id
    return found | {"run, old": f"/runs/{old}", "run, old, case": f"/runs/{old}/cases/{case}"}


def _oldest(session: Session, at: Places) -> Run:
    """A run among the oldest with the case."""
    of_target = (Target.name == at.target, Run.device == "h200", Run.state == RunState.DONE, WATCHED)
    measured = (
        select(Measurement.id)
        .where(Measurement.run_id == Run.id, Measurement.role == Role.HEAD.value)
        .limit(1)
        .exists()
    )
    query = select(Run).join(Target, Target.id == Run.target_id).where(*of_target, measured)
    return session.scalars(query.order_by(Run.id).offset(2).limit(1)).one()


def _of_revisions(session: Session, at: Places) -> dict[str, str]:
    """Pages of a target at revisions of its mainline, newest and oldest."""
    target = session.scalars(select(Target.id).where(Target.name == at.target)).one()
    mainline = (Revision.target_id == target, Revision.ordinal.is_not(None))
    last = session.scalars(select(func.max(Revision.ordinal)).where(*mainline)).one() or 0
    run = _oldest(session, at)
    old = session.get_one(Revision, run.revision_id)
    series = {"device": "h200", "provider": "norms", "case": at.case}
    newest = at.shas[1]
    here = f"/targets/{at.target}"

    def trend(part: str = "", **more: str) -> str:
        return f"{here}/trend{part}?{urlencode(series | more)}"

    def compare(base: str, head: str, form: str = "") -> str:
        return f"{here}/compare{form}?{urlencode({'base': base, 'head': head, 'device': 'h200'})}"

    dates = {
        "since": str(Week.at(old.committed_at).monday),
        "until": str(Week.at(old.committed_at + 90 * 86400).sunday),
    }
    return {
        "target, older": f"{here}?before={last // 2}",
        "target, oldest": f"{here}?before=30",
        "target, small": f"/targets/{_SMALL}",
        "board, old": f"{here}/board?device=h200&revision={old.sha}",
        "board, prefix of a sha": f"{here}/board?device=h200&revision={old.sha[:10]}",
        "board, no device": f"{here}/board",
        "compare, far apart": compare(old.sha, newest),
        "compare, mainline": compare(newest, "mainline"),
        "compare, old": compare(old.parent or old.sha, old.sha),
        "compare, CSV": compare(old.sha, newest, ".csv"),
        "trend, chosen": f"{here}/trend",
        "trend, a year": trend(days="365"),
        "trend, all": trend(days="all"),
        "trend, old dates": trend(**dates),
        "trend, two points": trend(a=at.shas[0], b=newest),
        "trend, old point": trend(a=old.sha, b=newest),
        "trend, ceiling": trend(unit="ceiling"),
        "trend, search": trend(q="layernorm 1024"),
        "trend, revisions": trend("/revisions"),
        "trend, revisions, older": trend("/revisions", before=str(last // 2)),
        "trend, revisions, oldest": trend("/revisions", before="40"),
        "trend, neighbours": trend("/neighbours"),
        "pull request": f"{here}/pulls/{_a_pull(session, target)}",
        "weekly, old": f"/weekly/{Week.at(old.committed_at + 20 * 86400)}",
        "weekly, target": f"/weekly?target={at.target}",
        "API, trend": f"{_API}/targets/{at.target}/series?{urlencode(series)}",
        "API, revision, old": f"{_API}/targets/{at.target}/revisions/{old.sha[:12]}",
        "API, compare": f"{_API}{compare(old.sha, newest)}",
        "API, facts": f"{_API}{here}/facts/diff?base={old.sha}&head={newest}",
        "API, runs of a revision": f"{_API}/runs?revision={old.sha[:8]}",
    }


def _a_pull(session: Session, target: int) -> int:
    done = (Run.target_id == target, Run.pull.is_not(None), Run.state == RunState.DONE)
    return session.scalars(select(Run.pull).where(*done).order_by(Run.id).limit(1)).one() or 0


def _of_all(session: Session, at: Places) -> dict[str, str]:
    """Lists of regressions and bisections, with late cursors; feeds, badges and what programs watch."""
    oldest = session.scalars(select(func.min(RegressionRow.id))).one()
    late = cursor_of([oldest + 3])
    states = {f"regressions, {state.value}": f"/regressions?state={state.value}" for state in RegressionState}
    return states | {
        "regressions, all open": "/regressions?state=all-open",
        "regressions, late": f"/regressions?cursor={late}",
        "regressions, fixed, late": f"/regressions?state=fixed&cursor={late}",
        "regression, old": f"/regressions/{oldest}",
        "bisections": "/bisections",
        "feed, all": "/feeds/all.atom",
        "feed, target": f"/feeds/{at.target}.atom",
        "feed, small": f"/feeds/{_SMALL}.atom",
        "badge, status": f"/badges/{at.target}/status.svg",
        "badge, SOTA": f"/badges/{at.target}/sota.svg?device=h200",
        "badge, small": f"/badges/{_SMALL}/status.svg",
        "metrics": "/metrics",
        "readyz": "/readyz",
    }


def _of_programs(at: Places) -> Mapping[str, str]:
    """Lists of the API."""
    of, small = f"{_API}/targets/{at.target}", f"{_API}/targets/{_SMALL}"
    paths = {
        "run": f"{_API}/runs/{at.newest}",
        "targets": f"{_API}/targets",
        "revisions": f"{of}/revisions",
        "revisions, small": f"{small}/revisions",
        "runs": f"{_API}/runs",
        "runs, failed": f"{_API}/runs?state=failed",
        "runs, queued": f"{_API}/runs?state=queued",
        "runs, target": f"{of}/runs",
        "runs, small": f"{small}/runs",
        "runs, device": f"{_API}/runs?device=b200",
        "runs, pull": f"{of}/runs?pull=7",
        "runs, purpose": f"{of}/runs?purpose=calibration",
        "regressions": f"{_API}/regressions",
        "regressions, open": f"{_API}/regressions?state=open",
        "regressions, small": f"{small}/regressions",
        "incidents": f"{_API}/incidents",
        "incidents, closed": f"{_API}/incidents?closed=true",
        "incidents, small": f"{small}/incidents",
        "bisections": f"{_API}/bisections",
        "bisections, running": f"{_API}/bisections?running=true",
        "bisections, small": f"{_API}/bisections?target={_SMALL}",
        "change points": f"{of}/change-points",
        "gaps": f"{of}/gaps",
        "cases": f"{of}/cases",
        "series keys": f"{of}/series/keys",
        "cases, small": f"{small}/cases",
        "calibration": f"{_API}/calibration",
        "quarantines": f"{_API}/quarantines",
        "measurements": f"{_API}/runs/{at.newest}/measurements",
        "verdicts": f"{_API}/runs/{at.newest}/verdicts",
        "workers": f"{_API}/workers",
        "queue": f"{_API}/queue",
        "weekly": f"{_API}/weekly",
        "audit": f"{_API}/audit",
        "facts": f"{of}/facts",
    }
    return {f"API, {name}": path for name, path in paths.items()}
