"""A bisection as a document: JSON for programs, Markdown for people."""

from typing import Any

from service.domain.text import short
from service.reports.bisection_text import answer_in_words
from service.reports.markdown import escaped, grid
from service.reports.schema import rfc3339
from service.reports.views import Search, Stepped

COLUMNS = ("run", "revision", "against", "aim", "answer")


def document(search: Search) -> dict[str, Any]:
    """All of it; times are RFC 3339, ratios those of the revision over what it was measured against."""
    row = search.row
    return {
        "id": row.id,
        "target": search.target,
        "device": row.device,
        "suite": row.suite,
        "cases": row.cases,
        "good": row.good,
        "bad": row.bad,
        "revisions": len(row.line),
        "state": row.state.value,
        "culprit": row.culprit,
        "suspects": list(search.progress.suspects) if search.progress else [],
        "words": search.words,
        "asked_by": row.asked_by,
        "incident": row.incident_id,
        "max_runs": row.max_runs,
        "created_at": rfc3339(row.created_at),
        "finished_at": rfc3339(row.finished_at),
        "steps": [_step(one) for one in search.steps],
        "pending_run": search.pending.id if search.pending else None,
    }


def _step(one: Stepped) -> dict[str, Any]:
    return {
        "run": one.run.id,
        "revision": one.step.revision,
        "against": one.step.against,
        "aim": one.answered.question.aim.value if one.answered else None,
        "answer": one.answered.answer.value if one.answered else None,
        "words": _words(one),
        "verdicts": [
            {
                "provider": provider,
                "case": case,
                "outcome": sight.outcome.value,
                "ratio": sight.ratio,
                "interval": [sight.low, sight.high] if sight.low is not None else None,
                "trials": sight.trials,
                "cause": sight.why,
            }
            for (provider, case), sight in sorted(one.step.sights.items())
        ],
    }


def page(search: Search) -> str:
    """A heading, what was found, and a table of the steps."""
    row = search.row
    title = f"### Bisection {row.id} of {escaped(search.target)} on {escaped(row.device)}: {row.state.value}"
    return "\n".join([title, "", escaped(search.words), "", *grid(COLUMNS, [step_cells(one) for one in search.steps])])


def step_cells(one: Stepped) -> tuple[str, ...]:
    """A step as people read it, in the order of `COLUMNS`."""
    aim = one.answered.question.aim.value if one.answered else ""
    return str(one.run.id), one.run.revision.short, short(one.step.against), aim, _words(one)


def _words(one: Stepped) -> str:
    return answer_in_words(one.answered) if one.answered else one.step.words
