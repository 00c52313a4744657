"""Comparison of the compiled code of two revisions, without a GPU."""

from typing import Self

from pydantic import Field

from kernelwatch.documents.base import Document, Number, SourceItem
from service.domain.codefacts.compiled import Access, Call, State
from service.domain.codefacts.diff import CodeChange
from service.domain.codefacts.findings import MENDS, ComparedRevision, FactsReport, Uncompiled
from service.domain.codefacts.measured import Difference
from service.reports.schema.base import document_of


class PlaceItem(Document):
    """One provider's case, compiled for one architecture."""

    provider: str
    case: str
    arch: str


class CodeChangeItem(PlaceItem):
    """One property that changed."""

    kernel: str | None = Field(description="Only if the case has several.")
    kind: str = Field(examples=["spills", "registers", "kernels"])
    text: str
    before: str
    after: str
    worse: bool | None = Field(description="null if only a person can tell.")
    source: SourceItem | None = Field(description="Where the kernel is defined, or the function that launches it.")


class ViolationItem(Document):
    """A limit of the recipe's `[facts]` that the head breaks and the base does not."""

    rule: str
    text: str
    fix: str
    places: list[PlaceItem]


class KernelItem(Document):
    """One compiled kernel; null where the compiler gives no value.  Sizes are in bytes."""

    name: str
    sass: str | None = Field(description="Hash of the machine code, without addresses.")
    registers: int | None
    spills: int | None = Field(description="Instructions that access local memory.")
    stack: int | None
    shared: int | None = Field(description="Shared memory, static and dynamic.")
    shared_static: int | None
    shared_dynamic: int | None
    shared_limit: int | None
    occupancy: Number
    limited_by: str | None
    loads: dict[str, int] = Field(description="Bytes of one instruction to the number of instructions.")
    stores: dict[str, int]
    async_loads: dict[str, int] = Field(description="Into shared memory (cp.async).")
    instructions: int | None
    configuration: dict[str, str]
    grid: list[int] | None
    candidates: int | None = Field(description="Configurations that the autotuner will choose from.")
    hints: dict[str, int] = Field(description="Cache hints to the number of instructions.")
    reads: dict[str, Access] = Field(description="By argument.")
    writes: dict[str, Access]
    looped: dict[str, int] = Field(description="Bytes of `reads` that are requested in loops.")
    work: dict[str, int] = Field(description="Elements by kind of operation, of the whole launch.")
    bytes: int | None = Field(description="Bytes that a launch must move at least.")
    blocks: int | None = Field(description="Blocks that fit on an SM.")
    sms: int | None = Field(description="SMs of the GPU.")
    source: SourceItem | None = Field(description="null for kernels of libraries and for generated ones.")


class CompiledItem(PlaceItem):
    """The compiled code of one case at the head."""

    state: State
    reason: str
    code: str | None = Field(description="Hash over all kernels.")
    kernels: list[KernelItem]
    count: int = Field(description="Kernels launched.")
    extern: int = Field(description="Calls of aten, cuBLAS and the like.")
    over: str | None = Field(description="The hard limit that it breaks.")
    refused: list[str] = Field(description="The same, of kernels for which the case has a fallback.")
    calls: list[Call]
    source: SourceItem | None = Field(description="Of the function that the recipe names.")


class FactsCountsItem(Document):
    """Numbers of cases."""

    compiled: int = Field(description="At the head.")
    compared: int = Field(description="At both revisions.")
    same_code: int


class FactsDocument(Document):
    """A comparison of the compiled code of two revisions."""

    headline: str
    exit_code: int
    target: str
    suite: str
    archs: list[str]
    providers: list[str]
    head: ComparedRevision
    base: ComparedRevision | None
    skipped: str | None = Field(description="Why nothing was compiled.")
    counts: FactsCountsItem
    violations: list[ViolationItem]
    known_before: list[PlaceItem] = Field(description="Places at which the base breaks a limit already.")
    changes: list[CodeChangeItem]
    uncompiled: list[Uncompiled]
    notes: list[str]
    differences: list[Difference]
    duration_s: float
    facts: list[CompiledItem] = Field(description="Of the head.")

    @classmethod
    def of(cls, report: FactsReport) -> Self:
        named = {
            "headline": report.headline,
            "exit_code": report.exit_code,
            "counts": {"compiled": report.compiled, "compared": report.compared, "same_code": report.same},
            "violations": [
                document_of(ViolationItem, vars(one) | {"text": one.said, "fix": MENDS[one.rule]})
                for one in report.violations
            ],
            "changes": [_change(one) for one in report.changes],
            "duration_s": report.seconds,
            "facts": [document_of(CompiledItem, vars(place) | vars(one)) for place, one in report.facts],
        }
        return document_of(cls, vars(report) | named)


def _change(one: CodeChange) -> CodeChangeItem:
    named = {"kernel": one.kernel or None, "kind": one.what.value, "text": one.said}
    return document_of(CodeChangeItem, vars(one.place) | vars(one) | named)
