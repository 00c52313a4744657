"""The pages as text: what they say, that strange names do nothing, and that nothing comes from another host."""

import re
from html import unescape
from pathlib import Path

import pytest
from sqlalchemy import select

from dashboards.pages.pulls import as_html
from dashboards.rendering import ago, commands, flat
from service.db import models as m
from service.db.engine import transaction
from service.domain.states import ForgeKind, OutboxState
from service.domain.text import without_credentials
from service.settings import settings
from tests.dashboards.asking import Get, words
from tests.dashboards.seed import CASES, NOW, Seeded, seed

NASTY = '<script>alert("1")</script>{{ 7*7 }}`|**'


def pages(seeded: Seeded) -> list[str]:
    runs = [f"/runs/{run_id}" for run_id in seeded.runs.values()]
    return [
        "/",
        "/targets/norms",
        "/targets/liger",
        "/targets/norms/pulls/7",
        "/regressions",
        "/regressions?state=fixed",
        "/workers",
        *runs,
    ]


def test_empty_pages_say_what_to_do_next(get: Get, state: Path) -> None:
    said = words(get("/"))
    assert "No targets yet" in said
    assert "kernelwatch target add NAME LOCATION --recipe recipe.toml" in said
    assert "start a worker on a machine with the device that is to be measured: kernelwatch worker start" in said
    assert "The queue is empty. New commits" in words(get("/workers"))
    assert "A regression is recorded when a commit of a mainline is measured" in words(get("/regressions"))
    assert "kernelwatch bisection start TARGET GOOD..BAD" in words(get("/bisections"))


def test_a_run_page_has_the_verdict_the_numbers_and_what_explains_them(get: Get, seeded: Seeded) -> None:
    said = words(get(f"/runs/{seeded.runs['slow']}"))
    assert re.search(r"2 of 6 cases up to 21\.4 % slower at \w{10} on h200", said)
    assert re.search(r"32,768×4,096 bf16-fp32 RMSNorm forward 128\.4 155\.9 1\.214 \S+ ■ 1\.29 (0\.99|1\.00)\d", said)
    assert "torch 2.13.0" in said
    assert "Preview of the comment" in said


def test_a_case_has_a_page_of_its_own(get: Get, seeded: Seeded) -> None:
    address = f"/runs/{seeded.runs['slow']}"
    page = get(f"{address}/cases/{CASES[1]}")
    said = words(page)
    assert re.search(r"21\.4 % slower rmsnorm\.fwd\.32768x4096\.bf16-fp32 at \w{10} on h200", said)
    assert "21.4% slower than its parent, confirmed by 3 fresh trials." in said
    assert re.search(r"Interval 1\.2\d\d to 1\.2\d\d\.", said)
    assert "Facts: code changed; registers 40 → 64; spills 0 → 12" in said
    assert "registers 40 64" in said
    assert "kernelwatch compare" in said
    assert re.search(
        r'aria-label="Rounds, with the medians of the run: baseline 128\.4 µs, head 155\.9 µs, A/A copy', page.text
    )
    assert get(f"{address}/cases/rmsnorm.fwd.1x1.bf16").status_code == 404


def test_the_telemetry_of_a_run_has_a_page_of_its_own(get: Get, seeded: Seeded) -> None:
    said = words(get(f"/runs/{seeded.runs['slow']}/telemetry"))
    assert re.search(r"trial 1 13\.5 s start 11\.0 s, rounds 2\.5 s 1,965 to 1,980 – – 41 never 0 1\.20 → 2\.40", said)
    assert "Time by phase start 11.0 s, 81 % rounds 2.5 s, 19 % total 13.5 s" in said
    assert "driver 590.44" in said
    assert re.search(r"1 h200-box .* done", said)


