"""What is known of the code of revisions, and two revisions side by side on one device."""

from collections import Counter

from kernelwatch.documents.runs import (
    CompareDocument,
    CompareItem,
    CompareSideItem,
    FactsCheckItem,
    FactsDiffDocument,
    FactsPairItem,
    FactsSideItem,
    FindingsItem,
    KernelTextItem,
)
from service.db.models import FactsCheck, KernelTextRow
from service.domain.codefacts.findings import Findings
from service.domain.metrics import metric_of, percent
from service.reports.rows import ComparedCase, ComparedSide, FactsDiff, FactsPair, FactsSide, RevisionsCompared
from service.reports.schema.base import columns, document_of, without_tables


def kernel_text_item(row: KernelTextRow) -> KernelTextItem:
    return KernelTextItem(
        contender=row.contender,
        case=row.case,
        arch=row.arch or None,
        number=row.number,
        kernel=row.kernel or None,
        kind=row.kind,
        sha256=row.text.sha256,
        bytes=row.text.bytes,
    )


def facts_check_item(row: FactsCheck) -> FactsCheckItem:
    findings = FindingsItem.model_validate(Findings.from_json(row.findings)) if row.findings else None
    return document_of(
        FactsCheckItem, columns(row) | {"revision": row.revision.sha, "base": row.base or None, "findings": findings}
    )


def facts_diff_document(
    found: FactsDiff, target: str, *, tables: bool = False, changed_only: bool = False
) -> FactsDiffDocument:
    return FactsDiffDocument(
        target=target,
        base=found.base.sha,
        head=found.head.sha,
        check=facts_check_item(found.check) if found.check else None,
        counts=found.counts,
        stack_changes=found.stack_changes,
        cases=[_pair(one, tables) for one in found.pairs if one.changed or not changed_only],
    )


def _pair(one: FactsPair, tables: bool) -> FactsPairItem:
    def side(facts: FactsSide | None) -> FactsSideItem | None:
        if facts is None:
            return None
        shown = dict(facts.facts) if tables else without_tables(facts.facts)
        return FactsSideItem(run_id=facts.run_id, state=facts.state, facts=shown)

    names = {"device": one.device, "provider": one.provider, "case": one.case}
    known = {"same_code": one.same_code, "differences": list(one.differences), "repeatability": one.repeatability}
    return FactsPairItem(**names, **known, base=side(one.base), head=side(one.head))


def compare_side_item(side: ComparedSide) -> CompareSideItem:
    return document_of(CompareSideItem, columns(side.revision) | vars(side) | {"revision": side.revision.sha})


def compare_item(one: ComparedCase) -> CompareItem:
    metric = metric_of(one.case)
    ratio = vars(one.ratio) if one.ratio else dict.fromkeys(("ratio", "low", "high"))
    named = {"metric": metric.value, "unit": metric.unit, "change": percent(ratio["ratio"], metric)}
    return document_of(CompareItem, vars(one) | ratio | named | {"run_ids": one.runs})


def compare_document(found: RevisionsCompared, target: str) -> CompareDocument:
    return CompareDocument(
        target=target,
        device=found.device,
        base=compare_side_item(found.base),
        head=compare_side_item(found.head),
        counts=dict(Counter(one.direction for one in found.cases)),
        methods=dict(Counter(one.method for one in found.cases)),
        stack_changes=list(found.stack_changes),
        recipe_changed=found.base.recipe_id != found.head.recipe_id,
        cases=[compare_item(one) for one in found.cases],
    )
