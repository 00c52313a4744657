"""Decisions that another policy would have made."""

from typing import Any

from kernelwatch.documents.regressions import (
    EqualCodeItem,
    ReplayDocument,
    ReplayedItem,
    ReplayGroupItem,
    ReplaySumItem,
)
from service.domain.verdicts.replay import Sum
from service.reports.schema.base import document_of
from service.reports.views import Replay, ReplayedCase
from service.reports.words import of_replayed


def _sums(own: Sum) -> dict[str, Any]:
    return vars(own) | {
        "trials_made": own.made,
        "trials_used": own.used,
        "trials_lacking": own.lacking,
        "behind_sota_before": own.behind_before,
        "behind_sota": own.behind,
        "slower_than_pinned_before": own.leaks_before,
        "slower_than_pinned": own.leaks,
    }


def replayed_item(found: ReplayedCase) -> ReplayedItem:
    one = found.replayed
    ratio = {name: getattr(one.verdict.comparison, name, None) for name in ("ratio", "low", "high")}
    named = {
        "outcome_before": one.before.value if one.before else None,
        "outcome": one.verdict.outcome.value,
        "reason": of_replayed(one),
        "trials_made": one.made,
        "trials_used": one.used,
        "trials_lacking": one.lacking,
    }
    return document_of(ReplayedItem, vars(found) | vars(one) | ratio | named)


def replay_document(replay: Replay) -> ReplayDocument:
    groups = [
        document_of(ReplayGroupItem, _sums(own) | {"device": device, "provider": provider, "metric": metric.value})
        for (device, provider, metric), own in sorted(replay.sums.items())
    ]
    return ReplayDocument(
        policy_versions=replay.versions,
        runs=replay.runs,
        since=replay.first_at,
        until=replay.last_at,
        total=document_of(ReplaySumItem, _sums(replay.whole)),
        groups=groups,
        cases=[replayed_item(one) for one in replay.cases],
        equal_code=EqualCodeItem(
            comparisons=replay.equal.comparisons,
            alarmed_before=replay.equal_before.alarmed,
            alarmed=replay.equal.alarmed,
        ),
    )