def test_a_figure_has_the_medians_of_the_text_beside_it(get: Get, seeded: Seeded) -> None:
    """The median of a run is not that of its rounds."""
    page = get("/regressions/1").text
    text = re.search(r"<dt>measured</dt><dd>(\S+) → (\S+) µs", page)
    assert text is not None
    assert re.findall(r'<text [^>]*class="strong"[^>]*>([^<]+)</text>', page)[:2] == list(text.groups())
    assert "medians of run" in words(get("/regressions/1"))
    run = get(f"/runs/{seeded.runs['slow']}/cases/{CASES[1]}").text
    assert re.findall(r'<text [^>]*class="strong"[^>]*>([^<]+)</text>', run)[:2] == list(text.groups())


def test_the_table_is_exported_as_it_is_filtered(get: Get, seeded: Seeded) -> None:
    address = f"/runs/{seeded.runs['slow']}"
    every = get(f"{address}/cases.json").json()
    assert len(every) == len(CASES)
    slower = get(f"{address}/cases.json?outcome=slower&sort=ratio").json()
    assert [one["case"] for one in slower] == [CASES[1], CASES[3]]
    assert (slower[0]["ratio"], slower[0]["unit"]) == (pytest.approx(1.214), "us")
    csv = get(f"{address}/cases.csv?outcome=slower")
    assert csv.headers["content-disposition"] == f'attachment; filename="run-{seeded.runs["slow"]}.csv"'
    header, first, *_ = csv.text.splitlines()
    assert header.startswith("case,provider,outcome,says,baseline,head,unit,ratio")
    assert first.startswith(f"{CASES[1]},norms,regression,slower,128.4,")
    assert get(f"{address}/cases.csv?op=none").text == "case,provider,outcome\r\n"


def test_a_pull_request_has_one_page_over_heads_and_devices(get: Get, seeded: Seeded) -> None:
    page = get("/targets/norms/pulls/7")
    said = words(page)
    assert re.search(
        r"1 of 6 cases 10\.2 % slower on h200, pull request 7 Fix or acknowledge it, rmsnorm\.fwd\.4096x1024", said
    )
    assert "Next: push a fix" in said
    assert "Measured run 8 on h200; gate warn" in said
    assert re.search(r"4,096×1,024 bf16-fp32 RMSNorm forward h200 ▲ 1\.102 7\.31 → 8\.06 µs", said)
    assert "Devices" not in said, "there is one"
    assert page.text.count('class="iv slow"') == 1
    assert "issuecomment" not in page.text
    assert re.search(r"kernelwatch compare \w{40} \w{40} --suite norms", said)
    run = get(f"/runs/{seeded.runs['pull']}").text
    assert 'href="/targets/norms/pulls/7"' in run
    assert get("/targets/norms/pulls/99").status_code == 404
    assert get("/targets/norms/pulls/0").status_code == 422


@pytest.mark.parametrize(
    ("kind", "address"),
    [
        (ForgeKind.GITHUB, "https://github.com/example/norms/pull/7#issuecomment-4711"),
        (ForgeKind.GITLAB, "https://gitlab.com/example/norms/-/merge_requests/7#note_4711"),
    ],
)
def test_a_pull_request_leads_to_its_comment_at_the_forge(get: Get, state: Path, kind: ForgeKind, address: str) -> None:
    with transaction() as session:
        seed(session)
        [message] = session.scalars(select(m.OutboxMessage).where(m.OutboxMessage.kind == "comment"))
        message.key, message.remote_id = f"comment:{message.target_id}:7", "4711"
        session.get_one(m.Target, message.target_id).forge_kind = kind
    assert f'href="{address}"' in get("/targets/norms/pulls/7").text


def test_a_pull_request_that_waits_says_who_has_to_do_what(get: Get, seeded: Seeded) -> None:
    said = words(get("/targets/norms/pulls/8"))
    assert "Held for approval" in said
    assert f"kernelwatch run approve {seeded.runs['held']}" in said
    assert "No head has been measured yet." in said
    assert "Nobody has approved this head: read it before you run it." in said


