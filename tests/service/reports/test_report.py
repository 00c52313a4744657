"""The report of a run, before it is rendered."""

from dataclasses import replace

import pytest
from sqlalchemy.orm import Session

from service.db.engine import reading
from service.domain.codefacts.comparison import differences
from service.domain.policy.policy import NOTHING
from service.domain.states import Outcome, RunState
from service.domain.text import last_lines, one_line, printable
from service.ledger.reading.contents import read_contents
from service.ledger.reading.queries import whole_run
from service.reports.comment_head import headline, title
from service.reports.report import Report, report
from service.reports.rows import Row
from tests.dashboards.seed import CASES, watched


def a_report(session: Session, run_id: int) -> Report:
    run = whole_run(session, run_id)
    return report(run, read_contents(session, run), policy=NOTHING, address="https://watch.example")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """The report of every run that the seed wrote down, by what happened in it."""
    with watched(tmp_path_factory.mktemp("state")) as seeded, reading() as session:
        return {name: a_report(session, run_id) for name, run_id in seeded.runs.items()}


def test_the_headline_says_what_where_and_what_to_do(told: dict[str, Report]) -> None:
    headlines = {name: headline(one).replace(one.revision, "SHA") for name, one in told.items()}
    assert headlines["slow"] == (
        f"2 of 6 cases up to 21.4 % slower at SHA on h200: fix or acknowledge them, first {CASES[1]} is 21.4 % slower "
        "(code changed, registers 40 → 64 and spills 0 → 12)."
    )
    assert headlines["pull"].startswith(
        f"1 of 6 cases 10.2 % slower at SHA on h200: fix or acknowledge it, {CASES[0]} is 10.2 % slower"
    )
    assert headlines["fast"] == "3 of 6 cases up to 18.0 % faster at SHA on h200: 3 improvements and 3 steady."
    assert headlines["first"] == "No action needed at SHA on h200: 6 new cases."
    assert headlines["wrong"].startswith("2 of 6 cases give a wrong result at SHA on h200: the results changed")
    assert headlines["broken"].startswith("Build failed at SHA on h200: fix the build")
    assert headlines["docs"].startswith("Skipped, no action needed at SHA on h200: only README.md changed")
    assert headlines["held"].startswith("Held for approval at SHA on h200")
    assert headlines["running"] == "In progress at SHA on h200: measuring: trial 2, case 3 of 6."


def test_each_case_knows_who_was_measured_and_where_it_stands(told: dict[str, Report]) -> None:
    row = told["slow"].regressions[0]
    assert (row.case, row.outcome, row.confirmed) == (CASES[1], Outcome.REGRESSION, True)
    assert row.head
    assert row.parent
    assert row.control
    assert row.sota
    assert row.sota.best
    assert row.head.median == pytest.approx((row.ratio or 0) * (row.parent.median or 0))
    assert row.sota.best.provider == "quack"
    assert row.control_ratio == pytest.approx(1, abs=0.01)
    assert "spills 0 → 12" in row.explained


def test_behind_sota_is_not_a_regression(told: dict[str, Report]) -> None:
    fast = told["fast"]
    assert not fast.regressions
    assert [row.case for row in fast.behind] == [CASES[3]]
    assert fast.behind[0].outcome is Outcome.IMPROVEMENT, "it became faster, and is behind all the same"


def test_a_wrong_result_has_no_time_and_never_counts_as_fast(told: dict[str, Report]) -> None:
    wrong = told["wrong"].of(Outcome.INVALID)
    assert [row.ratio for row in wrong] == [None, None]
    assert all(row.head and row.head.median is None for row in wrong)
    assert not told["wrong"].of(Outcome.IMPROVEMENT)


def test_infrastructure_trouble_is_not_a_verdict_on_the_change(told: dict[str, Report]) -> None:
    lost = replace(told["broken"], log=None, reason="given up after 3 attempts: worker h200-box stopped answering.")
    assert lost.state is RunState.FAILED
    assert headline(lost).startswith("Not measured")
    assert "says nothing about the change" in headline(lost)


