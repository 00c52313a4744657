"""The templates, their filters and the words for states."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dashboards import assets
from dashboards.drawing import Figure, micros
from dashboards.links import SERVICE, with_row_links, without_empty_columns
from dashboards.revision_strips import search_strip
from kernels.cases import Metric
from kernelwatch.documents.base import moment
from service.api.access import ReadingRoute
from service.db.models import Target
from service.domain import forges
from service.domain.attribution.causes import Kind
from service.domain.bisection.search import Aim
from service.domain.metrics import WORDS, amount, metric_of, percent, ratio_text, signed
from service.domain.states import OPEN_REGRESSIONS, CellState, FoundBy, OutboxState, Outcome
from service.domain.stats import counts
from service.domain.text import interval, lasted, short, without_credentials
from service.forge.clients import repository_page
from service.forge.sign_in import providers
from service.ledger.acting import acting
from service.reports.bisection_text import answer_in_words
from service.reports.report import counted
from service.reports.rows import Row
from service.reports.schema.base import rfc3339
from service.reports.views import BisectionView

# Each outcome has its own mark, so that they can be distinguished without colours.
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
    "drift": "◆",
    "removed": "⊖",
    "quarantined": "⊘",
    "slow-before": "△",
    "below-pinned": "◣",
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
    "holds": "✓",
    "fails": "✕",
    "undecided": "◌",
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
    FoundBy.PAIR: "the comparison with its parent",
    FoundBy.PINNED: "the pinned baseline",
    FoundBy.HISTORY: "the history of the case",
}


AIM_WORDS = {
    Aim.VERIFY: "confirm the regression",
    Aim.SEARCH: "search",
    Aim.AGAIN: "repeat",
    Aim.PROVE: "confirm the culprit",
}


MESSAGE_WORDS = {
    OutboxState.WAITING: "is waiting to be sent",
    OutboxState.SENT: "was sent",
    OutboxState.PREVIEW: "is not sent: the target has no forge",
    OutboxState.FAILED: "could not be sent",
}


_UNITS = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))


def page_router() -> APIRouter:
    """A router of pages for people: they read, and the OpenAPI leaves them out."""
    return APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)


def page(template: str, **shown: Any) -> str:
    """Fill a template."""
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


def _smallest(limit: float, metric: Metric) -> str:
    return str(counts.smallest(limit)) if metric.counts else f"{limit * 100:.3g} %"


def numbers(row: Row) -> str:
    """Format the limits of a decision: `smallest change that matters 1.4 %, q 0.0003`."""
    parts = (
        [f"smallest change that matters {_smallest(row.smallest_change, row.metric)}"]
        if row.smallest_change is not None
        else []
    )
    parts += [f"q {row.q:.2g}"] if row.q is not None else []
    return ", ".join(parts)


def href(address: str) -> Markup:
    """The attribute of a link; nothing without an address, so that the element is no link."""
    return Markup(' href="') + address + Markup('"') if address else Markup()


def sentence(text: str) -> str:
    """Format a reason as a sentence: `Within 1 % of its baseline.`"""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def flat(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Flatten a nested table into lines: `before.clock_mhz`, `1980`."""
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
            lines.append((key, "none" if value is None else str(value)))
    return lines


_QUOTED = re.compile(r"`([^`]+)`")


def commands(text: str) -> Markup:
    """Mark up text in which commands are in backquotes; a backquote without a partner stays as it is."""
    parts = [Markup("<code>{}</code>" if n % 2 else "{}").format(part) for n, part in enumerate(_QUOTED.split(text))]  # noqa: S704
    return Markup("").join(parts)


def slug(text: str) -> str:
    """Format a name as part of an id: `Cases that moved` is `cases-that-moved`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _at_forge(address: Callable[..., str]) -> Callable[..., str | None]:
    """The URL of something of a target at its forge; None where it has none."""

    def of_target(target: Target, *what: object) -> str | None:
        kind = target.forge_kind
        return address(kind, repository_page(kind, str(target.forge)), *what) if kind else None

    return of_target


commit_address = _at_forge(forges.commit_address)
_lines_address = _at_forge(forges.lines_address)


def _revision_strip(search: BisectionView) -> tuple[Figure, str] | None:
    """Draw the revisions of a bisection; None until they are known."""
    if search.progress is None:
        return None
    runs = {one.step.revision: one.run.id for one in search.steps}
    pending = (search.pending.revision.sha, search.pending.id) if search.pending else None
    return search_strip(search.progress.line, search.progress, runs, pending)


def _environment() -> Environment:
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
        "minute": lambda text: calendar(datetime.fromisoformat(text).timestamp()),
        "day": lambda seconds: calendar(seconds)[:10],
        "flat": flat,
        "href": href,
        "lasts": lasted,
        "metric": metric_of,
        "micros": micros,
        "ratio": lambda ratio, case, places=3: ratio_text(ratio, metric_of(case), places),
        "percent": lambda ratio, case: percent(ratio, metric_of(case)),
        "rfc3339": rfc3339,
        "sentence": sentence,
        "change": lambda one: percent(one.ratio, Metric(one.metric)),
        "share": lambda share: "–" if share is None else f"{share * 100:.1f} %",
        "short": short,
        "signed": signed,
        "slug": slug,
        "amount": lambda value, case: amount(value, metric_of(case)),
        "with_row_links": with_row_links,
        "without_empty_columns": without_empty_columns,
        "without_credentials": without_credentials,
    }
    environment.globals |= {
        "acting": acting,
        "revision_strip": _revision_strip,
        "dict": dict,
        "sign_in_offered": lambda: bool(providers()),
        "asset": assets.address,
        "layout": "base.html",
        "links": SERVICE,
        "commit": commit_address,
        "pull": _at_forge(forges.pull_address),
        "pull_comment": _at_forge(forges.comment_address),
        "compare": _at_forge(forges.compare_address),
        "lines": lambda target, sha, source: _lines_address(target, sha, source.file, *source.shown),
        "pull_name": forges.pull_name,
        "pull_mark": forges.pull_mark,
        "pull_noun": forges.pull_noun,
        "forge_names": forges.NAMES,
        "interval": interval,
        "message_words": MESSAGE_WORDS,
        "marks": MARKS,
        "numbers": numbers,
        "state_words": STATE_WORDS,
        "aim_words": AIM_WORDS,
        "answer_in_words": answer_in_words,
        "cause_words": CAUSE_WORDS,
        "found_words": FOUND_WORDS,
        "open_states": OPEN_REGRESSIONS,
        "Outcome": Outcome,
        "CellState": CellState,
        "Metric": Metric,
        "in_micros": (Metric.KERNEL, Metric.CALL, Metric.BLOCK),
        "metric_words": WORDS,
    }
    return environment


_templates = _environment()
