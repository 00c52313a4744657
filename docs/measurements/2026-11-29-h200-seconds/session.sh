#!/usr/bin/env bash
# A whole service on one GPU: seconds from lease to verdict of commits of Liger-Kernel, run after run.
# Usage: session.sh unpack | place | tree NAME [ARCHIVE] | measure NAME REVISION... | keep NAME
# GIFTS holds what was carried: quack.tar.xz, whl/ (wheels of requirements.txt), debs/ (bubblewrap), liger.git, and the
# ARCHIVE of another version; without one NAME is this checkout.  Results go to OUT.
set -euo pipefail
TREE=$(cd "$(dirname "$0")/../../.." && pwd)
GIFTS=${GIFTS:-$TREE/.gpu2} PLACE=${PLACE:-/tmp/kw} PYTHON=${PYTHON:-/opt/torch/.venv/bin/python3}
export OUT=${OUT:-$PLACE/out} PYTHONUNBUFFERED=1

settings() {
    export KERNELWATCH_STATE=$PLACE/$1/state KERNELWATCH_ALLOWED_ROOTS="[\"$PLACE\"]" KERNELWATCH_PORT=8712
    export KERNELWATCH_QUEUE_POLL_S=0.5 CUDA_VISIBLE_DEVICES=0 PYTHONPATH=$PLACE/site:$PLACE/$1/tree
}
kw() { "$PYTHON" -P -m service.cli "$@"; }

unpack() { mkdir -p "$PLACE/quack" && tar -C "$PLACE/quack" -xJf "$GIFTS/quack.tar.xz"; }

place() {
    mkdir -p "$PLACE/site" "$PLACE/debs" "$OUT"
    for deb in "$GIFTS"/debs/*.deb; do dpkg -x "$deb" "$PLACE/debs"; done
    command -v bwrap || cp "$PLACE/debs/usr/bin/bwrap" /usr/bin/
    find "$PLACE/debs" -name "lib*.so.*" | while read -r library; do  # only those that the host lacks
        known=$(basename "$library" | sed 's/\(\.so\.[0-9]*\).*/\1/')
        ldconfig -p | grep -q "$known" || cp -P "$library" /usr/lib/x86_64-linux-gnu/
    done
    ldconfig
    "$PYTHON" - "$PLACE/site" "$GIFTS"/whl/*.whl <<'PY'
import sys, zipfile
for wheel in sys.argv[2:]:
    zipfile.ZipFile(wheel).extractall(sys.argv[1])
PY
    cp -r "$GIFTS/liger.git" "$PLACE/"
    { nvidia-smi; "$PYTHON" -m pip list 2> /dev/null | grep -iE "^(torch|triton|numpy|scipy) "; uname -a; nproc; } > "$OUT/machine.txt"
}

tree() {
    mkdir -p "$PLACE/$1/tree"
    if [ -n "${2:-}" ]; then tar -C "$PLACE/$1/tree" -xJf "$2"; else cp -r "$TREE"/{service,kernels,kernelwatch,workers,dashboards,examples} "$PLACE/$1/tree/"; fi
    settings "$1"
    kw db upgrade > /dev/null
    kw stack adopt host --python "$PYTHON" --path "$PLACE/quack" --path "$PLACE/quack/nvidia_cutlass_dsl/dsl_packages"
    sed 's/^devices = .*/devices = ["h200"]/' "$PLACE/$1/tree/examples/liger/history.toml" > "$PLACE/$1/tree/examples/liger/here.toml"
    kw target add liger "$PLACE/liger.git" --recipe "$PLACE/$1/tree/examples/liger/here.toml" --branch main --trusted --backfill 0
}

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

keep() {
    settings "$1"
    "$PYTHON" - "$KERNELWATCH_STATE/kernelwatch.db" "$OUT/$1.db.gz" <<'PY'
import gzip, pathlib, sqlite3, sys
source, copy = sqlite3.connect(sys.argv[1], timeout=30), sqlite3.connect("/tmp/copy.db")
source.backup(copy)
copy.execute("VACUUM")
copy.close()
pathlib.Path(sys.argv[2]).write_bytes(gzip.compress(pathlib.Path("/tmp/copy.db").read_bytes(), 6))
pathlib.Path("/tmp/copy.db").unlink()
PY
    tail -c 200000 "$PLACE/$1/up.log" > "$OUT/$1.log"
}

"$@"
