"""The comment, the check and the terminal: one report in three renderings."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from kernels.cases import Metric
from kernelwatch.documents.runs import SummaryItem, UnsupportedItem
from service.commands.output.layout import lines
from service.commands.views import reports
from service.domain.attribution.causes import Kind
from service.domain.codefacts.measured import Measured
from service.domain.policy.policy import Policy
from service.domain.states import CellState, ForgeKind, Outcome, Purpose, RunState
from service.domain.text import code, escaped, fenced, grid, one_line, printable
from service.domain.verdicts.totals import Summary
from service.reports import comment_head, markdown
from service.reports.notes import notes, without_sota
from service.reports.report import Report
from service.reports.rows import AgainstSota, BaselineRow, CauseWords, Known, Row, Unsupported
from tests.fakes.documents import run, verdict

CASE = "rmsnorm.fwd.4096x1024.bf16"


def a_row(
    outcome: Outcome, ratio: float | None = 1.0, case: str = CASE, *, behind: bool = False, reason: str = "because"
) -> Row:
    timed = outcome not in (Outcome.INVALID, Outcome.FAILED)
    head = Measured(
        "head:norms", "norms", CellState.MEASURED, None, 10.0 * (ratio or 1), "us", 900.0, 3, 60, {"registers": 64}
    )
    parent = replace(head, contender="parent:norms", median=10.0, facts={"registers": 40})
    sota = AgainstSota("quack", 1.2, 1.19, 1.21, behind, "behind quack since 1234567890; the gap did not change", None)
    return Row(
        "norms",
        case,
        outcome,
        ratio if timed else None,
        (ratio or 1) - 0.01,
        (ratio or 1) + 0.01,
        3,
        60,
        timed,
        reason,
        head if timed else None,
        parent,
        parent,
        sota,
    )


def a_report(*rows: Row, state: RunState = RunState.DONE, **changed: object) -> Report:
    report = Report(
        run_id=7,
        url="https://watch.example/runs/7",
        target="norms",
        forge="example/norms",
        sha="abc1234567" + "0" * 30,
        revision="abc1234567",
        subject="work",
        author="Ada",
        committed_at=1.0,
        baseline="beefbeefbe",
        pull=12,
        device="h200",
        suite="smoke",
        state=state,
        stage=None,
        reason=None,
        log=None,
        sandboxed=True,
        trusted=True,
        attempt=1,
        max_attempts=3,
        worker="box",
        created_at=1.0,
        started_at=2.0,
        finished_at=3.0,
        stack={"torch": "2.13.0"},
        stack_digest="5" * 64,
        telemetry={},
        policy=Policy.model_validate({}),
        sota="quack",
        rows=rows,
    )
    return replace(report, **changed)  # type: ignore[arg-type]


STEADY, SLOW, FAST = a_row(Outcome.STEADY), a_row(Outcome.REGRESSION, 1.102), a_row(Outcome.IMPROVEMENT, 0.9)
WRONG, FAILED, NEW = a_row(Outcome.INVALID), a_row(Outcome.FAILED), a_row(Outcome.NEW, None)
UNSURE = a_row(Outcome.INCONCLUSIVE, 1.03, reason="too noisy")
KNOWN = replace(a_row(Outcome.INVALID, reason="wrong at the baseline too"), known_before=True)


def first_line(*reports: Report) -> str:
    return markdown.comment(*reports).splitlines()[0]


def titled(title: str) -> str:
    """The first line of a device: it leads to the run."""
    return f"### {title.replace(' ', ' [', 1)}](https://watch.example/runs/7)"


# -- the comment


@pytest.mark.parametrize(
    ("rows", "title"),
    [
        ((STEADY, STEADY), "✓ kernelwatch, H200: no action needed"),
        ((FAST, STEADY), "✓ kernelwatch, H200: 1 of 2 cases 10.0 % faster"),
        ((UNSURE, STEADY), "? kernelwatch, H200: 1 of 2 cases undecided"),
        ((UNSURE,), "? kernelwatch, H200: nothing decided"),
        ((KNOWN, STEADY), "✓ kernelwatch, H200: 1 wrong result as before"),
        ((FAST, KNOWN, STEADY), "✓ kernelwatch, H200: 1 of 3 cases 10.0 % faster; 1 wrong result as before"),
        ((FAST, UNSURE), "? kernelwatch, H200: 1 of 2 cases 10.0 % faster; 1 of 2 cases undecided"),
        ((NEW,), "✓ kernelwatch, H200: no action needed"),
        ((SLOW, STEADY), "✗ kernelwatch, H200: 1 of 2 cases 10.2 % slower"),
        ((SLOW,), "✗ kernelwatch, H200: its only case 10.2 % slower"),
        ((SLOW, FAST, STEADY), "✗ kernelwatch, H200: 1 of 3 cases 10.2 % slower, 1 is 10.0 % faster"),
        ((SLOW, SLOW, STEADY), "✗ kernelwatch, H200: 2 of 3 cases up to 10.2 % slower"),
        (
            (SLOW, WRONG, WRONG, FAILED),
            "✗ kernelwatch, H200: 2 of 4 cases give a wrong result, 1 is 10.2 % slower, 1 fails",
        ),
    ],
)
def test_its_title_says_what_happened_and_where(rows: tuple[Row, ...], title: str) -> None:
    assert first_line(a_report(*rows)) == titled(title)


AT_GITHUB = {
    "forge_kind": ForgeKind.GITHUB,
    "forge_url": "https://github.com/example/norms",
    "baseline_sha": "beefbeefbe" + "0" * 30,
}
AT_GITLAB = AT_GITHUB | {"forge_kind": ForgeKind.GITLAB, "forge_url": "https://gitlab.com/example/kernels/norms"}


def test_links_are_those_of_gitlab_where_the_target_is_there() -> None:
    said = markdown.comment(a_report(SLOW, **AT_GITLAB))
    old, new, page = "beefbeefbe" + "0" * 30, "abc1234567" + "0" * 30, "https://gitlab.com/example/kernels/norms/-"
    assert f"[[diff]]({page}/compare/{old}...{new})" in said
    assert f"[`abc1234567`]({page}/commit/{new})" in said


def test_the_first_screen_has_the_worst_case_the_counts_and_what_to_do() -> None:
    others = [a_row(Outcome.STEADY, ratio, f"rmsnorm.fwd.{n}x64.bf16") for n, ratio in enumerate((0.998, 1.0, 1.002))]
    said = markdown.comment(a_report(replace(SLOW, cause=SPILLS), *others, **AT_GITHUB))
    title, closing, worst, counts, *_ = said.split("\n\n")
    assert title == titled("✗ kernelwatch, H200: 1 of 4 cases 10.2 % slower")
    assert worst == (
        f"`{CASE}`: 10.0 → 11.0 µs, 10.2 % slower (+9.2 to +11.2 %, 95 % confidence) because the kernel now spills 50 "
        "registers at N=16384. "
        f"[[trend]](https://watch.example/targets/norms/trend?device=h200&provider=norms&case={CASE}) "
        f"[[diff]](https://github.com/example/norms/compare/beefbeefbe{'0' * 30}...abc1234567{'0' * 30}) "
        "[[reproduce]](https://watch.example/runs/7#reproduce)"
    )
    assert counts.splitlines() == [
        "|  | cases | mean | range |",
        "|---|--:|--:|---|",
        "| slower ✗ | 1 | +10.2 % |  |",
        "| unchanged (within 1 %) | 3 | 0.0 % | −0.2 to +0.2 % |",
    ]
    assert closing == (
        "**The check is neutral: it blocks nothing.** "
        f"[`abc1234567`](https://github.com/example/norms/commit/abc1234567{'0' * 30}) against its "
        f"merge base [`beefbeefbe`](https://github.com/example/norms/commit/beefbeefbe{'0' * 30}) "
        f"([changes](https://github.com/example/norms/compare/beefbeefbe{'0' * 30}...abc1234567{'0' * 30})). "
        "Next: push a fix (it is measured automatically), or accept it with `/kernelwatch accept REASON`; "
        "`/kernelwatch rerun` measures once more."
    )
    assert said.count("10.2 %") == 3, "in the title, in its line and in the counts"


def test_who_may_approve_a_held_commit_is_named_and_how() -> None:
    said = markdown.comment(a_report(state=RunState.HELD, **AT_GITHUB))
    assert said.startswith(titled("? kernelwatch, H200: held for approval") + "\n")
    assert "somebody who may write to example/norms reads the commit and approves exactly it with " in said
    assert f"`/kernelwatch approve abc1234567{'0' * 30}` or `kernelwatch run approve 7`." in said
    nowhere = markdown.comment(a_report(state=RunState.HELD, forge=None))
    assert "Next: a maintainer reads the commit and approves exactly it with `kernelwatch run approve 7`." in nowhere


@pytest.mark.parametrize(
    ("rows", "when", "worth"),
    [
        ((STEADY,), "findings", False),
        ((STEADY,), "always", True),
        ((NEW,), "findings", False),
        ((KNOWN, STEADY), "findings", False),
        ((FAST, STEADY), "findings", True),
        ((SLOW, STEADY), "findings", True),
        ((UNSURE, STEADY), "findings", True),
        ((a_row(Outcome.STEADY, behind=True),), "findings", False),
    ],
)
def test_people_are_notified_of_what_they_can_act_on(rows: tuple[Row, ...], when: str, *, worth: bool) -> None:
    report = a_report(*rows, policy=Policy.model_validate({"comment": when}))
    assert comment_head.worth_a_comment(report) is worth


def test_it_carries_a_hidden_marker_by_which_it_is_found_again() -> None:
    assert markdown.marker("norms", 12) == "<!-- kernelwatch:norms:12 -->"
    assert markdown.marker("norms", 12) in markdown.comment(a_report(STEADY))
    assert markdown.marker("a --> b", 1) == "<!-- kernelwatch:a_--__b:1 -->"


def test_ten_rows_are_shown_and_the_rest_is_folded() -> None:
    rows = [a_row(Outcome.REGRESSION, 1.1 + n / 100, f"rmsnorm.fwd.{n}x1024.bf16") for n in range(1, 15)]
    shown, folded = markdown.comment(a_report(*rows)).split("<details>", 1)
    assert shown.count("\n| `rmsnorm") == 10
    first = shown.split("**Changed**")[1].splitlines()[4]
    assert first.startswith("| `rmsnorm.fwd.14x1024.bf16` norms | 10.0 → 12.4 µs | **+24.0 % (+23.0 to +25.0 %)** |")
    assert folded.startswith("<summary>4 more: Changed</summary>")
    assert folded.count("\n| `rmsnorm") == 4


def test_wrong_failed_and_new_cases_stand_apart() -> None:
    said = markdown.comment(a_report(SLOW, WRONG, FAILED, NEW))
    _, rest = said.split("**Wrong results**")
    wrong, rest = rest.split("**Failed cases**")
    _, changed = rest.split("**Changed**")
    assert changed.count(f"| `{CASE}`") == 2, "and once among the new ones"
    assert f"| `{CASE}` norms | because |" in wrong
    assert "1 new, with nothing to compare with" in changed


def test_at_most_ten_rows_are_open_whatever_happened() -> None:
    many = [replace(one, case=f"rmsnorm.fwd.{n}x8.bf16") for n, one in enumerate([WRONG, SLOW, FAILED] * 8)]
    open_rows = re.sub(r"<details>.*?</details>", "", markdown.comment(a_report(*many)), flags=re.DOTALL)
    assert open_rows.count("\n| `rmsnorm") == 10


def test_what_was_wrong_before_is_told_apart_and_folded() -> None:
    shown, folded = markdown.comment(a_report(KNOWN, WRONG)).split("<details>", 1)
    assert (shown.count("| because |"), shown.count("| wrong at the baseline too |")) == (1, 0)
    assert "1 wrong or failed before this revision already" in folded
    assert "| wrong at the baseline too |" in folded
    assert "**Wrong results**" not in markdown.comment(a_report(KNOWN))


def test_a_cause_that_all_changed_cases_share_is_said_once() -> None:
    shared = CauseWords(Kind.CODE, "slower because the kernel now spills 12 registers", True, " because it does")
    rows = [replace(a_row(Outcome.REGRESSION, 1.1 + n / 100, f"{CASE}.{n}"), cause=shared) for n in range(12)]
    said = markdown.comment(a_report(*rows))
    assert (
        "**Changed**, each slower because the kernel now spills 12 registers\n\n| case | before → now | change |"
        in said
    )
    assert "<summary>2 more: Changed</summary>" in said
    other = replace(rows[0], cause=replace(shared, words="slower because its blocks are smaller"))
    assert "**Changed**\n\n| case | before → now | change | why |" in markdown.comment(a_report(other, *rows[1:]))


def test_a_cause_that_some_cases_share_is_said_once_and_they_stand_together() -> None:
    spills = CauseWords(Kind.CODE, "slower because the kernel now spills 12 registers", True, " because it does")
    blocks = replace(spills, words="slower because its blocks are smaller")
    rows = [
        replace(a_row(Outcome.REGRESSION, 1.9 - n / 100, f"{CASE}.{n}"), cause=blocks if n == 1 else spills)
        for n in range(4)
    ]
    said = markdown.comment(a_report(*rows))
    assert said.count("now spills 12 registers") == 1
    lines = [line for line in said.splitlines() if line.startswith(f"| `{CASE}.")]
    whys = [line.strip("| ").rpartition("| ")[2] for line in lines]
    assert whys == ["slower because the kernel now spills 12 registers", "as above", "as above", blocks.words]


def test_what_did_not_change_is_one_line_whatever_was_measured() -> None:
    steady = [a_row(Outcome.STEADY, case=f"{CASE}{metric}") for metric in ("", ":memory", ":call", ":breaks")]
    said = markdown.comment(a_report(SLOW, *steady, *(replace(row, by_code=True) for row in steady)))
    [line] = [line for line in said.splitlines() if line.startswith("| unchanged")]
    assert "| 8 |" in line


def test_a_changed_case_leads_to_its_row_and_a_regression_to_its_incident() -> None:
    page = f"https://watch.example/runs/7?unfold=all#{CASE}"
    slower = replace(SLOW, page=page, regression=12, incident=3)
    said = markdown.comment(a_report(slower, slower, replace(STEADY, page=page), pull=None))
    assert said.count(f"| [`{CASE}`]({page}) norms |") == 2
    assert "It is tracked as [incident 3](https://watch.example/incidents/3). Next:" in said
    alone = markdown.comment(a_report(replace(slower, incident=None), pull=None))
    assert "It is tracked as [regression 12](https://watch.example/regressions/12). Next:" in alone


def test_times_stand_beside_those_of_the_baseline_whichever_revision_that_is() -> None:
    assert "| case | before → now | change | why |" in markdown.comment(a_report(SLOW, SLOW))


def test_a_gap_to_sota_is_reported_where_this_revision_moved_it() -> None:
    assert "behind quack" not in markdown.comment(a_report(a_row(Outcome.STEADY, behind=True)))
    said = markdown.comment(a_report(a_row(Outcome.IMPROVEMENT, 0.9, behind=True)))
    [section] = re.findall(r"<details><summary>1 behind quack \(.*; not a regression\).*?</details>", said, re.DOTALL)
    assert "1.20 | behind quack since 1234567890" in section
    assert "regression" not in said.replace(section, "")
    decides = Policy.model_validate({"gate": {"behind-sota": "fail"}})
    assert "1 behind quack (" in markdown.comment(a_report(a_row(Outcome.STEADY, behind=True), policy=decides))


def test_it_says_where_and_with_what_it_was_measured() -> None:
    said = markdown.comment(a_report(STEADY))
    assert "[How it was measured](https://watch.example/runs/7) · target norms, suite smoke" in said
    assert "`abc1234567` against its merge base `beefbeefbe`. Nothing to do." in said
    assert "torch 2.13.0" in said
    assert "smallest change 1 % (2 % below 100 µs)" in said
    assert "intervals of 95 % confidence" in said
    assert "sandbox" not in said
    assert "Measured without a sandbox" in markdown.comment(a_report(STEADY, sandboxed=False))


def test_devices_share_one_comment() -> None:
    said = markdown.comment(a_report(STEADY, device="b200"), a_report(SLOW, baseline="1234567890"))
    titles = [line for line in said.splitlines() if line.startswith("###")]
    assert titles == [
        titled("✗ kernelwatch, H200: its only case 10.2 % slower"),
        titled("✓ kernelwatch, B200: no action needed"),
        "#### H200",
        "#### B200",
    ]
    assert "`abc1234567` against its merge base `1234567890` on H200 and `beefbeefbe` on B200. H200: Next: push" in said
    assert "B200: Nothing to do." in said
    assert said.count("<!--") == 1
    assert said.count("Next: ") == 1


def test_a_build_that_failed_shows_the_end_of_its_log() -> None:
    log = "\n".join(f"line {n}" for n in range(200)) + "\n\x1b[31merror:\x1b[0m ```\n</details> no such header"
    said = markdown.comment(a_report(state=RunState.FAILED, log=log, reason="`make` ended with 2"))
    assert said.startswith(titled("✗ kernelwatch, H200: build failed") + "\n")
    assert "\\`make\\` ended with 2. [The whole log](https://watch.example/api/v1/runs/7/log)" in said
    assert "Next: push a fix; it is measured automatically." in said
    assert "line 199" in said
    assert "line 100\n" not in said
    [block] = [token for token in MarkdownIt("commonmark").parse(said) if token.type == "fence"]
    assert block.content.endswith("error: ```\n</details> no such header\n"), "it cannot break out of its block"


# -- what comes from a repository is shown, and does nothing

ANY_TEXT = st.text(max_size=200) | st.text(alphabet="`*_[]()<>&#@!|\\~-+.=1 \nGH:/w", max_size=60)


class _Shown(HTMLParser):
    """What a reader sees, and which tags made it."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.tags = "", set[str]()

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)


