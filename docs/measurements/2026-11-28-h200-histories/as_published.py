"""A service's database with the ids that the public repository has, judged by today's code: `as_published.py FROM TO`.

The mirror from which the history came lacks one resource of the tests, so that the commits were written again without
it, and have other ids (ids.txt).  Runs that were skipped or had not ended are left out.  Judged again is what a change
of the code after the session concerns: cases of equal code that were undecided, causes at wrong parents, and the
regressions that these open.
"""

import gzip
import lzma
import os
import re
import sqlite3
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parent
HEX = re.compile(r"\b[0-9a-f]{7,40}\b")
LEFT_OUT = ("workers", "outbox_messages", "api_keys", "audit_entries", "sign_ins", "accounts", "write_probes")


def main() -> None:
    source, goal = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "kernelwatch.db")
        database.write_bytes(lzma.decompress(source.read_bytes()))
        renamed(database)
        os.environ["KERNELWATCH_STATE"] = folder
        from service.db import migrate

        migrate.upgrade()
        judged_again()
        whole = Path(folder, "whole.db")
        with sqlite3.connect(database, isolation_level=None) as rows:
            rows.execute(f"VACUUM INTO '{whole}'")
        goal.write_bytes(gzip.compress(whole.read_bytes(), 9, mtime=0))


def renamed(database: Path) -> None:
    """Write the published ids wherever a text has another: whole, or the first seven to forty digits of it."""
    published = dict(line.split() for line in (HERE / "ids.txt").read_text().splitlines())
    by_start = {own[:7]: (own, other) for own, other in published.items()}
    assert len(by_start) == len(published)

    def other(found: re.Match[str]) -> str:
        own, theirs = by_start.get(found[0][:7], ("", ""))
        return theirs[: len(found[0])] if own.startswith(found[0]) else found[0]

    with sqlite3.connect(database) as rows:
        tables = [name for (name,) in rows.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows.execute("PRAGMA foreign_keys = OFF")
        rows.execute("DELETE FROM attempts WHERE run_id IN (SELECT id FROM runs WHERE state != 'done')")
        rows.execute("DELETE FROM runs WHERE state != 'done'")
        measured = "(SELECT max(ordinal) FROM revisions WHERE id IN (SELECT revision_id FROM runs))"
        rows.execute(f"DELETE FROM revisions WHERE ordinal > {measured}")
        for table in tables:
            if table in LEFT_OUT:
                rows.execute(f"DELETE FROM {table}")
            for row in rows.execute(f"SELECT rowid, * FROM {table}").fetchall():
                columns = [each[1] for each in rows.execute(f"PRAGMA table_info({table})")]
                texts = {name: value for name, value in zip(columns, row[1:], strict=True) if isinstance(value, str)}
                new = {name: HEX.sub(other, value) for name, value in texts.items()}
                changed = {name: value for name, value in new.items() if value != texts[name]}
                if changed:
                    names = ", ".join(f"{name} = ?" for name in changed)
                    rows.execute(f"UPDATE {table} SET {names} WHERE rowid = ?", (*changed.values(), row[0]))
        rows.execute("UPDATE targets SET location = 'https://github.com/linkedin/Liger-Kernel'")


def judged_again() -> None:
    from sqlalchemy import text

    from service.db.engine import transaction
    from service.db.models import RecipeRow, VerdictRow
    from service.domain.attribution.collect import against_baseline
    from service.domain.policy import recipes
    from service.domain.states import BaselineKind
    from service.domain.verdicts.baselines import judge_baseline
    from service.domain.verdicts.judge import judge
    from service.domain.verdicts.reasons import ReasonCode
    from service.domain.verdicts.session_result import baseline_cases
    from service.ledger.health import totals
    from service.ledger.regressions import after_run
    from service.ledger.runs import baseline_rows
    from service.ledger.runs.reload import rebuilt
    from service.ledger.server_policy import effective

    with transaction() as session:
        for stored in rebuilt(session):
            policy = effective(recipes.parse(session.get_one(RecipeRow, stored.run.recipe_id).text), stored.run.device)
            own = {(row.provider, row.case, row.baseline_kind): row for row in stored.run.verdicts}
            for (provider, case), verdict in judge(stored.cells(policy), policy).items():
                row = own[provider, case, BaselineKind.PARENT]
                if verdict.reason.code is ReasonCode.EQUAL_CODE and row.outcome == "inconclusive":
                    row.outcome = verdict.outcome.value
                    baseline_rows.explained(row, verdict.reason)
            result = replace(stored.result, telemetry=stored.run.telemetry)
            kind = BaselineKind.WRONG_PARENT
            again = judge_baseline(kind, baseline_cases(kind, result), policy)
            for name, verdict in again.items():
                baseline_rows.explained(own[(*name, kind)], verdict.reason)
            for name, cause in against_baseline(result, kind, again).items():
                row: VerdictRow = own[(*name, kind)]
                baseline_rows.measured(row, None, cause)
            totals.note(session, stored.run, stored.run.verdicts)
            session.flush()
            after_run.note_regressions(session, stored.run, policy)
            session.flush()
        at = "(SELECT finished_at FROM runs WHERE id = {})"
        session.execute(
            text(f"UPDATE regressions SET opened_at = {at.format('run_id')}, fixed_at = {at.format('fixed_by')}")
        )
        session.execute(text(f"UPDATE regression_events SET at = {at.format('run_id')}"))
        opened = "(SELECT min(opened_at) FROM regressions WHERE incident_id = incidents.id)"
        session.execute(text(f"UPDATE incidents SET opened_at = {opened}"))


if __name__ == "__main__":
    main()
