"""`kernelwatch db`: migrate, copy and check the database."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from service.commands import views
from service.commands.noun import Noun, Where
from service.commands.output.console import err, out
from service.commands.output.views import View
from service.db import migrate
from service.db.check import Checked

db_app = Noun("Manage the database.", where=Where.ONLY_HERE)


@db_app.verb("upgrade")
def upgrade() -> None:
    """Migrate the database to the schema of this version."""
    migrate.upgrade()
    out.print("The database is up to date.")


@db_app.verb("backup")
def backup(
    file: Annotated[Path, typer.Argument(help="A new file, for example kernelwatch-2026-11-22.db.gz.")],
) -> None:
    """Write a copy of the database to FILE while the service runs."""
    from service.db import backup as copies

    made = copies.backup(file)
    out.print(f"Wrote {file}: {_summary(made)}.", markup=False, soft_wrap=True)
    _print_problems(made.faults)


@db_app.verb("restore")
def restore(
    file: Annotated[Path, typer.Argument(help="A backup of any database and of this version or an older one.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a database that has rows; they are lost.")] = False,
) -> None:
    """Replace the database by a backup.  Stop every process of kernelwatch first."""
    from service.db import backup

    restored = backup.restore(file, force=force)
    out.print(f"Restored {file}: {_summary(restored)}.", markup=False, soft_wrap=True)
    _print_problems(restored.faults)


@db_app.verb("check")
def check(
    file: Annotated[Path | None, typer.Argument(help="A backup; by default the database of the settings.")] = None,
) -> View:
    """Check integrity, schema and references, and count the rows.  Exits with 1 if something is wrong."""
    from service.db import backup
    from service.db import check as checks
    from service.db.engine import reading

    if file is not None:
        return views.machine.database(backup.check_backup(file))
    with reading() as session:
        return views.machine.database(checks.check(session.connection()))


@db_app.verb("prune")
def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be deleted.")] = False,
) -> View:
    """Delete what has expired now; control does so as well.  Medians, verdicts and regressions stay."""
    from service.ledger import retention

    return views.machine.pruned(retention.due() if dry_run else retention.prune(), dry_run=dry_run)


@db_app.verb("size")
def size() -> View:
    """Print the tables by size."""
    from service.db.engine import reading
    from service.db.size import sizes

    with reading() as session:
        return views.machine.table_sizes(sizes(session))


def _print_problems(problems: Sequence[str]) -> None:
    for problem in problems:
        err.print(f"Problem: {problem}.", markup=False, soft_wrap=True)


def _summary(found: Checked) -> str:
    filled = [count for count in found.rows.values() if count]
    return f"{sum(filled):,} rows in {len(filled)} tables, migration {found.revision}"