def shown(source: str) -> _Shown:
    page = _Shown()
    page.feed(MarkdownIt("gfm-like", {"linkify": False}).render(source))
    return page


@given(ANY_TEXT)
@settings(max_examples=150)
def test_escaped_text_is_shown_as_it_is(text: str) -> None:
    page = shown(escaped(text))
    assert page.tags <= {"p"}
    assert page.text.replace("\u200b", "").split() == printable(text).replace("\u200b", "").split()


@given(ANY_TEXT)
@settings(max_examples=80)
def test_escaped_text_stays_in_its_cell(text: str) -> None:
    page = shown(f"| a | b |\n|---|---|\n| {escaped(text)} | {code('c|`d`')} |\n")
    assert page.tags <= {"table", "thead", "tbody", "tr", "th", "td", "code"}
    assert "c|`d`" in page.text


@given(ANY_TEXT)
@settings(max_examples=80)
def test_a_block_cannot_be_left(text: str) -> None:
    page = shown(fenced(text))
    assert page.tags == {"pre", "code"}


def test_nobody_is_mentioned_and_nothing_is_linked() -> None:
    said = escaped("thanks @ada, fixes #12, see https://x.example and www.x.example")
    assert not re.search(r"@ada|#12|://|www\.", said)


@given(ANY_TEXT)
@settings(max_examples=40)
def test_a_grid_shows_strange_text_in_its_cell(text: str) -> None:
    page = shown("\n".join(grid(("case", "why"), [("rmsnorm_noweight", text)])))
    assert page.tags <= {"table", "thead", "tbody", "tr", "th", "td"}
    assert "rmsnorm_noweight" in page.text


