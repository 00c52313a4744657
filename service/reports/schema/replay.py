"""Decisions that another policy would have made."""

from kernelwatch.documents.regressions import (
    EqualCodeItem,
    ReplayDocument,
    ReplayedItem,
    ReplayGroupItem,
    ReplaySumItem,
)
from service.domain.verdicts.replay import Sum
from service.reports.views import Replay, ReplayedCase
from service.reports.words import of_replayed


def _sums(own: Sum) -> dict[str, int]:
    names = ("cases", "alarmed", "stay", "new", "missed", "spared", "undecided")
    return {name: getattr(own, name) for name in names} | {
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
    comparison = one.verdict.comparison
    return ReplayedItem(
        run_id=found.run_id,
        target=found.target,
        revision=found.revision,
        device=found.device,
        pull=found.pull,
        provider=one.provider,
        case=one.case,
        fate=one.fate.value,
        outcome_before=one.before.value if one.before else None,
        outcome=one.verdict.outcome.value,
        ratio=comparison.ratio if comparison else None,
        low=comparison.low if comparison else None,
        high=comparison.high if comparison else None,
        reason=of_replayed(one),
        trials_made=one.made,
        trials_used=one.used,
        trials_lacking=one.lacking,
    )


def replay_document(replay: Replay) -> ReplayDocument:
    groups = [
        ReplayGroupItem(device=device, provider=provider, metric=metric.value, **_sums(own))
        for (device, provider, metric), own in sorted(replay.sums.items())
    ]
    return ReplayDocument(
        policy_versions=replay.versions,
        runs=replay.runs,
        since=replay.first_at,
        until=replay.last_at,
        total=ReplaySumItem(**_sums(replay.whole)),
        groups=groups,
        cases=[replayed_item(one) for one in replay.cases],
        equal_code=EqualCodeItem(
            comparisons=replay.equal.comparisons,
            alarmed_before=replay.equal_before.alarmed,
            alarmed=replay.equal.alarmed,
        ),
    )
