#!/usr/bin/env bash
# A whole service on one GPU: seconds from lease to verdict of commits of Liger-Kernel, run after run.
# Usage as of ../2026-11-28-h200-seconds/session.sh, whose other steps these are; here a measurement waits for the runs
# before it, and prints all runs at its end.
source "$(dirname "$0")/../2026-11-28-h200-seconds/session.sh" true

measure() {  # each revision once more, the service started for it alone
    local name=$1; shift
    settings "$name"
    setsid "$PYTHON" -P -m service.cli up >> "$PLACE/$name/up.log" 2>&1 < /dev/null &
    local service=$!
    for _ in $(seq 120); do curl -fs "http://127.0.0.1:$KERNELWATCH_PORT/readyz" > /dev/null && break || sleep 0.5; done
    while [ "$(date +%s)" -lt "${UNTIL:-9999999999}" ] && [ $# -gt 0 ]; do
        kw run start liger "$1" --again --wait --timeout 290 > "$PLACE/$name/last.txt" 2>&1 || tail -3 "$PLACE/$name/last.txt"
        awk '/Mem(Available|Total)/ {printf "%s %d MB; ", $1, $2 / 1024} END {print ""}' /proc/meminfo
        shift
    done
    kill -TERM -- "-$service" 2> /dev/null || kill "$service"
    wait "$service" 2> /dev/null || true
    phases "$name"
}

phases() {
    "$PYTHON" - "$PLACE/$1/state/kernelwatch.db" "$1" <<'PY'
import json, sqlite3, sys
from collections import Counter
rows = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, timeout=30)
for number, sha, state, began, ended, kept in rows.execute(
    "SELECT runs.id, substr(sha, 1, 8), state, started_at, finished_at, telemetry FROM runs"
    " JOIN revisions ON revisions.id = runs.revision_id WHERE state != 'skipped' ORDER BY runs.id").fetchall():
    told = json.loads(kept) if kept else {"trials": []}
    seconds = Counter(told.get("seconds", {}))
    for trial in told["trials"]:
        seconds.update(trial["seconds"])
    outcomes = Counter(row[0] for row in rows.execute("SELECT outcome FROM verdicts WHERE run_id = ? AND baseline_kind = 'parent'", (number,)))
    print(sys.argv[2], number, sha, state, f"{(ended or 0) - (began or 0):.1f} s,", len(told["trials"]), "trials:",
          ", ".join(f"{what} {spent:.1f}" for what, spent in seconds.items()), dict(outcomes), flush=True)
PY
}

"$@"