# -- however much there is to say, a forge takes it

reasons = st.text(max_size=2000)
rows = st.builds(
    a_row,
    st.sampled_from(list(Outcome)),
    st.floats(0.01, 100),
    st.from_regex(r"rmsnorm\.(fwd|bwd)\.[0-9]{1,8}x[0-9]{1,7}\.bf16(-fp32)?", fullmatch=True),
    behind=st.booleans(),
    reason=reasons,
)


@given(
    st.lists(rows, max_size=4),
    st.integers(0, 400),
    st.sampled_from(list(RunState)),
    st.none() | st.text(max_size=3000),
    st.integers(1, 12),
)
@settings(max_examples=25)
def test_a_comment_is_never_too_long(
    some: list[Row], times: int, state: RunState, log: str | None, devices: int
) -> None:
    report = a_report(*some * times, state=state, log=(log or "") * 50 if log else None, reason=log)
    said = markdown.comment(*[report] * devices)
    assert len(said) < 65_536
    assert markdown.marker("norms", 12) in said
    assert said.count("<details>") == said.count("</details>")
    assert len(markdown.check(report).summary.encode()) <= 65_535


def test_a_check_counts_bytes_and_folds_more_before_anything_is_cut() -> None:
    """A comment may have as many characters; GitHub counts the bytes of a check's summary."""
    cases = [f"rmsnorm.fwd.{rows}x4096.bf16" for rows in range(1, 320)]
    report = a_report(*(a_row(Outcome.INVALID, case=case, reason="→" * 140) for case in cases))
    comment, summary = markdown.comment(report), markdown.check(report).summary
    assert len(comment) <= markdown.LARGEST < len(comment.encode())
    assert len(summary.encode()) <= markdown.LARGEST
    assert summary.count("<details>") == summary.count("</details>") > 0
    assert summary.splitlines()[-1] == comment.splitlines()[-1], "the signature is there"


