"""What is known of the code of revisions: facts checks, and the facts of measurements."""

from typing import Any, Literal, Self

from pydantic import Field

from service.db.models import FactsCheck, KernelTextRow
from service.domain.codefacts.comparison import Repeatability
from service.domain.codefacts.findings import Findings
from service.domain.states import CellState, FactsState
from service.reports.comparisons import FactsDiff, FactsPair, FactsSide
from service.reports.schema.base import Document, Moment, SourceItem, columns, without_tables


class KernelTextItem(Document):
    """A text of compiled code, without the text itself."""

    contender: str = Field(examples=["head:norms"])
    case: str
    arch: str | None = Field(description="Architecture of a facts check; null where the device compiled it.")
    number: int = Field(description="Which kernel of the call, from 0.")
    kernel: str | None = Field(description="Its name; null for the code of the whole call.")
    kind: str = Field(examples=["ttgir", "ptx", "sass", "generated"])
    sha256: str = Field(description="Of the text; equal texts have the same.")
    bytes: int

    @classmethod
    def of(cls, row: KernelTextRow) -> Self:
        return cls(
            contender=row.contender,
            case=row.case,
            arch=row.arch or None,
            number=row.number,
            kernel=row.kernel or None,
            kind=row.kind,
            sha256=row.text.sha256,
            bytes=row.text.bytes,
        )


class FindingItem(Document):
    """One line of what a check found."""

    text: str = Field(validation_alias="said", examples=["spills 0 → 50: use more warps per row"])
    where: str
    cases: int
    worse: bool | None = Field(description="null if only a person can tell.")


class KernelFindingsItem(Document):
    """What changed in one kernel for one architecture."""

    source: SourceItem
    kernel: str | None = Field(description="null for changes of a whole case.")
    arch: str
    changes: list[FindingItem]
    broken: bool = Field(description="Whether a limit of the recipe's `[facts]` is.")


class FindingsItem(Document):
    """What a check found, shortened to the first lines."""

    headline: str
    broken: list[FindingItem] = Field(description="Limits of the recipe's `[facts]`.")
    changes: list[FindingItem]
    uncompiled: list[FindingItem]
    notes: list[str]
    more: int = Field(description="Lines that were left out.")
    kernels: list[KernelFindingsItem] = Field(description="The changes by their places in the source, where known.")


class FactsCheckItem(Document):
    """A revision that is compiled without a GPU and compared with its baseline."""

    id: int
    revision: str
    base: str | None = Field(description="The revision compared with.")
    state: FactsState
    reason: str | None = Field(description="Why there are no findings.")
    created_at: Moment
    finished_at: Moment | None
    findings: FindingsItem | None

    @classmethod
    def of(cls, row: FactsCheck) -> Self:
        findings = FindingsItem.model_validate(Findings.from_json(row.findings)) if row.findings else None
        return cls.model_validate(
            columns(row) | {"revision": row.revision.sha, "base": row.base or None, "findings": findings}
        )


class FactsSideItem(Document):
    """One contender at one case."""

    run_id: int = Field(description="The run that measured it.")
    state: CellState
    facts: dict[str, Any] = Field(description="Tables, one row per kernel, only with `tables`.")


class FactsPairItem(Document):
    """What is known of the code of two revisions at one case."""

    device: str
    provider: str
    case: str
    same_code: bool | None = Field(description="null if the code of a side is not known.")
    differences: list[str] = Field(examples=[["code changed", "registers 40 → 64"]])
    repeatability: Repeatability | None = Field(description="Whether bitwise repeatability was lost or gained.")
    base: FactsSideItem | None = Field(description="null where it was not measured.")
    head: FactsSideItem | None


class FactsDiffDocument(Document):
    """Two revisions without their times."""

    target: str
    base: str
    head: str
    check: FactsCheckItem | None = Field(description="The check of exactly these two revisions.")
    counts: dict[Literal["same", "changed", "unknown"], int] = Field(description="Cases by what is known of the code.")
    stack_changes: dict[str, list[str]] = Field(
        description="By device, where the two were measured on different stacks, which explains other code."
    )
    cases: list[FactsPairItem]

    @classmethod
    def of(cls, found: FactsDiff, target: str, *, tables: bool = False, changed_only: bool = False) -> Self:
        return cls(
            target=target,
            base=found.base.sha,
            head=found.head.sha,
            check=FactsCheckItem.of(found.check) if found.check else None,
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