def test_what_was_broken_before_is_counted_and_alarms_nobody(told: dict[str, Report]) -> None:
    def known(row: Row) -> Row:
        return replace(row, known_before=row.outcome is Outcome.INVALID)

    wrong = told["wrong"]
    quiet = replace(wrong, rows=tuple(map(known, wrong.rows)))
    assert (quiet.verdict, quiet.advice) == ("2 wrong results as before", "2 wrong results as before and 4 steady")
    noisy = replace(quiet, rows=(*quiet.rows, *told["slow"].regressions))
    assert title(noisy) == "2 of 8 cases up to 21.4 % slower"
    assert noisy.advice.startswith("fix or acknowledge them")


def test_a_wrong_result_without_a_right_baseline_is_no_change(told: dict[str, Report]) -> None:
    wrong = replace(told["wrong"], rows=tuple(replace(row, parent=None) for row in told["wrong"].rows))
    assert wrong.advice.startswith("the results are wrong; fix that first")


def test_nothing_decided_says_why_of_most_cases(told: dict[str, Report]) -> None:
    [unsure] = told["slow"].of(Outcome.INCONCLUSIVE)
    noisy, short = (
        "the interval is still too wide after 8 trials",
        "the session ended before trials could settle it",
    )
    rows = tuple(replace(unsure, reason=reason) for reason in (short, noisy, noisy))
    undecided = replace(told["slow"], rows=rows)
    assert (undecided.verdict, undecided.advice) == ("Nothing decided", f"{noisy}; run it again")


def test_the_smallest_change_comes_from_the_recipe(told: dict[str, Report]) -> None:
    assert told["slow"].policy.smallest_change == 0.02
    assert told["slow"].sota == "quack"


def test_facts_are_compared_in_words() -> None:
    parent = {"code": "a", "kernels": 1, "registers": 40, "config": {"num_warps": 4}}
    assert differences(parent, parent) == ("same code",)
    head = {**parent, "code": "b", "kernels": 2, "config": {"num_warps": 8}}
    assert differences(head, parent) == (
        "code changed",
        "number of kernels 1 → 2",
        "configuration num_warps=4 → num_warps=8",
    )
    assert differences({}, parent) == ()


def test_of_a_long_configuration_what_differs_is_shown() -> None:
    kernels = [f"triton_red_fused_native_layer_norm_backward_{n} num_warps=4 XBLOCK=1" for n in range(12)]
    before, now = ("; ".join([*kernels, f"last num_warps=4 XBLOCK={block}"])[:400] for block in (1, 8))
    assert before == now, "the part that is kept of them all"

    def facts(block: int) -> dict[str, object]:
        last = {"name": "last", "warps": 4, "settings": {"XBLOCK": block}}
        return {"config": before, "triton": [{"name": "_forward", "warps": 8}, last]}

    assert differences(facts(8), facts(1)) == ("configuration XBLOCK=1 → XBLOCK=8",)
    assert differences(facts(8), facts(8)) == ()
    assert differences(facts(8), {"config": before}) == (), "of one side the kernels are not known"
    long = "; ".join(kernels[:2])
    assert differences({"config": f"{long} RBLOCK=512"}, {"config": f"{long} RBLOCK=1024 stages=2"}) == (
        "configuration … RBLOCK=1024 stages=2 → … RBLOCK=512",
    )
    assert differences({"triton": [{"settings": 3}], "config": "a"}, {"triton": [3], "config": "b"}) != ()


def test_text_from_elsewhere_is_made_fit_to_show() -> None:
    assert printable("a\x1b[31mred\x1b[0m\u202e\x00b\r\nc") == "aredb\nc"
    assert one_line("two\nlines.  ") == "two lines"
    assert len(one_line("x" * 1000)) == 240
    assert last_lines("\n".join(map(str, range(100))), lines=3) == "97\n98\n99"