@pytest.mark.parametrize("huge", [list(range(60_000)), {f"setting {n}": n for n in range(30_000)}, "x" * 400_000])
def test_facts_without_end_hide_no_regression(huge: object) -> None:
    assert SLOW.head
    assert SLOW.parent
    facts = dict.fromkeys(("kernels", "registers", "spills", "shared", "config", "graphs"), huge)
    less = replace(SLOW.parent, facts=dict.fromkeys(facts, "less"))
    report = a_report(replace(SLOW, head=replace(SLOW.head, facts=facts), parent=less))
    assert len(comment_head.headline(report)) < 600
    said = markdown.comment(report)
    assert len(said) < 10_000
    assert "10.2 % slower" in said.splitlines()[0]
    assert len(printed(report)) < 10_000


# -- the check


def test_a_check_says_what_the_gate_says() -> None:
    """Which states the gate has is in test_gate.py."""
    report = a_report(SLOW, STEADY)
    said = markdown.check(report)
    assert (said.name, said.url) == ("kernelwatch / norms / h200", report.url)
    assert (said.status, said.conclusion, said.commit_status) == ("completed", "neutral", "success")
    queued = markdown.check(a_report(state=RunState.QUEUED))
    assert (queued.conclusion, queued.commit_status) == (None, "pending")


