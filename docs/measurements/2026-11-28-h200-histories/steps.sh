#!/usr/bin/env bash
# The service watches public histories on a GPU host that has torch, Triton and Python 3.12, but no package index.
# Usage: steps.sh unpack | site | truth NAME [FILE] | serve | second | measure NAME RANGE | wait SECONDS | keep
# NAME is liger or flaggems.  One service watches both; GPU is the index of the GPU of a worker or of a truth.  GIFTS
# holds what was carried: quack.tar.xz, whl/ (wheels of requirements.txt), debs/ (bubblewrap), NAME.git; results go to
# OUT.  With MATTER, a regular expression, only those of the files that matter in the recipe matter that match it.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
TREE=$(cd "$HERE/../../.." && pwd)
GIFTS=${GIFTS:-$TREE/.gpu} PLACE=${PLACE:-/tmp/kw} PYTHON=${PYTHON:-/opt/torch/.venv/bin/python3}
export OUT=${OUT:-$PLACE/out} PYTHONUNBUFFERED=1
declare -A RECIPES=([liger]=history.toml [flaggems]=recipe.toml)
declare -A FORGES=([liger]=linkedin/Liger-Kernel [flaggems]=FlagOpen/FlagGems)

settings() {
    export KERNELWATCH_STATE=$PLACE/state KERNELWATCH_ALLOWED_ROOTS="[\"$PLACE\"]" KERNELWATCH_PORT=8712
    export KERNELWATCH_QUEUE_POLL_S=0.5 KERNELWATCH_SESSION_LIMIT_S=400 CUDA_VISIBLE_DEVICES=${GPU:-0}
    export PYTHONPATH=$PLACE/site:$PLACE/tree
}
kw() { "$PYTHON" -P -m service.cli "$@"; }

unpack() {
    mkdir -p "$PLACE/quack" && tar -C "$PLACE/quack" -xJf "$GIFTS/quack.tar.xz"
}

site() {  # the program is a copy: the checkout may change while it runs
    mkdir -p "$PLACE/tree" "$PLACE/site" "$PLACE/debs"
    cp -r "$TREE"/{service,kernels,kernelwatch,workers,dashboards,examples} "$PLACE/tree/"
    for deb in "$GIFTS"/debs/*.deb; do dpkg -x "$deb" "$PLACE/debs"; done
    command -v bwrap || cp "$PLACE/debs/usr/bin/bwrap" /usr/bin/
    find "$PLACE/debs" -name "lib*.so.*" | while read -r library; do  # only those that the host lacks
        known=$(basename "$library" | sed 's/\(\.so\.[0-9]*\).*/\1/')
        ldconfig -p | grep -q "$known" || cp -P "$library" /usr/lib/x86_64-linux-gnu/
    done
    ldconfig && bwrap --version
    "$PYTHON" - "$PLACE/site" "$GIFTS"/whl/*.whl <<'PY'
import sys, zipfile
for wheel in sys.argv[2:]:
    zipfile.ZipFile(wheel).extractall(sys.argv[1])
PY
    mkdir -p "$PLACE/extra"  # FlagGems imports SQLAlchemy
    for wheel in "$GIFTS"/whl/{sqlalchemy,typing_extensions}-*.whl; do
        "$PYTHON" -c "import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])" "$wheel" "$PLACE/extra"
    done
    for name in liger flaggems; do mkdir -p "$PLACE/$name" && cp -r "$GIFTS/$name.git" "$PLACE/$name/"; done
}

recipe_of() {  # NAME: the recipe for this card, with those of the files that matter that match MATTER
    sed -e 's/^devices = .*/devices = ["h200"]/' "$PLACE/tree/examples/$1/${RECIPES[$1]}" > "$PLACE/tree/examples/$1/here.toml"
    [ -z "${MATTER:-}" ] || sed -i -e '/^matter = \[/,/^\]/{/^    /{/'"$MATTER"'/!d}}' "$PLACE/tree/examples/$1/here.toml"
    echo "$PLACE/tree/examples/$1/here.toml"
}

