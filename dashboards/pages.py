"""The pages: each endpoint asks the ledger and fills a template.  The address holds the state."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from sqlalchemy import select
from sqlalchemy.orm import Session

from dashboards import assets, comments, facts, figures, telemetry
from kernels.cases import Metric
from service.api.common import Key, Reading, ReadingRoute, tagged
from service.db.engine import clock
from service.db.models import Incident, OutboxMessage, Run, Target
from service.domain.attribution.causes import Kind
from service.domain.bisection.search import Aim
from service.domain.metrics import WORDS, amount, metric_of, percent
from service.domain.regressions.lifecycle import Action, possible
from service.domain.states import (
    OPEN_REGRESSIONS,
    OPEN_STATES,
    CellState,
    FoundBy,
    OutboxState,
    RegressionState,
    RunState,
)
from service.domain.text import interval, listed, short, without_credentials
from service.domain.verdicts.judge import Outcome
from service.ledger import queries
from service.ledger.bisections import bisections
from service.ledger.calibration import quarantines, rates
from service.ledger.changepoints import change_points
from service.ledger.intake.targets import all_targets, target_named
from service.ledger.queries import Glance
from service.ledger.regressions import listing
from service.ledger.runs import build_logs
from service.reports import markdown
from service.reports.bisection_text import answer_in_words
from service.reports.report import counted, readable
from service.reports.rows import Row
from service.reports.schema.base import moment, rfc3339
from service.reports.views import Life, Point, Pointed, Regressed

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)

# Each outcome has its own mark, so that colours are never needed to tell them apart.
MARKS = {
    "regression": "▲",
    "improvement": "▼",
    "steady": "●",
    "inconclusive": "◌",
    "invalid": "✕",
    "failed": "✕",
    "new": "◇",
    "leased": "▸",
    "queued": "…",
    "held": "‖",
    "behind": "■",
    "removed": "⊖",
    "quarantined": "⊘",
    "slow-before": "△",
    "leak": "◣",
    "open": "▲",
    "acknowledged": "◐",
    "bisecting": "◎",
    "blamed": "◉",
    "fixed": "▼",
    "dismissed": "–",
    "verifying": "◎",
    "searching": "◎",
    "proving": "◎",
    "checking": "◎",
    "confirmed": "◉",
    "closed": "–",
    "fair": "●",
    "over nominal": "▲",
    "found": "◉",
    "range": "◌",
    "not reproduced": "●",
    "stopped": "–",
}
STATE_WORDS = {"leased": "running", "held": "needs approval"}
CAUSE_WORDS = {
    Kind.CODE: "the code",
    Kind.BASELINE: "the baseline moved",
    Kind.STACK: "the stack changed",
    Kind.MACHINE: "the machine",
    Kind.NOISE: "noise",
    Kind.UNKNOWN: "not known",
}
FOUND_WORDS = {
    FoundBy.PAIR: "the commit beside its parent",
    FoundBy.PINNED: "the slow baseline",
    FoundBy.HISTORY: "the history of the case",
}
AIM_WORDS = {
    Aim.VERIFY: "is it slower at all?",
    Aim.SEARCH: "search",
    Aim.AGAIN: "once more",
    Aim.PROVE: "proof",
}
EFFECT_WORDS = {
    OutboxState.WAITING: "waits to be sent",
    OutboxState.SENT: "was sent",
    OutboxState.PREVIEW: "is not sent: the target has no forge",
    OutboxState.FAILED: "could not be sent",
}
MAX_GAPS = 500  # on one page
MAX_CASES = 30  # of a calibration
CALIBRATED_DAYS = 90
_UNITS = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))


@router.get("/")
def overview(session: Reading) -> str:
    """Every target with its latest revisions, what is open, and who works."""
    cards = [queries.card(session, target) for target in all_targets(session)]
    found = listing.listed(session, states=OPEN_REGRESSIONS, limit=20).items
    standing = sum((Counter(card.standing) for card in cards), Counter[RegressionState]())
    return _page(
        "overview.html",
        now=clock(session),
        cards=cards,
        standing=standing,
        groups=_by_incident(session, found),
        listed=len(found),
        gaps=queries.gaps(session, limit=20),
        **_machinery(session),
    )


@router.get("/targets/{name}")
def target(
    name: str,
    session: Reading,
    before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    series: Annotated[str, Query(max_length=300)] = "",
) -> str:
    """One target: its mainline, one case over time, its pull requests and its recipe."""
    found = target_named(session, name)
    choices = [_choice(*triple) for triple in queries.measured_series(session, found)]
    chosen = series if series in choices else _first_choice(session, found, choices)
    points = _series(session, found, chosen) if chosen else []
    steps = _steps(session, found, chosen) if chosen else []
    card = queries.card(session, found, lines=25, before=before)
    standing = listing.listed(session, found, OPEN_REGRESSIONS).items
    oldest = card.lines[-1].revision.ordinal if len(card.lines) == 25 else None
    return _page(
        "target.html",
        now=clock(session),
        card=card,
        target=found,
        older=oldest if oldest else None,
        aside=queries.aside(session, found),
        groups=_by_incident(session, standing),
        listed=len(standing),
        gaps=queries.gaps(session, found),
        choices=_by_metric(choices),
        chosen=chosen,
        stack_changes=[point for point in points if point.stack_changes],
        steps=steps,
        figure=f"/targets/{quote(name)}/figure.json?{urlencode({'series': chosen})}" if chosen else None,
    )


@router.get("/targets/{name}/figure.json")
def target_figure(
    request: Request, name: str, session: Reading, series: Annotated[str, Query(max_length=300)]
) -> Response:
    """The figure of one case over the mainline."""
    found = target_named(session, name)
    device, provider, case = _parts(series)
    recipe = readable(found.recipe.text) if found.recipe else None
    sota = recipe.sota_on(device) if recipe else "SOTA"
    points, steps = _series(session, found, series), _steps(session, found, series)
    figure = figures.series(points, case, provider, sota, steps)
    return tagged(request, json.dumps({"series": figure}), "application/json")


@router.get("/runs/{run_id}")
def run(run_id: Key, session: Reading) -> str:
    """One run: what was found, the figures, the facts that explain it, and what a pull request is told."""
    whole = queries.whole_run(session, run_id)
    found = queries.report_on(session, whole)
    comment = markdown.comment(*(queries.pull_reports(session, whole) if whole.pull is not None else (found,)))
    effects = _effects(session, whole)
    return _page(
        "run.html",
        now=clock(session),
        run=whole,
        report=found,
        attempts=queries.attempts(session, run_id),
        build_log=build_logs.characters(session, run_id),
        ahead=queries.ahead_of(session, whole) if whole.state is RunState.QUEUED else None,
        comment=comment,
        comment_html=comments.shown(comment),
        effects=effects,
        told=_told(session, whole, effects),
        without_sota=markdown.without_sota(found),
        live=whole.state in OPEN_STATES,
        opened=whole.regressions,
        figures=figures.against_parent(found) is not None or figures.against_sota(found) is not None,
        others=_others(session, whole),
        stack_change=queries.stack_change(session, whole),
        limits=markdown.limits(found),
        ceilings=markdown.ceilings(found),
        drawable=figures.most_rows(found),
        most_drawn=figures.MAX_ROWS,
        sides=facts.sides,
        board=telemetry.board(found.telemetry),
        trials=telemetry.trials(found.telemetry),
        other_telemetry=telemetry.rest(found.telemetry),
    )


def _effects(session: Session, whole: Run) -> Sequence[OutboxMessage]:
    """What the forge is told because of this run, and the comment of its pull request, whichever run told it last."""
    of_run = OutboxMessage.run_id == whole.id
    of_pull = OutboxMessage.key == f"comment:{whole.target_id}:{whole.pull}"
    return session.scalars(select(OutboxMessage).where(of_run | of_pull).order_by(OutboxMessage.id)).all()


def _told(session: Session, whole: Run, effects: Sequence[OutboxMessage]) -> str:
    """Whether the comment on the page is what the pull request shows: as a verb, for the heading."""
    said = next((one for one in effects if one.kind == "comment"), None)
    # A newer head of the pull request takes the comment over.
    if said is None or session.get_one(Run, said.run_id).revision_id != whole.revision_id:
        return "would have been"
    return {OutboxState.SENT: "is", OutboxState.WAITING: "will be"}.get(said.state, "would be")


def _others(session: Session, whole: Run) -> list[Glance]:
    """The same revision on other devices, and other runs of it here."""
    return [
        one for one in queries.glances(session, queries.runs_of(session, whole.revision_id)) if one.run.id != whole.id
    ]


@router.get("/runs/{run_id}/figure.json")
def run_figure(request: Request, run_id: Key, session: Reading) -> Response:
    """The figures of a run: against its parent, and against SOTA."""
    found = queries.found_in(session, run_id)
    both = {"parent": figures.against_parent(found), "sota": figures.against_sota(found)}
    return tagged(request, json.dumps(both), "application/json")


class Shown(StrEnum):
    """Which regressions a page lists."""

    OPEN_REGRESSIONS = "standing"
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    BISECTING = "bisecting"
    BLAMED = "blamed"
    FIXED = "fixed"
    DISMISSED = "dismissed"


@router.get("/regressions")
def regressions(
    session: Reading, state: Shown | None = None, cursor: Annotated[str | None, Query(max_length=200)] = None
) -> str:
    """Confirmed regressions of all mainlines, who searches for culprits, and apart from them what is behind SOTA."""
    states = OPEN_REGRESSIONS if state is Shown.OPEN_REGRESSIONS else (RegressionState(state.value),) if state else ()
    page = listing.listed(session, states=states, cursor=cursor)
    query = {"cursor": page.next} | ({"state": state.value} if state else {})
    return _page(
        "regressions.html",
        now=clock(session),
        groups=_by_incident(session, page.items),
        state=state.value if state else "",
        states=list(RegressionState),
        next=f"/regressions?{urlencode(query)}" if page.next else None,
        searches=bisections.listed(session, most=20),
        gaps=queries.gaps(session, limit=MAX_GAPS),
    )


@router.get("/regressions/{regression_id}")
def regression(regression_id: Key, session: Reading) -> str:
    """One regression: what, since when, how that is known, who did it, what was done about it, and how to act."""
    life = listing.one(session, regression_id)
    row, run = life.regressed.row, life.regressed.run
    found = queries.found_in(session, run.id)
    series = urlencode({"series": _choice(row.device, row.provider, row.case)})
    address = f"/targets/{quote(life.regressed.target)}"
    return _page(
        "regression.html",
        now=clock(session),
        life=life,
        evidence=next((one for one in found.rows if (one.provider, one.case) == (row.provider, row.case)), None),
        searches=[bisections.one(session, search.id) for search in life.bisections],
        figure=f"{address}/figure.json?{series}",
        series=f"{address}?{series}#series",
        commands=_commands(life),
    )


def _commands(life: Life) -> list[tuple[str, str]]:
    """What a person may do in this state, as commands."""
    row = life.regressed.row
    does = f"kernelwatch regression {{}} {row.id}"
    every = (
        ("accept it", Action.ACKNOWLEDGE, f"{does.format('acknowledge')} --reason WHY --until 2026-12-31"),
        ("it is none", Action.DISMISS, f"{does.format('dismiss')} --reason WHY"),
        ("it is back", Action.REOPEN, does.format("reopen")),
        ("give it to somebody", Action.ASSIGN, f"{does.format('assign')} WHO"),
        ("say by when", Action.DUE, f"{does.format('due')} 2026-12-31"),
        ("add a note", Action.NOTE, f"{does.format('note')} TEXT"),
    )
    able = [(what, command) for what, action, command in every if possible(row.state, action)]
    if row.good and row.culprit is None and row.state in OPEN_REGRESSIONS:
        ends = f"{short(row.good)}..{life.regressed.run.revision.short}"
        search = f"kernelwatch bisect {life.regressed.target} {ends} --device {row.device} --case {row.case}"
        able.append(("find who did it", search))
    return able


def _by_incident(session: Session, found: Sequence[Regressed]) -> list[tuple[Incident | None, list[Regressed]]]:
    """Those of one event together, in the order of their newest."""
    known = queries.events_of(session, [one.row for one in found])
    groups: dict[int, list[Regressed]] = {}
    for one in found:
        groups.setdefault(one.row.incident_id or -one.row.id, []).append(one)
    return [(known.get(incident_id), ones) for incident_id, ones in groups.items()]


@router.get("/bisections/{bisection_id}")
def bisection(bisection_id: Key, session: Reading) -> str:
    """One search for a culprit: how far it is or what it found, step by step."""
    return _page("bisection.html", now=clock(session), search=bisections.one(session, bisection_id))


@router.get("/workers")
def workers(session: Reading) -> str:
    """Who measures, and what waits for them."""
    return _page("workers.html", now=clock(session), queue=queries.queue(session), **_machinery(session))


@router.get("/calibration")
def calibration(session: Reading) -> str:
    """How often equal code differs from itself on each worker, and the cases that therefore alarm nobody."""
    now = clock(session)
    found = rates.rates(session, since=now - CALIBRATED_DAYS * 86_400.0)
    every = quarantines.listed(session, released=True)
    return _page(
        "calibration.html",
        now=now,
        days=CALIBRATED_DAYS,
        metrics=rates.by_metric(found),
        worst=[one for one in found if one.rate.differed][:MAX_CASES],
        quarantined=[one for one in every if one[0].released_at is None],
        released=[one for one in every if one[0].released_at is not None][:MAX_CASES],
    )


def _machinery(session: Session) -> dict[str, Any]:
    return {"workers": queries.workers(session), "waiting": queries.waiting(session), "gone_s": queries.WORKER_GONE_S}


def error_page(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """A mistake, for people."""
    return HTMLResponse(_page("error.html", status=status, detail=detail), status, headers=dict(headers or {}))


def _choice(device: str, provider: str, case: str) -> str:
    return f"{device} {provider} {case}"


def _parts(choice: str) -> tuple[str, str, str]:
    device, provider, case = (*choice.split(" "), "", "")[:3]
    return device, provider, case


def _series(session: Session, target: Target, choice: str) -> list[Point]:
    device, provider, case = _parts(choice)
    return queries.series(session, target, case, provider, device)


def _steps(session: Session, target: Target, choice: str) -> list[Pointed]:
    device, provider, case = _parts(choice)
    return change_points.points_of(session, target, case, provider, device)


def _by_metric(choices: Sequence[str]) -> list[tuple[Metric, list[str]]]:
    """The choices in groups, those of the kernel's metric first."""
    groups = [(metric, [one for one in choices if metric_of(one) is metric]) for metric in Metric]
    return [(metric, ones) for metric, ones in groups if ones]