def test_a_check_has_a_title_that_fits() -> None:
    assert markdown.check(a_report(STEADY)).title == "No action needed"
    assert markdown.check(a_report(SLOW, STEADY)).title == "1 of 2 cases 10.2 % slower"
    long = markdown.check(a_report(state=RunState.FAILED, reason="word " * 100)).title
    assert len(long) <= 140


def test_a_check_that_decided_nothing_says_so_and_what_to_do() -> None:
    """It does not block, so its title is all that tells it from a pass."""
    unsure = a_row(Outcome.INCONCLUSIVE, reason="too noisy " * 30)
    assert markdown.check(a_report(unsure)).title == "Undecided, run it again: nothing decided"
    faster = a_report(unsure, a_row(Outcome.IMPROVEMENT, 0.9))
    assert markdown.check(faster).title.startswith("Undecided, run it again: 1 of 2 cases 10.0 % faster")
    assert markdown.check(a_report()).title == "Undecided, nothing measured: the suite has no case for this device"
    quarantined = a_report(replace(unsure, quarantined=True))
    assert markdown.check(quarantined).title == "Undecided, nothing decided: 1 quarantined"


@given(st.text(alphabet="ab ", min_size=150, max_size=400))
def test_what_is_cut_ends_at_a_word(text: str) -> None:
    words, cut = text.split(), one_line(text, 100)
    assert len(cut) <= 100
    if cut.endswith("…") and max(map(len, words)) < 40:
        assert cut.removesuffix("…").split() == words[: len(cut.split())]


# -- commands


def printed(report: Report) -> str:
    """What a command prints of it, with every case."""
    verdicts = [
        verdict(
            row.outcome.value,
            row.ratio,
            row.case,
            provider=row.provider,
            summary=row.summary,
            quarantined=row.quarantined,
        )
        for row in report.rows
    ]
    document = run(
        *verdicts,
        headline=comment_head.headline(report),
        notes=notes(report),
        summaries=[SummaryItem.model_validate(one).model_dump() for one in report.summaries],
        unsupported=[UnsupportedItem.model_validate(one).model_dump() for one in report.unsupported],
    )
    return "\n".join(line.plain for line in lines(reports.report(document, every=True).parts, 160))


