"""Messages to a forge, as stored in the outbox, and annotations of a check: causes at the lines that define them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from enum import StrEnum

from pydantic import BaseModel, Field

from service.domain.attribution.causes import Kind
from service.domain.codefacts.findings import KernelFindings
from service.domain.codefacts.measured import ARCH_OF
from service.domain.codefacts.texts import SourceLines
from service.domain.metrics import in_range
from service.domain.states import GateAction, GateKind
from service.domain.text import one_line
from service.reports.comment_head import times
from service.reports.report import Report
from service.reports.rows import Row


class CommentPayload(BaseModel):
    """A comment on a pull request, in Markdown: the report, or the answer to a command."""

    pull: int
    body: str
    to_stranger: bool = Field(default=False, description="An answer to a person who may not command anything.")


class ReactionPayload(BaseModel):
    """A reaction to a comment of a person, in GitHub's words: eyes, +1 or confused."""

    pull: int = 0  # missing in messages of an earlier version, which GitHub does not need
    comment: int
    content: str


class CheckAction(BaseModel):
    """A button of a completed check; GitHub allows three of them, and these lengths."""

    label: str = Field(max_length=20)
    description: str = Field(max_length=40)
    identifier: str = Field(max_length=20)


class AnnotationLevel(StrEnum):
    """How grave an annotation is, in GitHub's words."""

    NOTICE = "notice"
    WARNING = "warning"
    FAILURE = "failure"


class CheckAnnotation(BaseModel):
    """A remark at lines of a file of the commit, as plain text."""

    path: str
    start_line: int
    end_line: int
    annotation_level: AnnotationLevel
    title: str = Field(max_length=255)
    message: str = Field(max_length=16_000)  # GitHub takes 64 KB


class CheckPayload(BaseModel):
    """A check run of a commit, or its status, in GitHub's words.

    Several targets may watch one repository, so the name contains the target.
    """

    name: str
    sha: str
    status: str
    conclusion: str | None
    commit_status: str = "pending"  # missing in messages of an earlier version
    title: str
    summary: str
    url: str | None
    actions: list[CheckAction] = Field(default_factory=list, max_length=3)
    annotations: list[CheckAnnotation] = Field(default_factory=list)


MAX_CASES = 8  # that one annotation names
_MAX_TITLE = 140
_LEVELS = {
    GateAction.FAIL: AnnotationLevel.FAILURE,
    GateAction.WARN: AnnotationLevel.WARNING,
    GateAction.PASS: AnnotationLevel.NOTICE,
}
_NOT_ITS_CODE = (Kind.MACHINE, Kind.NOISE, Kind.STACK, Kind.BASELINE)


def annotations(report: Report, compiled: Sequence[KernelFindings] = ()) -> list[CheckAnnotation]:
    """The annotations of a device's check.  `compiled` is what was found without a GPU."""
    of_device = [one for one in compiled if one.arch == ARCH_OF.get(report.device)]
    return [*_of_regressions(report), *map(_of_compiled, of_device)]


def _of_regressions(report: Report) -> Iterator[CheckAnnotation]:
    """One at each definition: the slower cases that run it, the slowest first."""
    at: dict[SourceLines, list[Row]] = defaultdict(list)
    for row in report.regressions:
        if row.news and row.source and not (row.cause and row.cause.kind in _NOT_ITS_CODE):
            at[row.source].append(row)
    for source, rows in at.items():
        first, *others = rows
        more = f", and {len(others)} more case{'s' * (len(others) > 1)}" if others else ""
        title = f"{first.change} at {first.case}{more} ({report.device.upper()})"
        lines = [_case(row) for row in rows[:MAX_CASES]]
        lines += [f"{len(rows) - MAX_CASES} more cases are on {report.url}"] if rows[MAX_CASES:] else []
        actions = {report.policy.at(row.case).action(GateKind.REGRESSION) for row in rows}
        action = next(one for one in _LEVELS if one in actions)
        yield _annotation(source, _LEVELS[action], title, lines)


def _case(row: Row) -> str:
    between = in_range(row.low, row.high, row.metric)
    interval = f" ({between})" if between else ""
    return one_line(f"{row.case}: {times(row)}{interval}, {row.because}", 600)


def _of_compiled(one: KernelFindings) -> CheckAnnotation:
    first = next((change for change in one.changes if change.worse), one.changes[0])
    of_kernel = f" in {one.kernel}" if one.kernel else ""
    title = f"{first.said} on {one.arch}{of_kernel}"
    by_place: dict[str, list[str]] = defaultdict(list)
    for change in one.changes:
        by_place[change.where].append(f"- {one_line(change.said, 600)}")
    lines = [line for where, said in by_place.items() for line in (f"{where}, compiled without a GPU:", *said)]
    level = AnnotationLevel.WARNING if one.worse else AnnotationLevel.NOTICE
    return _annotation(one.source, level, title, lines)


def _annotation(source: SourceLines, level: AnnotationLevel, title: str, lines: Sequence[str]) -> CheckAnnotation:
    first, last = source.shown
    return CheckAnnotation(
        path=source.file,
        start_line=first,
        end_line=last,
        annotation_level=level,
        title=one_line(title, _MAX_TITLE),
        message="\n".join(lines),
    )
