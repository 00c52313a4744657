"""What goes with an ever longer past besides measurements: closed regressions, ended bisections, messages, webhooks.

Each copy lies as far before the original as the copy of the mainline that it belongs to.
"""

from collections.abc import Callable, Mapping

from sqlalchemy import Connection, text

_DAY_S = 86400.0
# Their ids are in the order of time, so those of the copies must be smaller.
NUMBERED = ("regressions", "regression_events", "incidents", "bisections", "outbox_messages", "deliveries")
Insert = Callable[[Connection, str, dict[str, str], str], None]


def copy_events(connection: Connection, back: int, ago: float, insert: Insert, copied: str, first_id: int) -> None:
    """Write what happened with the copied runs: `back` are the ids, and `ago` the seconds, that a copy is before.

    `copied` selects the ids of the runs of which there are copies, from `:first` on, which is `first_id`.
    """
    run = f"(SELECT run.id - {back} FROM runs AS run WHERE run.id = {{}} AND run.id IN ({copied}))"
    of_run = f"run_id IN ({copied})"
    fixed = f"coalesce(fixed_at, opened_at + {3 * _DAY_S}) - {ago}"
    ours = f"SELECT id FROM regressions WHERE {of_run} AND id >= :first"
    ended = f"coalesce(finished_at, created_at + {_DAY_S / 4}) - {ago}"
    incident = f"incident_id - {back}"
    before = {"id": f"id - {back}"}
    copies: Mapping[str, tuple[dict[str, str], str]] = {
        "attempts": ({"run_id": f"run_id - {back}", **_past(ago, "started_at", "finished_at")}, of_run),
        "incidents": (
            before
            | {"revision_id": f"revision_id - {back}", "closed_at": f"coalesce(closed_at, opened_at + 1e5) - {ago}"}
            | _past(ago, "opened_at"),
            f"id IN (SELECT incident_id FROM regressions WHERE {of_run})",
        ),
        "regressions": (
            before
            | _past(ago, "opened_at", "due_at")
            | {"run_id": f"run_id - {back}", "incident_id": incident, "state": "'fixed'", "until": "NULL"}
            | {"fixed_at": fixed, "fixed_by": f"coalesce({run.format('fixed_by')}, run_id - {back})"},
            of_run,
        ),
        "regression_events": (
            before
            | _past(ago, "at")
            | {"regression_id": f"regression_id - {back}", "run_id": run.format("regression_events.run_id")},
            f"regression_id IN ({ours})",
        ),
        "bisections": (
            before
            | _past(ago, "created_at")
            | {"state": "CASE state WHEN 'range' THEN state ELSE 'found' END", "finished_at": ended}
            | {"incident_id": "NULL"},
            "TRUE",
        ),
    }
    for table, (changed, where) in copies.items():
        first = "TRUE" if table == "attempts" else "id >= :first"
        insert(connection, table, changed, f"{table} WHERE {where} AND {first}")
    _write_messages(connection, back, copied, first_id)


def _past(ago: float, *columns: str) -> dict[str, str]:
    return {column: f"{column} - {ago}" for column in columns}


def _write_messages(connection: Connection, back: int, copied: str, first_id: int) -> None:
    """A webhook for each copied run, the check that was sent for it, and an entry of the audit log."""
    there = f"FROM runs WHERE id IN (SELECT id - {back} FROM runs WHERE id IN ({copied}))"
    connection.execute(
        text(
            "INSERT INTO outbox_messages (id, key, kind, target_id, run_id, payload, state, version, attempts, next_at,"
            " created_at) SELECT id, 'check:' || id, 'check', target_id, id, '{}', 'sent', 1, 1, 0,"
            f" coalesce(finished_at, created_at) {there}"
        ),
        {"first": first_id},
    )
    connection.execute(
        text(
            "INSERT INTO deliveries (id, guid, event, forge_kind, body, received_at, processed_at, attempts, outcome) "
            "SELECT id, md5(dedupe), 'push', 'github', convert_to(repeat(md5(dedupe), 60), 'UTF8'), created_at,"
            f" created_at, 1, 'queued run ' || id {there}"
        ),
        {"first": first_id},
    )
    connection.execute(
        text(
            "INSERT INTO audit_entries (at, actor_kind, actor, action, object, details) "
            f"SELECT created_at, 'person', 'ada', 'run.repeat', 'run ' || id, '{{}}' {there} ORDER BY id"
        ),
        {"first": first_id},
    )