# -- metrics, ceilings, and what is not supported


def in_metric(metric: str, value: float, unit: str = "us") -> Row:
    """A regression of 10.2 %, in this metric."""
    slow = a_row(Outcome.REGRESSION, 1.102, f"{CASE}.{metric}" if metric else CASE)
    assert slow.head
    assert slow.parent
    head = replace(slow.head, median=value * 1.102, unit=unit)
    return replace(slow, head=head, parent=replace(slow.parent, median=value, unit=unit))


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (in_metric("", 7.31), f"| `{CASE}` norms | 7.31 → 8.06 µs | **+10.2 % (+9.2 to +11.2 %)** |"),
        (
            in_metric("call", 21.0),
            f"| `{CASE}.call` norms, call time | 21.0 → 23.1 µs | **+10.2 % (+9.2 to +11.2 %)** |",
        ),
        (
            in_metric("compile", 1.8e6),
            f"| `{CASE}.compile` norms, compile time | 1.80 → 1.98 s | **+10.2 % (+9.2 to +11.2 %)** |",
        ),
        (
            in_metric("memory", 16.8e6, "bytes"),
            f"| `{CASE}.memory` norms, peak memory | 16.8 → 18.5 MB | **+10.2 % (+9.2 to +11.2 %)** |",
        ),
    ],
)
def test_a_comment_says_what_was_measured_and_in_which_unit(row: Row, line: str) -> None:
    assert line in markdown.comment(a_report(row, FAST))


def test_what_comes_first_is_large_for_its_metric() -> None:
    compiled, timed = (a_row(Outcome.REGRESSION, r, f"{CASE}{metric}") for r, metric in ((1.3, ".compile"), (1.06, "")))
    report = a_report(compiled, timed)
    assert markdown.comment(report).splitlines()[4].startswith(f"`{CASE}`: ")
    assert "1 of 2 cases 6.0 % slower, 1 is 30.0 % slower](" in first_line(report)


def test_the_first_line_does_not_call_memory_slow() -> None:
    line = first_line(a_report(in_metric("memory", 16.8e6, "bytes")))
    assert ": its only case takes 10.2 % more memory](" in line


UNSUPPORTED = (
    Unsupported("norms", "layernorm.fwd.8x512.bf16", "it has no layernorm"),
    Unsupported("norms", "layernorm.bwd.8x512.bf16", "it has no layernorm"),
    Unsupported("norms", CASE, "at most [bold]512 columns"),
)


def test_what_is_not_supported_is_said_by_every_renderer_and_changes_no_verdict() -> None:
    report = a_report(STEADY, unsupported=UNSUPPORTED)
    assert first_line(report) == first_line(a_report(STEADY))
    assert markdown.check(report).conclusion == "success"
    assert "| `layernorm.fwd.8x512.bf16` norms | it has no layernorm |" in markdown.comment(report)
    said = " ".join(printed(report).split())
    assert "layernorm.fwd.8x512.bf16 and layernorm.bwd.8x512.bf16 (it has no layernorm)" in said
    assert "(at most [bold]512 columns)" in said


def test_a_suite_of_which_nothing_is_supported_says_so() -> None:
    line = first_line(a_report(unsupported=UNSUPPORTED))
    assert line == titled("? kernelwatch, H200: nothing measured")
    assert "Its providers support no case of the suite." in markdown.comment(a_report(unsupported=UNSUPPORTED))


def repeating(head: bool | None, parent: bool | None) -> Row:
    """A steady row whose sides are repeatable, or not, or too seldom called to know."""
    assert STEADY.head
    assert STEADY.parent
    mine = {"repeatable": head, "repeats": 45, "distinct": 1 if head else 7}
    return replace(
        STEADY,
        head=replace(STEADY.head, facts=mine),
        parent=replace(STEADY.parent, facts={"repeatable": parent, "repeats": 45, "distinct": 1}),
    )


def test_other_conventions_of_a_provider_are_noted_in_every_renderer() -> None:
    assert STEADY.head
    facts = {"rounding": "before-weight", "inplace": True}
    report = a_report(replace(STEADY, head=replace(STEADY.head, facts=facts)))
    for text in (markdown.comment(report), printed(report)):
        told = " ".join(text.split())
        assert f"{STEADY.provider} rounds the normalised rows before the product with the weight" in told
        assert f"{STEADY.provider} writes outputs into inputs, which are restored between calls" in told
    assert "rounds the normalised rows" not in markdown.comment(a_report(STEADY))


def test_lost_repeatability_is_a_headline_of_its_own_in_every_renderer() -> None:
    report = a_report(repeating(head=False, parent=True))
    assert ": its only case no longer repeatable](" in first_line(report)
    assert "7 different outputs of 45 calls" in markdown.comment(report)
    assert "**No longer repeatable**" in markdown.comment(report)
    assert f"No longer repeatable: {STEADY.case} ({STEADY.provider})." in " ".join(printed(report).split())
    slower = a_report(repeating(head=False, parent=True), SLOW)
    assert ": 1 of 2 cases 10.2 % slower, 1 is no longer repeatable](" in first_line(slower)


