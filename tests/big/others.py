"""Everything but the mainline of `norms`: other targets, one of them hostile, and pull requests."""

from typing import Any

from service.db import models as m
from service.domain.states import Priority, RunState, TargetKind
from tests.big import story
from tests.big.seeder import Seeder, recipe_text
from tests.big.story import DAY, HOUR, LONG_KERNEL


def teams(one: Seeder) -> None:
    """Targets that measure the same cases under the same name."""
    size, chance = one.story.size, one.story.chance
    for number in range(size.teams):
        team = one.target(f"team-{number}-kernels", forge=f"example/team-{number}")
        recipe = one.give_recipe(team, recipe_text(one.story.cases[: size.team_cases]))
        before = None
        for ordinal in range(size.team_revisions):
            at = one.now - (size.team_revisions - ordinal) * 9 * HOUR
            subject = one.story.chance.choice(("Tune it", "Name it", "Test it"))
            made = one.revision(team, parent=before, ordinal=ordinal, subject=subject, committed_at=at)
            before = made.sha
            run = one.run(made, "h200", recipe_id=recipe.id)
            level = dict.fromkeys(one.story.cases, 0.9 + 0.02 * (number % 5))
            cases = one.story.cases[: size.team_cases]
            slow = {cases[0]: 1.12} if chance.random() < 0.02 else {}
            one.measure(run, level, slow, cases=cases, first=ordinal == 0, ordinal=ordinal)


def package(one: Seeder) -> None:
    """A package with eight releases whose index does not answer."""
    index = {"kind": TargetKind.PACKAGE, "location": "https://index.example/simple", "package": "liger-kernel"}
    liger = one.target("liger", **index, branch=None, poll_failures=3, poll_error="index.example does not answer")
    recipe = one.give_recipe(liger, recipe_text(one.story.cases))
    releases = (
        "0.5.0",
        "0.5.1",
        "0.5.10",
        "0.6.0rc1",
        "0.6.0",
        "0.6.1.post2",
        "0.7.0",
        "0.8.0.dev20261101+g1234567",
    )
    before = None
    for place, release in enumerate(releases):
        at = one.now - (9 - place) * 9 * DAY
        subject = f"liger-kernel {release}"
        made = one.revision(
            liger, sha=release, parent=before, ordinal=place, subject=subject, author="", committed_at=at, paths=[]
        )
        before = release
        run = one.run(made, "h200", recipe_id=recipe.id)
        one.measure(run, {}, {}, provider="liger", first=place == 0)
    one.target("brand-new", branch=None, poll_at=one.now + 1)


def hostile(one: Seeder) -> None:
    """A target all of whose texts attack the page, or are too long for it."""
    name = 'evil"><img src=x onerror=alert(1)>'
    bad = {"branch": story.HOSTILE_BRANCH, "poll_failures": 17, "created_at": one.now}
    bad["location"] = "https://user:pa55w0rd@git.example/" + "deep/" * 30 + "repo.git?x=<script>alert(1)</script>"
    bad["poll_error"] = "fatal: could not read: <script>alert(4)</script> " + "E" * 300
    target = one.target(name, **bad)
    recipe = one.give_recipe(target, recipe_text(one.story.cases) + "# </pre><script>alert(5)</script>\n")
    subject = story.HOSTILE_BRANCH * 8
    made = one.revision(target, parent=None, ordinal=0, subject=subject, author=story.BIDI, committed_at=one.now - HOUR)
    run = one.run(made, "h200", recipe_id=recipe.id)
    provider = "p" * 80
    for case in one.story.cases[:8]:
        facts: dict[str, Any] = {
            "code": "0123456789abcdef",
            "triton": [{"name": LONG_KERNEL + "<script>", "registers": 40}],
            "<b>key</b>" + "k" * 120: "</td><script>alert(6)</script>" * 5,
            "ran": [f"{LONG_KERNEL}{n}" for n in range(30)],
        }
        columns = {
            "run_id": run.id,
            "case": case,
            "state": "measured",
            "median": 100.0,
            "gb_s": 1000.0,
            "trials": 3,
        }
        for role, by in (("head", provider), ("sota", "quack")):
            contender = f"{role}:{by}"
            one.session.add(
                m.Measurement(**columns, contender=contender, role=role, provider=by, facts=facts, rounds=12)
            )
        reason = "<img src=x onerror=alert(7)> [click](javascript:alert(8)) there is no earlier revision"
        one.session.add(
            m.VerdictRow(
                run_id=run.id, provider=provider, case=case, baseline_kind="parent", outcome="new", reason=reason
            )
        )
    one.places.hostile, one.places.hostile_target = run.id, name


def pulls(one: Seeder) -> None:
    """Open pull requests: measured, held, superseded; one with 120 slow cases."""
    size, chance, cases = one.story.size, one.story.chance, one.story.cases
    base = one.line[-10]
    hostile = (story.WORDY, story.BIDI, story.UNBROKEN, story.HOSTILE_BRANCH)
    for place in range(size.pulls):
        number = 900 + place
        subject = hostile[place % 4] if place % 5 == 0 else chance.choice(story.SUBJECTS).format(n=number)
        at = one.now - (size.pulls - place) * 3 * HOUR
        head = one.revision(one.norms, parent=base.sha, ordinal=None, subject=subject, committed_at=at)
        one.add(m.Pull(target_id=one.norms.id, number=number, head=head.sha, version=1, updated_at=at))
        left = size.pulls - place
        state = {3: RunState.HELD, 5: RunState.SUPERSEDED}.get(place % 10, RunState.DONE)
        why = {RunState.HELD: "it comes from a fork", RunState.SUPERSEDED: "a newer head"}.get(state)
        request = {"pull": number, "priority": Priority.PULL_REQUEST, "baseline": base.sha, "reason": why}
        telemetry = one.telemetry(cases[:2]) if state is RunState.DONE else None
        run = one.run(head, "h200", state, **request, telemetry=telemetry)
        if state is not RunState.DONE or left > 15:
            continue
        changes = dict.fromkeys(cases[5:9], 1.11) if place % 4 == 2 else {}
        if left == 6:
            changes = {case: 1.0 + 0.3 * chance.random() for case in cases[:120]}
            one.places.pull, one.places.pull_number = run.id, number
        one.measure(run, one.levels, changes)
        keys = f"{one.norms.id}:{number}"
        refused = "403 Resource not accessible by integration" if place % 7 == 0 else None
        for kind, error in (("comment", None), ("check", refused)):
            state_of = "failed" if error else "sent"
            one.session.add(
                m.OutboxMessage(
                    key=f"{kind}:{keys}",
                    kind=kind,
                    target_id=one.norms.id,
                    run_id=run.id,
                    payload={},
                    state=state_of,
                    error=error,
                )
            )
