#!/usr/bin/env bash
# The main path on a GPU host that has torch, Triton and Python 3.12 but no package index.
# Usage: steps.sh STEP...   Steps: site (packages for the service), quack, smoke, start, own, liger, wait, keep, stop
# GIFTS holds what was carried there: whl/ (wheels of requirements.txt), debs/ (bubblewrap), liger/ (its releases),
# own.bundle (this repository's history), quack.tar.xz (Quack, CUTLASS DSL, Liger).
set -euo pipefail
GIFTS=${GIFTS:-$PWD/.gpu} PLACE=${PLACE:-/tmp/kw} OUT=${OUT:-/tmp/kw/out} PYTHON=${PYTHON:-/opt/torch/.venv/bin/python3}
export PYTHONUNBUFFERED=1 PYTHONPATH=$PLACE/site:$PWD
export KERNELWATCH_STATE=$PLACE/state KERNELWATCH_ALLOWED_ROOTS="[\"$PLACE\"]" KERNELWATCH_SESSION_LIMIT_S=${SESSION_LIMIT_S:-600}
kw() { "$PYTHON" -m service.cli "$@"; }

site() {
    mkdir -p "$PLACE/site"
    for deb in "$GIFTS"/debs/*.deb; do dpkg -x "$deb" "$PLACE/debs"; done
    command -v bwrap || cp "$PLACE/debs/usr/bin/bwrap" /usr/bin/
    for library in $(find "$PLACE/debs" -name "lib*.so.*"); do  # only those that the host lacks
        ldconfig -p | grep -q "$(basename "$library" | sed 's/\(\.so\.[0-9]*\).*/\1/')" || cp -P "$library" /usr/lib/x86_64-linux-gnu/
    done
    ldconfig && bwrap --version
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$PLACE/site" "$GIFTS"/whl/*.whl
    kw db upgrade
}

quack() {
    mkdir -p "$PLACE/quack"
    tar -C "$PLACE/quack" -xJf "$GIFTS/quack.tar.xz"
    ls "$PLACE/quack" | head -50
}

stack() {
    kw stack adopt host --python "$PYTHON" --path "$PLACE/quack" --path "$PLACE/quack/nvidia_cutlass_dsl/dsl_packages"
    kw stack list
}

start() {
    setsid "$PYTHON" -m service.cli up > "$PLACE/up.log" 2>&1 < /dev/null &
    for _ in $(seq 60); do curl -fs http://127.0.0.1:8712/readyz && break || sleep 0.5; done
    kw doctor || true
}

own() {
    rm -rf "$PLACE/own" && git clone -q "$GIFTS/own.bundle" "$PLACE/own"
    kw target add own "$PLACE/own" --recipe examples/own/recipe.toml --branch "${OWN_BRANCH:-main}" --trusted --backfill 0
    for revision in ${OWN_REVISIONS:-HEAD}; do kw run own "$(git -C "$PLACE/own" rev-parse "$revision")" --device h200; done
}

liger() {
    mkdir -p "$PLACE/wheels" && cp "$GIFTS"/liger/*.whl "$PLACE/wheels/"
    cp examples/liger/* "$PLACE/" && sed -i -e 's/^suite = .*/suite = "short"/' -e 's/^devices = .*/devices = ["h200"]/' "$PLACE/recipe.toml"
    kw target add liger "$PLACE/wheels" --package liger-kernel --recipe "$PLACE/recipe.toml" --trusted --backfill 9
}

wait_idle() {
    local until=$((SECONDS + ${WAIT_S:-500}))
    while ((SECONDS < until)); do
        kw status > "$PLACE/status.txt" 2>&1 || true
        grep -qE "h200 .*(queued|leased)" "$PLACE/status.txt" || break
        sleep 5
    done
    cat "$PLACE/status.txt"
}

keep() {
    mkdir -p "$OUT"
    "$PYTHON" - "$KERNELWATCH_STATE/kernelwatch.db" "$OUT/kernelwatch.db" <<'PY'
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as one, sqlite3.connect(sys.argv[2]) as copy:
    one.backup(copy)
    copy.execute("VACUUM")
PY
    gzip -f "$OUT/kernelwatch.db"
    { nvidia-smi; "$PYTHON" -m pip list 2>/dev/null | grep -iE "^(torch|triton|nvidia|numpy)"; uname -a; } > "$OUT/machine.txt"
    cat "$PLACE/up.log" "$KERNELWATCH_STATE"/logs/*.log > "$OUT/service.log" 2>/dev/null || true
    for run in $(seq 1 "${RUNS:-12}"); do kw report "$run" --format md >> "$OUT/reports.md" 2>/dev/null || true; done
    ls -la "$OUT"
}

stop() { pkill -TERM -f "service.cli up" || true; sleep 3; }

for step in "$@"; do
    echo "== $step ($(date +%T))"
    "$step"
done