@pytest.mark.parametrize(("head", "parent"), [(True, True), (False, False), (None, True), (False, None), (True, False)])
def test_repeatability_that_stayed_came_or_is_not_known_alarms_nobody(head: bool | None, parent: bool | None) -> None:
    report = a_report(row := repeating(head, parent))
    assert first_line(report) == first_line(a_report(STEADY))
    assert "No longer" not in markdown.comment(report) + printed(report)
    assert ("now bitwise repeatable" in row.explained) is ((head, parent) == (True, False))


@pytest.mark.parametrize("outcome", [Outcome.STEADY, Outcome.NEW])
def test_what_a_reader_has_to_know_is_said_by_every_renderer(outcome: Outcome) -> None:
    row = a_row(outcome, reason="x" * 2000)
    assert row.head
    head = replace(row.head, facts={"graphs": 2, "recompiles": 1, "l2_resident": True})
    report = a_report(replace(row, head=head))
    for note in ("its inputs stay in L2, so its GB/s are not those of the memory", "2 graphs and 1 recompile"):
        assert note in markdown.comment(report)
        assert note.replace(" ", "") in "".join(printed(report).split())


SPILLS = CauseWords(
    Kind.CODE,
    "slower because the kernel now spills 50 registers at N=16384",
    after=" because the kernel now spills 50 registers at N=16384",
)


def test_the_cause_reads_as_one_sentence_with_the_size() -> None:
    slower = replace(a_row(Outcome.REGRESSION, 1.1), cause=SPILLS)
    said = markdown.comment(a_report(slower))
    assert "(+9.0 to +11.0 %, 95 % confidence) because the kernel now spills 50 registers at N=16384. " in said
    assert "registers 40 → 64" not in said, "the cause has taken from the facts what matters"
    why = ", probably because the registers are 64, not 40"
    hedged = replace(slower, cause=CauseWords(Kind.CODE, f"slower{why}", False, why))
    assert "95 % confidence), probably because the registers are 64, not 40. " in markdown.comment(a_report(hedged))
    unsure = replace(slower, cause=CauseWords(Kind.MACHINE, "probably the machine: the A/A control leaned too", False))
    assert "95 % confidence): probably the machine: the A/A control" in markdown.comment(a_report(unsure))


def test_it_says_how_to_accept_what_it_found() -> None:
    slower = a_row(Outcome.REGRESSION, 1.1)
    without_forge = markdown.comment(a_report(slower, forge=None))
    assert "or merge anyway: it is tracked as a regression until it is fixed or acknowledged" in without_forge
    recorded = [replace(slower, case=case, regression=n) for n, case in ((12, CASE), (13, "rmsnorm.fwd.1x64.bf16"))]
    said = markdown.comment(a_report(*recorded, pull=None))
    assert "accept it with `kernelwatch regression acknowledge 12 --reason …` (also 13)" in said
    one_event = [replace(row, incident=3) for row in recorded]
    said = markdown.comment(a_report(*one_event, pull=None))
    assert "accept it with `kernelwatch regression acknowledge 3 --incident --reason …`;" in said
    assert "`kernelwatch run start norms abc1234567 --again` measures once more." in said
    for quiet in (a_report(a_row(Outcome.STEADY)), a_report(a_row(Outcome.IMPROVEMENT, 0.9))):
        assert "accept" not in markdown.comment(quiet)


def test_as_slow_as_before_is_not_this_revisions_doing() -> None:
    before = BaselineRow("1234567890", Outcome.REGRESSION, 1.2, 1.19, 1.21, "20.0% slower than 1234567890", None, None)
    row = replace(a_row(Outcome.STEADY), last_good=before)
    said = markdown.comment(a_report(row))
    assert said.splitlines()[4] == "1 already slow: not caused by this revision."
    named = markdown.comment(a_report(replace(row, known=Known(12, "1234567890"))))
    assert named.splitlines()[4] == (
        "1 slow since 1234567890 (regression [12](https://watch.example/regressions/12)): not caused by this revision."
    )
    three = (replace(row, case=f"rmsnorm.fwd.{n}x64.bf16", known=Known(n, "1234567890")) for n in (14, 12, 13))
    some = markdown.comment(a_report(*three))
    assert all(f"[{n}](https://watch.example/regressions/{n})" in some for n in (12, 13, 14))
    strange = CauseWords(Kind.CODE, "slower because of regression 99 of another project")
    quoting = markdown.comment(a_report(replace(row, last_good=replace(before, cause=strange), page="/runs/7#x")))
    assert "because of regression 99 of another project" in quoting, "only our records are linked"
    partly = a_report(replace(row, outcome=Outcome.IMPROVEMENT), STEADY)
    assert "not caused" not in markdown.comment(partly)
    assert "not caused" not in markdown.comment(a_report(replace(row, outcome=Outcome.INCONCLUSIVE), STEADY))
    assert "1 already slow before this revision: slower than the last good revision" in said
    assert "| +20.0 % (+19.0 to +21.0 %) |" in said
    assert markdown.check(a_report(row)).conclusion == "success"
    again = replace(row, outcome=Outcome.REGRESSION)
    assert "already slow" not in markdown.comment(a_report(again)), "where this revision slows it once more"


