"""What is known of the code of revisions, and two revisions side by side on one device."""

from typing import Any, Literal

from pydantic import Field

from .base import (
    CellState,
    ComparisonMethod,
    Direction,
    Document,
    FactsState,
    Moment,
    Number,
    Repeatability,
    SourceItem,
)


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


class CompareSideItem(Document):
    """One of the two revisions."""

    revision: str
    subject: str
    author: str
    committed_at: Moment
    pull: int | None
    run_id: int = Field(description="The run whose medians are shown where no session measured both.")
    worker: str | None


class CompareItem(Document):
    """Head over base at one case; a ratio of 1.05 is 5 % more time or bytes."""

    provider: str
    case: str
    metric: str
    unit: str = Field(description="Of both medians: us, bytes or count.")
    method: ComparisonMethod = Field(
        description=(
            "`paired`: in turns, in one session.  `baseline` and `sota`: each in a session with the same third "
            "revision or provider.  `chain`: through the revisions between.  `unpaired`: two medians, no ratio."
        )
    )
    direction: Direction = Field(description="`unknown` where the interval does not decide it.")
    outcome: str | None = Field(description="The stored verdict, of a pair.")
    change: str = Field(examples=["10.2 % slower"])
    ratio: Number
    low: Number = Field(description="Of the interval, which is wider for several sessions.")
    high: Number
    base_median: Number
    head_median: Number
    via: str | None = Field(description="The third revision or provider.")
    run_ids: list[int] = Field(description="The runs on whose sessions it rests.")
    reason: str | None = Field(description="Why it is not paired.")


class CompareDocument(Document):
    """Two revisions on one device, case by case."""

    target: str
    device: str
    base: CompareSideItem
    head: CompareSideItem
    counts: dict[Direction, int] = Field(description="Cases by direction.")
    methods: dict[ComparisonMethod, int] = Field(description="Cases by method.")
    stack_changes: list[str] = Field(description="Between the two runs whose medians are shown.")
    recipe_changed: bool = Field(description="Those two runs were measured by different versions of the recipe.")
    cases: list[CompareItem]