def test_a_head_that_is_measured_again_is_not_the_newest(get: Get, state: Path) -> None:
    with transaction() as session:
        seeded = seed(session)
        old = session.get_one(m.Run, seeded.runs["pull"])
        revision = m.Revision(
            target_id=old.target_id, sha="c" * 40, subject="The second push", author="", committed_at=NOW
        )
        session.add(revision)
        session.flush()
        same = ("target_id", "device", "suite", "recipe_id", "pull", "baseline", "trusted", "priority")
        kept = {name: getattr(old, name) for name in same}
        for place, head in enumerate((revision.id, old.revision_id)):
            session.add(m.Run(**kept, revision_id=head, dedupe=f"again {place}", created_at=NOW))
            session.flush()
    said = words(get("/targets/norms/pulls/7"))
    assert "Newest head cccccccccc The second push" in said


def test_a_filter_that_leaves_nothing_says_so(get: Get, seeded: Seeded) -> None:
    address = f"/runs/{seeded.runs['slow']}"
    assert "No case fits these filters. Show all 6" in words(get(f"{address}?outcome=faster"))
    assert "No case fits these filters." in words(get(f"{address}?q=no+such+case"))
    assert get(f"{address}?sort=colour").status_code == 422


def test_a_wrong_result_is_invalid_and_has_no_time(get: Get, seeded: Seeded) -> None:
    said = words(get(f"/runs/{seeded.runs['wrong']}"))
    assert "2 of 6 cases give a wrong result at" in said
    shown = (
        r"4,096×1,024 bf16-fp32 7\.31 – ✕ invalid y differs from the float64 result by 3\.1 times the allowed error – –"
    )
    assert re.search(shown, said), "no head time, no ratio, no interval, no GB/s"


def test_a_build_that_failed_shows_its_log_as_text(get: Get, seeded: Seeded) -> None:
    page = get(f"/runs/{seeded.runs['broken']}")
    assert "SyntaxError: &#39;(&#39; was never closed &lt;script&gt;alert(1)&lt;/script&gt;" in page.text
    assert "<script>alert" not in page.text


def test_what_was_not_measured_says_why(get: Get, state: Path) -> None:
    with transaction() as session:
        seeded = seed(session)
        for row in session.scalars(select(m.VerdictRow).where(m.VerdictRow.baseline_kind == "sota")):
            row.ratio = row.low = row.high = None
            row.reason = "quack failed: Quack is not installed in this environment"
    assert "Not compared with quack: 6 cases (quack failed: Quack is not installed in this environment)." in words(
        get(f"/runs/{seeded.runs['slow']}")
    )
    assert "Measured no: it was skipped" in words(get(f"/runs/{seeded.runs['docs']}"))


def test_what_ran_without_a_sandbox_says_so(get: Get, seeded: Seeded) -> None:
    page = get(f"/runs/{seeded.runs['cpu']}")
    assert "Measured without a sandbox. On its worker bubblewrap is not installed; install it with" in words(page)
    assert "<code>sudo apt-get install -y bubblewrap</code>" in page.text
    assert "Measured without a sandbox" not in words(get(f"/runs/{seeded.runs['fast']}"))


def test_what_waits_says_for_what(get: Get, seeded: Seeded) -> None:
    assert f"kernelwatch run approve {seeded.runs['held']}" in words(get(f"/runs/{seeded.runs['held']}"))
    assert "0 runs ahead on cpu" in words(get(f"/runs/{seeded.runs['queued']}"))
    assert "measuring: trial 2, case 3 of 6" in words(get("/workers"))


def test_a_page_that_changes_looks_again_by_itself(get: Get, seeded: Seeded) -> None:
    assert "data-live" in get(f"/runs/{seeded.runs['running']}").text
    assert "data-live" not in get(f"/runs/{seeded.runs['slow']}").text


def test_a_pull_request_page_shows_its_comment(get: Get, seeded: Seeded) -> None:
    page = get(f"/runs/{seeded.runs['pull']}/comment")
    assert "H200: 1 of " in page.text
    assert "&lt;!-- kernelwatch:norms:7 --&gt;" in page.text, "as Markdown, marker and all"


