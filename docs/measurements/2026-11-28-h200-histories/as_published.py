"""A service's database with the ids that the public repository has: `as_published.py FROM.db.xz TO.db.gz`.

The mirror from which the history came lacks one resource of the tests, so that the commits were written again without
it, and have other ids (ids.txt).  Runs that were skipped or had not ended, and targets without a run, are left out.
"""

import gzip
import lzma
import re
import sqlite3
import sys
import tempfile
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
        rows.execute("DELETE FROM targets WHERE id NOT IN (SELECT target_id FROM runs)")
        for table in ("revisions", "pushes", "recipes", "series"):
            rows.execute(f"DELETE FROM {table} WHERE target_id NOT IN (SELECT id FROM targets)")
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


if __name__ == "__main__":
    main()