def _first_choice(session: Session, target: Target, choices: list[str]) -> str | None:
    """The case to show unasked: one that regressed, else one that is behind, else any."""
    rows = [found.row for found in listing.listed(session, target, OPEN_REGRESSIONS, limit=1).items]
    rows += [found.gap for found in queries.gaps(session, target, limit=1)]  # type: ignore[misc]
    wanted = [_choice(row.device, row.provider, row.case) for row in rows]
    return next((one for one in wanted if one in choices), choices[0] if choices else None)


def _page(template: str, **shown: Any) -> str:
    return _templates.get_template(template).render(**shown)


def ago(seconds: float) -> str:
    """`just now`, `5 min`, `3 h`, `2 d`."""
    for unit, length in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def calendar(seconds: float) -> str:
    """`2026-11-21 03:02 UTC`."""
    return moment(seconds).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def numbers(row: Row) -> str:
    """What the decision rests on beside the trials: `smallest change that matters 1.4 %, q 0.0003`."""
    said = [f"smallest change that matters {row.smallest * 100:.3g} %"] if row.smallest is not None else []
    said += [f"q {row.q:.2g}"] if row.q is not None else []
    return ", ".join(said)


def stand(standing: Mapping[RegressionState, int]) -> str:
    """`2 open regressions`, `4 standing regressions, of them 1 acknowledged and 3 blamed`."""
    each = [f"{standing[state]} {state}" for state in OPEN_REGRESSIONS if standing.get(state)]
    total = sum(standing.values())
    noun = f"regression{'s' * (total != 1)}"
    return f"{each[0]} {noun}" if len(each) == 1 else f"{total} standing {noun}, of them {listed(each)}"