def test_what_a_calibration_finds_is_nobodys_to_mend() -> None:
    found = a_report(a_row(Outcome.REGRESSION, 1.1), pull=None, purpose=Purpose.CALIBRATION)
    assert "every difference is false; nothing to fix" in comment_head.headline(found)
    assert first_line(found).startswith("### ✓")
    assert "Next" not in markdown.comment(found)


def test_who_moved_stands_beside_the_gap() -> None:
    row = a_row(Outcome.IMPROVEMENT, 0.9, behind=True)
    assert row.sota
    moved = CauseWords(Kind.BASELINE, "not your commit: Quack 0.6.4 → 0.6.5 made the baseline 6 % faster")
    said = markdown.comment(a_report(replace(row, sota=replace(row.sota, cause=moved))))
    assert "the gap did not change; not your commit: Quack 0.6.4 → 0.6.5 made the baseline 6 % faster |" in said


def test_a_leak_is_told_beside_the_verdict() -> None:
    leak = BaselineRow("v1.2", Outcome.REGRESSION, 1.04, 1.035, 1.045, "a leak", SPILLS, None)
    said = markdown.comment(a_report(replace(a_row(Outcome.STEADY), pinned=leak), pinned="v1.2"))
    assert said.splitlines()[4] == "1 slower than the pinned baseline v1.2."
    assert "| +4.0 % (+3.5 to +4.5 %) | slower because" in said


def test_a_quarantined_case_is_shown_and_alarms_nobody() -> None:
    row = replace(a_row(Outcome.INCONCLUSIVE, 1.1), quarantined=True)
    both = a_report(row, a_row(Outcome.STEADY, case="rmsnorm.fwd.1x64.bf16"))
    said = markdown.comment(both)
    assert said.startswith(titled("✓ kernelwatch, H200: no action needed"))
    assert "<summary>1 unchanged and 1 quarantined</summary>" in said
    assert markdown.check(both).conclusion == "success"
    assert first_line(a_report(row)) == titled("? kernelwatch, H200: nothing decided"), "nothing else was measured"
    assert markdown.check(a_report(row)).conclusion == "neutral"
    assert "inconclusive (quarantined)" in " ".join(printed(a_report(row)).split())


def test_what_was_removed_is_told_apart() -> None:
    row = replace(a_row(Outcome.REMOVED, None, reason="the recipe asks for it no longer"), head=None, parent=None)
    assert "1 removed from the suite" in markdown.comment(a_report(row))
    assert "removed" in printed(a_report(row))


def test_the_geometric_means_are_folded_and_in_words() -> None:
    means = (
        Summary("norms", "rmsnorm", "fwd", Metric.KERNEL, 6, 1.012, 1.008, 1.016, 3),
        Summary("norms", "rmsnorm", "fwd", Metric.MEMORY, 2, 0.9, 0.9, 0.9, 3),
    )
    report = a_report(a_row(Outcome.STEADY), summaries=means)
    said = markdown.comment(report)
    assert "<details><summary>Geometric means of 8 cases</summary>" in said
    assert "| `rmsnorm.fwd` norms | 6 | +1.2 % (+0.8 to +1.6 %) |" in said
    assert "| `rmsnorm.fwd` norms, peak memory | 2 | −10.0 % (−10.0 to −10.0 %) |" in said
    assert "6 x rmsnorm.fwd" in printed(report)


def test_it_names_the_version_of_the_policy() -> None:
    assert "(policy `0123456789`)" in markdown.comment(a_report(a_row(Outcome.STEADY), policy_version="0123456789"))


def test_a_missing_sota_is_named_with_its_reason_and_what_to_do() -> None:
    reason = "Quack is not installed here (No module named 'quack')"
    missing = AgainstSota("SOTA", None, None, None, False, reason, None)
    rows = [replace(a_row(Outcome.STEADY, case=case), sota=missing) for case in (CASE, CASE.replace("1024", "2048"))]
    report = a_report(*rows, stack={"torch": "2.13.0"})
    said = (
        f"Not compared with quack: 2 cases ({reason}). To compare them, install `quack-kernels==0.6.5` in the stack "
        "that the recipe names (docs/operating.md, Stacks), or name another `sota` for h200 in the recipe."
    )
    assert without_sota(report) == said
    assert escaped(said) in markdown.comment(report)
    assert said in notes(report)


def test_a_case_that_sota_does_not_support_is_named_and_asks_for_nothing() -> None:
    missing = AgainstSota("quack", None, None, None, False, "Quack has no fp32 backward of that width.", None)
    report = a_report(a_row(Outcome.STEADY), replace(a_row(Outcome.NEW), sota=missing))
    said = "Not compared with quack: 1 case (Quack has no fp32 backward of that width)."
    assert said in markdown.comment(report)
    assert said in notes(report)
    assert "Not compared with" not in markdown.comment(a_report(a_row(Outcome.STEADY)))