truth() {  # what the commits really do; nobody else is on that device
    # shellcheck disable=SC2086
    CUDA_VISIBLE_DEVICES=${GPU:-0} PYTHONPATH=$PLACE/extra "$PYTHON" "$HERE/truth.py" "$PLACE/$1/$1.git" \
        --recipe "$(recipe_of "$1")" --work "$PLACE/$1/truth" --out "$PLACE/$1/${2:-truth}.json" ${TRUTH:-} \
        > "$PLACE/$1/${2:-truth}.log" 2>&1 || true
}

serve() {
    settings
    kw db upgrade > /dev/null
    local paths=(--path "$PLACE/extra")
    [ ! -d "$PLACE/quack" ] || paths+=(--path "$PLACE/quack" --path "$PLACE/quack/nvidia_cutlass_dsl/dsl_packages")
    kw stack adopt host --python "$PYTHON" "${paths[@]}"
    setsid "$PYTHON" -P -m service.cli up >> "$PLACE/up.log" 2>&1 < /dev/null &
    for _ in $(seq 120); do curl -fs "http://127.0.0.1:$KERNELWATCH_PORT/readyz" > /dev/null && break || sleep 0.5; done
    kw doctor || true
}

second() {  # another worker of the same service, on another GPU
    settings
    setsid "$PYTHON" -P -m service.cli worker start >> "$PLACE/second.log" 2>&1 < /dev/null &
}

measure() {  # NAME RANGE: each revision against its parent; those that touch nothing that matters are skipped
    settings
    kw target add "$1" "$PLACE/$1/$1.git" --recipe "$(recipe_of "$1")" --forge "${FORGES[$1]}" --branch main --trusted --backfill 0
    kw run backfill "$1" "$2"
}

wait_for() {  # SECONDS: until nothing is queued, or the time is over
    local until=$(($(date +%s) + $1))
    while [ "$(date +%s)" -lt "$until" ] && [ "$(open_runs)" -gt 0 ]; do sleep 3; done
    progress
}

open_runs() {
    "$PYTHON" -c "
import sqlite3
rows = sqlite3.connect('file:$PLACE/state/kernelwatch.db?mode=ro', uri=True, timeout=30)
print(rows.execute(\"SELECT count(*) FROM runs WHERE state IN ('queued', 'leased', 'held')\").fetchone()[0])"
}

progress() {
    "$PYTHON" - "$PLACE/state/kernelwatch.db" <<'PY'
import sqlite3, sys
rows = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, timeout=30).execute(
    "SELECT runs.id, substr(sha, 1, 8), subject, state, stage, round(finished_at - started_at) FROM runs"
    " JOIN revisions ON revisions.id = runs.revision_id WHERE state != 'skipped' ORDER BY runs.id")
print("\n".join(" ".join(map(str, row)) for row in rows))
PY
}

keep() {
    settings
    mkdir -p "$OUT"
    "$PYTHON" - "$KERNELWATCH_STATE/kernelwatch.db" "$OUT/kernelwatch.db.gz" <<'PY'
import gzip, pathlib, sqlite3, sys
source, copy = sqlite3.connect(sys.argv[1], timeout=30), sqlite3.connect("/tmp/copy.db")
source.backup(copy)
copy.execute("VACUUM")
copy.close()
pathlib.Path(sys.argv[2]).write_bytes(gzip.compress(pathlib.Path("/tmp/copy.db").read_bytes(), 6))
pathlib.Path("/tmp/copy.db").unlink()
PY
    progress > "$OUT/runs.txt"
    for name in "${!RECIPES[@]}"; do
        for truth in "$PLACE/$name"/truth*.json; do
            gzip -c "$truth" > "$OUT/$name-$(basename "$truth").gz" && cp "${truth%.json}.log" "$OUT/$name-$(basename "${truth%.json}").log" || true
        done
    done
    cat "$PLACE/up.log" "$PLACE/second.log" "$KERNELWATCH_STATE"/logs/*.log > "$OUT/service.log" 2> /dev/null || true
    { nvidia-smi; "$PYTHON" -m pip list 2> /dev/null | grep -iE "^(torch|triton|numpy|scipy) "; uname -a; nproc; } > "$OUT/machine.txt" 2>&1 || true
}

case $1 in wait) shift; wait_for "$@" ;; *) "$@" ;; esac