@pytest.mark.parametrize(
    ("effect", "error", "heading", "became"),
    [
        (OutboxState.SENT, None, "Comment on the pull request", "The comment was sent."),
        (OutboxState.WAITING, None, "Comment on the pull request, not sent yet", "The comment is waiting to be sent."),
        (OutboxState.PREVIEW, None, "Preview of the comment", "is not sent: the target has no forge."),
        (
            OutboxState.FAILED,
            "401: Bad credentials",
            "Preview of the comment",
            "could not be sent: 401: Bad credentials.",
        ),
    ],
)
def test_a_pull_request_page_says_what_became_of_its_comment(
    get: Get, state: Path, effect: OutboxState, error: str | None, heading: str, became: str
) -> None:
    with transaction() as session:
        seeded = seed(session)
        run = session.get_one(m.Run, seeded.runs["pull"])
        for one in session.scalars(select(m.OutboxMessage)):
            if one.kind == "comment":
                one.key, one.state, one.error = f"comment:{run.target_id}:7", effect, error
            else:
                session.delete(one)
    assert heading in words(get(f"/runs/{seeded.runs['pull']}"))
    said = words(get(f"/runs/{seeded.runs['pull']}/comment"))
    assert heading in said
    assert became in said


@pytest.mark.parametrize(
    ("path", "status"), [("/runs/999", 404), ("/targets/none", 404), ("/none", 404), ("/runs/x", 422)]
)
def test_mistakes_are_pages_too(get: Get, path: str, status: int) -> None:
    page = get(path)
    assert page.status_code == status
    assert "Back to the overview" in words(page)


def test_nothing_comes_from_another_host_and_nothing_runs_inline(get: Get, seeded: Seeded) -> None:
    for path in pages(seeded):
        page = get(path)
        assert page.status_code == 200, path
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert not re.search(r'(src|srcset|action|data-from)="(?!/)(?!#)', page.text), path
        assert not re.search(r'<link[^>]*href="(?!/)', page.text), path
        assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|<style|javascript:", page.text), path


def test_every_file_that_a_page_names_is_there_and_kept(get: Get, seeded: Seeded) -> None:
    addresses = {one for path in pages(seeded) for one in re.findall(r'"(/assets/[^"]+)"', get(path).text)}
    assert {address.rsplit("/")[-1] for address in addresses} == {
        "icon.svg", "kernelwatch.css", "health.css", "lines.css", "target.css", "theme.js", "page.js", "run.css",
        "run.js", "idiomorph.min.js", "live.js", "table.js",
    }  # fmt: skip
    for address in addresses:
        answer = get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        plain = get(address, headers={"Accept-Encoding": "identity"})
        assert (plain.content, plain.headers.get("content-encoding")) == (answer.content, None)
    assert get("/assets/0123456789abcdef/kernelwatch.css").status_code == 404


def test_strange_names_are_shown_and_do_nothing(get: Get, state: Path) -> None:
    with transaction() as session:
        seeded = seed(session)
        for revision in session.scalars(select(m.Revision)):
            revision.subject = revision.author = NASTY
        for row in session.scalars(select(m.VerdictRow)):
            row.reason = row.provider = NASTY
        for measurement in session.scalars(select(m.Measurement)):
            measurement.provider, measurement.facts = NASTY, {NASTY: [NASTY]}
        for run in session.scalars(select(m.Run)):
            run.reason = run.stage = run.worker = NASTY
        for target in session.scalars(select(m.Target)):
            target.location = target.poll_error = target.forge_error = NASTY
            target.forge_paused_until = 4e9
    assert "Comments and checks are sent in" in get("/targets/norms").text
    for path in pages(seeded):
        page = get(path)
        assert page.status_code == 200
        assert "<script>" not in page.text
        assert "49" not in re.findall(r"{{ (\d+)", page.text)
        assert "&lt;script&gt;" in page.text


