"""The pages of what was decided: causes, the lives of regressions, bisections, change points, calibration."""

import re

from sqlalchemy import select

from service.db import models as m
from service.db.engine import transaction
from tests.dashboards.asking import Get, words
from tests.dashboards.seed import CASES, Seeded


def test_a_run_says_why_in_words_and_what_that_rests_on(get: Get, decided: Seeded) -> None:
    address = f"/runs/{decided.runs['slow']}"
    said = words(get(address))
    assert re.search(r"2 of 6 cases up to 21\.4 % slower at \w{10} on h200", said)
    assert re.search(r"advisory, smallest change 2 % version \w{10}", said)
    assert re.search(
        r"◉ Incident 1 · 2 cases, geomean 1\.149, worst 1\.214 · 2 now behind quack, 2 before · blamed", said
    )
    assert re.search(r"· ada Culprit: \w{10} , this commit\.", said)
    case = words(get(f"{address}/cases/{CASES[3]}"))
    assert "Slower because the kernel now spills 12 registers. Cause: the code." in case
    assert "confirmed by 3 fresh trials. Interval" in case
    assert "Smallest change that matters 2 %, q 7.1e-05." in case
    assert "Recorded as regression 2" in case


def test_the_history_of_an_incident_names_the_case_of_an_event_that_only_one_has(get: Get, decided: Seeded) -> None:
    with transaction() as session:
        [one, *_] = session.scalars(select(m.RegressionRow).where(m.RegressionRow.incident_id == 1))
        case, happened = one.series.case, {"who": "ada", "what": "note", "words": "seen on mine, too"}
        session.add(m.RegressionEvent(regression_id=one.id, at=one.opened_at, state=one.state, **happened))
    history = words(get("/incidents/1")).partition("History")[2]
    assert f"ada note {case} : seen on mine, too" in history


def test_an_incident_draws_its_worst_case_that_needs_a_decision(get: Get, decided: Seeded) -> None:
    page = get("/incidents/1")
    said = words(page)
    assert re.search(rf"Worst case {re.escape(CASES[3])} , of those that need a decision, 8\.7 % slower", said)
    assert page.text.count(f'aria-label="{CASES[3]} over the mainline') == 2, "wide, and narrow"
    assert "Above a line: the median of the runs of its level" in said


def test_a_run_has_its_geometric_means(get: Get, decided: Seeded) -> None:
    said = words(get(f"/runs/{decided.runs['slow']}"))
    assert re.search(r"rmsnorm\.fwd norms 2 10\.2 % slower 1\.102 1\.098 to 1\.106", said)


def test_a_run_has_the_other_baselines_and_what_nobody_is_alarmed_by(get: Get, decided: Seeded) -> None:
    address = f"/runs/{decided.runs['fast']}"
    said = words(get(address))
    slow = words(get(f"/runs/{decided.runs['slow']}"))
    since = re.search(r"at (\w{10}) on h200", slow)
    assert since
    before = words(get(f"{address}/cases/{CASES[5]}"))
    assert f"Slow since {since[1]} (regression 4): not caused by this revision. Regression 4" in before
    assert "Last good revision 0123456789 : 3.1 % slower, 1.025 to 1.037. 3.1% slower than 0123456789." in before
    assert "Pinned baseline v1.2 : 4.1 % slower" in words(get(f"{address}/cases/{CASES[4]}"))
    best = words(get(f"{address}/cases/{CASES[1]}"))
    assert "Best of the baselines inductor : 33.0 % slower" in best
    assert "Not your commit: Quack 0.6.4 → 0.6.5 made the baseline 6 % faster." in best
    assert f"· 1 slow since {since[1]} (regression 4): not caused by this revision" in said
    for line in ("⊘ RMSNorm forward: 1 quarantined", "△ LayerNorm forward: 1 slow before", "⊖ 1 removed",
                 "◣ LayerNorm forward: 1 slower than pinned"):  # fmt: skip
        assert line in said, line


def test_a_regression_has_its_evidence_its_history_and_what_to_do(get: Get, decided: Seeded) -> None:
    page = get("/regressions/2")
    said = words(page)
    assert said.strip().startswith("Regressions / 2 ◉ blamed 8.7 % slower rmsnorm.bwd.32768x4096.bf16-fp32 on h200")
    assert "Slower because the kernel now spills 12 registers." in said
    assert "1.087 times the baseline, interval 1.081 to 1.093" in said
    assert "402.0 → 437.0 µs" in said
    assert "registers 40 → 64" in said
    assert "incident 1 , open" in said
    assert re.search(r"ada note: .* grace assigned ada .* blamed.* bisecting.* kernelwatch opened run \d+", said)
    assert "Two blocks would do; &lt;b&gt;see&lt;/b&gt; the plan." in page.text
    assert "kernelwatch regression acknowledge 2 --reason WHY" in said
    assert "kernelwatch regression reopen" not in said, "it is open already"
    assert "kernelwatch regression reopen 1" in words(get("/regressions/1"))


def test_a_bisection_is_told_step_by_step(get: Get, decided: Seeded) -> None:
    said = words(get("/bisections/1"))
    assert re.search(r"Culprit: (\w{10}) norms on h200 \1 is 21\.4 % slower than its parent", said)
    assert "4 of 24 runs" in said
    assert "3 revisions along first parents" in said
    assert "confirm the regression bad: 21.0 % slower" in said
    step = words(get(f"/runs/{decided.runs['queued'] + 1}"))
    assert "a step of bisection 1" in step


def test_calibration_shows_how_often_equal_code_differed(get: Get, decided: Seeded) -> None:
    said = words(get("/calibration"))
    assert re.search(
        r"h200-box h200 kernel time 6 cases · copy ● fair 8 of 144 5\.6 % \d\.\d % to \d+\.\d % 5\.0 %", said
    )
    assert re.search(r"⊘ quarantined 1 d ago by kernelwatch 8 of 24 copies differed", said)
    assert "they are locked now" in said
    assert re.search(r"8 of 24 33\.3 %", said)


def test_nothing_that_people_wrote_does_anything(get: Get, decided: Seeded) -> None:
    nasty = '<script>alert("1")</script>{{ 7*7 }}'
    with transaction() as session:
        for row in session.scalars(select(m.RegressionRow)):
            row.cause_text = row.reason = row.assignee = nasty
        for event in session.scalars(select(m.RegressionEvent)):
            event.words = event.who = nasty
        for search in session.scalars(select(m.Bisection)):
            search.reason = search.asked_by = nasty
        for point in session.scalars(select(m.ChangePoint)):
            point.reason_code, point.reason_args = "inconclusive", {"bisection": 1, "said": nasty}
        for quarantine in session.scalars(select(m.Quarantine)):
            quarantine.reason = quarantine.by = nasty
        for verdict in session.scalars(select(m.VerdictRow)):
            verdict.cause_text = verdict.reason = nasty
        for incident in session.scalars(select(m.Incident)):
            incident.cause_text = nasty
    runs = [f"/runs/{decided.runs[name]}" for name in ("slow", "fast")]
    series = f"/targets/norms/trend?device=h200&provider=norms&case={CASES[2]}"
    runs += [f"{address}/cases/{CASES[1]}" for address in runs]
    for path in ("/", "/regressions", "/regressions/2", "/bisections/1", "/calibration", series, *runs):
        page = get(path)
        assert "<script>alert" not in page.text, path
        assert "&lt;script&gt;" in page.text or path == runs[1], path
        assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|<style|javascript:", page.text), path