def sentence(text: str) -> str:
    """A reason as a sentence: `Within 1 % of its baseline.`"""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def flat(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A nested table as lines for people: `before.clock_mhz`, `1980`."""
    lines: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += [(f"{key}.{inner}", text) for inner, text in flat(value)]
        elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
            lines += flat({f"{key} {n}": one for n, one in enumerate(value, 1)})
        elif isinstance(value, list):
            lines.append((key, ", ".join(str(one) for one in value) or "none"))
        elif isinstance(value, float):
            lines.append(
                (key, f"{value:,.4g}" if abs(value) < 1e6 else calendar(value) if value > 1e9 else f"{value:,.0f}")
            )
        else:
            lines.append((key, str(value)))
    return lines


def commands(text: str) -> Markup:
    """Text in which commands are written in backticks, with each of them as code."""
    parts = [Markup("<code>{}</code>" if n % 2 else "{}").format(part) for n, part in enumerate(text.split("`"))]  # noqa: S704
    return Markup("").join(parts)


def _commit_address(target: Target, sha: str) -> str | None:
    """Where the forge shows a commit."""
    return f"https://github.com/{target.forge}/commit/{sha}" if target.forge else None


def _templates_() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ago": ago,
        "calendar": calendar,
        "commands": commands,
        "counted": counted,
        "day": lambda seconds: calendar(seconds)[:10],
        "flat": flat,
        "metric": metric_of,
        "percent": lambda ratio, case: percent(ratio, metric_of(case)),
        "rfc3339": rfc3339,
        "sentence": sentence,
        "change": lambda one: percent(one.ratio, Metric(one.metric)),
        "share": lambda share: "–" if share is None else f"{share * 100:.1f} %",
        "short": short,
        "stand": stand,
        "amount": lambda value, case: amount(value, metric_of(case)),
        "without_credentials": without_credentials,
    }
    environment.globals |= {
        "asset": assets.address,
        "commit": _commit_address,
        "interval": interval,
        "effect_words": EFFECT_WORDS,
        "marks": MARKS,
        "numbers": numbers,
        "state_words": STATE_WORDS,
        "aim_words": AIM_WORDS,
        "answer_in_words": answer_in_words,
        "cause_words": CAUSE_WORDS,
        "found_words": FOUND_WORDS,
        "standing_states": OPEN_REGRESSIONS,
        "Outcome": Outcome,
        "CellState": CellState,
        "Metric": Metric,
        "metric_words": WORDS,
    }
    return environment


_templates = _templates_()