def test_a_comment_is_shown_with_our_tags_only() -> None:
    html = as_html(
        "<details><summary>more</summary>\n\n| a |\n|--|\n| b |\n\n</details>\n\n<b onclick=x>no</b> <!-- m -->"
    )
    assert "<details><summary>more</summary>" in html
    assert "<table>" in html
    assert "&lt;b onclick=x&gt;no&lt;/b&gt;" in html
    assert "<!--" not in html
    assert 'href="javascript' not in as_html("[x](javascript:alert(1))")
    assert '<img src="/runs/1/changes.svg" alt="x">' in as_html(f"![x]({settings().address}/runs/1/changes.svg)")
    for elsewhere in ("https://example.org/x.png", f"{settings().address}//example.org/x.png"):
        assert "<img" not in as_html(f"![x]({elsewhere})")


def test_small_words() -> None:
    assert [ago(s) for s in (0, 59, 60, 7200, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]
    assert without_credentials("https://me:secret@host/x") == "https://host/x"
    assert without_credentials("/srv/norms") == "/srv/norms"
    assert flat({"a": {"b": 1}, "c": [{"d": 2.5}], "e": []}) == [("a.b", "1"), ("c 1.d", "2.5"), ("e", "none")]


def test_what_stands_between_backquotes_is_code(get: Get, seeded: Seeded) -> None:
    held = seeded.runs["held"]
    command = f"kernelwatch run approve {held}"
    with transaction() as session:
        session.get_one(m.Run, held).reason = f"untrusted <b>revision</b>: approve it with `{command}`"
    assert "Untrusted &lt;b&gt;revision" in get(f"/runs/{held}").text
    for path, code in ((f"/runs/{held}", command), ("/targets/none", "kernelwatch target add")):
        lead = get(path).text.partition('<p class="lead">')[2].partition("</p>")[0]
        assert f"<code>{code}</code>" in lead
        assert "`" not in lead


def test_a_backquote_without_a_partner_marks_nothing() -> None:
    assert commands("run `a b`, then `c") == "run <code>a b</code>, then `c"
    assert commands("a ` <b>") == "a ` &lt;b&gt;"


def test_the_gate_of_a_run_is_read_as_a_sentence(get: Get, seeded: Seeded) -> None:
    assert "Gate warn: 2 regressions, 1 inconclusive exit code 0" in words(get(f"/runs/{seeded.runs['slow']}"))


def test_the_only_run_that_waits_is_not_counted_twice(get: Get, seeded: Seeded) -> None:
    assert "1 run waits, without a worker" in words(get("/workers"))


def test_a_board_without_a_device_is_that_of_the_newest(get: Get, seeded: Seeded) -> None:
    shown = get("/targets/norms/board").headers["location"].partition("device=")[2]
    assert shown == "cpu", "the alphabet's first, and measured last"
    with transaction() as session:
        totals = session.scalars(select(m.RunTotals).where(m.RunTotals.device == "h200"))
        for one in totals:
            one.at += 1e6
    assert get("/targets/norms/board").headers["location"].partition("device=")[2] == "h200"
    assert get("/targets/norms/board.json").json()["device"] == "h200"
    assert get("/targets/norms/board.csv").text.count("\n") > 3


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/regressions?state=new", "state: write one of 'all-open', 'open'"),
        ("/targets/norms/trend?case=x&since=yesterday", "since: write a date as 2026-11-29"),
        ("/runs/first", "run_id: write a whole number"),
        ("/targets/norms/trend?case=x&days=week", "days: this has another form than expected"),
    ],
)
def test_a_wrong_address_says_what_to_write(get: Get, seeded: Seeded, path: str, said: str) -> None:
    answer = get(path)
    assert (answer.status_code, said in unescape(words(answer))) == (422, True), words(answer)


def test_who_cannot_sign_in_is_told_how_to_go_on(get: Get, seeded: Seeded) -> None:
    answer = get("/keys")
    assert answer.status_code == 401
    assert "run kernelwatch person sign-in on the machine of the server" in re.sub(r"\s+", " ", words(answer))
