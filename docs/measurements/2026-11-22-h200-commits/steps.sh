#!/usr/bin/env bash
# The service watches the repository of commits on a GPU host that has torch, Triton and Python 3.12, but no package index.
# Usage: steps.sh STEP...   A step is a function below; `push:NAME`, `pull:N` and `idle:SECONDS` take one argument.
# A step that fails is named, and the others go on, but for those without which nothing works (NEEDED).
# While `idle` waits it copies the database to OUT every 20 s, so that a call which is cut off returns something.
# GIFTS holds what was carried there: an archive .tar.xz (Quack), whl/ (wheels of requirements.txt), debs/ (bubblewrap).
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
TREE=$(cd "$HERE/../../.." && pwd)
GIFTS=${GIFTS:-$TREE/.gpu} PLACE=${PLACE:-/tmp/kw} PYTHON=${PYTHON:-/opt/torch/.venv/bin/python3} DEVICE=${DEVICE:-h200}
NEEDED="quack repository site stack start watch"
export OUT=${OUT:-$PLACE/out}
export PYTHONUNBUFFERED=1 PYTHONPATH=$PLACE/site:$PLACE/tree
export KERNELWATCH_STATE=$PLACE/state KERNELWATCH_ALLOWED_ROOTS="[\"$PLACE\"]" KERNELWATCH_PORT=${PORT:-8712}
export KERNELWATCH_REMOTE_POLL_S=3 KERNELWATCH_QUEUE_POLL_S=0.5 KERNELWATCH_WEBHOOK_SECRET=${SECRET:-on-this-host-alone}
export KERNELWATCH_SESSION_LIMIT_S=${SESSION_LIMIT_S:-400}
kw() { "$PYTHON" -P -m service.cli "$@"; }
drive() { "$PYTHON" "$HERE/drive.py" "$@"; }

quack() {
    rm -rf "$PLACE/quack" && mkdir -p "$PLACE/quack"
    tar -C "$PLACE/quack" -xJf "$(ls "$GIFTS"/*.tar.xz | head -1)"
    ls "$PLACE/quack" | wc -l
    [ "$PLACE" != /tmp/kw ] || ln -sfn "$PLACE/quack" /tmp/quack
}

repository() {  # all commits in full/, and in warpnorm/, which is watched, a mainline that moves when `push` says so
    mkdir -p "$PLACE"
    rm -rf "$PLACE/full"
    "$PYTHON" "$HERE/build.py" "$PLACE/full" > "$PLACE/commits.txt"
    mirror warpnorm "${START_AT:-import}"
    wc -l < "$PLACE/commits.txt"
}

truth() {  # what the commits really do; nobody else is on the device
    mkdir -p "$OUT"
    # shellcheck disable=SC2086
    "$PYTHON" "$HERE/truth.py" "$PLACE/full" --work "$PLACE/truth" --out "$PLACE/truth.json" ${TRUTH:-} 2>&1 | tee "$PLACE/truth.log"
    gzip -c "$PLACE/truth.json" > "$OUT/truth.json.gz"
    cp "$PLACE/truth.log" "$OUT/"
}

program() {  # the service runs from a copy: the checkout may change while it runs
    mkdir -p "$PLACE/tree"
    cp -r "$TREE"/{service,kernels,workers,dashboards,examples} "$PLACE/tree/"
}

site() {
    program
    mkdir -p "$PLACE/site"
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
    kw db upgrade
}

stack() {
    if [ -d "$PLACE/quack" ]; then
        kw stack adopt host --python "$PYTHON" --path "$PLACE/quack" --path "$PLACE/quack/nvidia_cutlass_dsl/dsl_packages"
    else
        kw stack adopt host --python "$PYTHON"
    fi
}

start() {
    setsid "$PYTHON" -P -m service.cli up >> "$PLACE/up.log" 2>&1 < /dev/null &
    echo $! > "$PLACE/up.pid"
    for _ in $(seq 120); do curl -fs "http://127.0.0.1:$KERNELWATCH_PORT/readyz" && break || sleep 0.5; done
    kw doctor || true
}

watch() {  # the twelve cases, from the first commit on
    sed -e "s/^devices = .*/devices = [\"$DEVICE\"]/" "${RECIPE:-$HERE/recipe.toml}" > "$PLACE/recipe.toml"
    kw target add warpnorm "$PLACE/warpnorm" --recipe "$PLACE/recipe.toml" --forge okafor/warpnorm --branch main --trusted --backfill 0
    drive known "$(git -C "$PLACE/warpnorm" rev-parse main)"
}

references() {  # a second target on the same commits: a pinned slow baseline, and every other baseline there is
    sed -e "s/^devices = .*/devices = [\"$DEVICE\"]/" "${REFERENCES:-$HERE/references.toml}" > "$PLACE/references.toml"
    mirror references "${REFERENCES_TO:-true-width}"
    kw target add references "$PLACE/references" --recipe "$PLACE/references.toml" --branch main --trusted --backfill 2
}

nightly() {  # a third one, calibrated soon after a revision is measured: a night is three minutes long
    sed -e "s/^devices = .*/devices = [\"$DEVICE\"]/" "${NIGHTLY:-$HERE/nightly.toml}" > "$PLACE/nightly.toml"
    mirror nightly "${NIGHTLY_AT:-only-strange-gradients}"
    kw target add nightly "$PLACE/nightly" --recipe "$PLACE/nightly.toml" --branch main --trusted --backfill 1
}

mirror() {  # FOLDER NAME: a copy of the repository whose mainline ends at that commit
    rm -rf "${PLACE:?}/$1"
    git clone -q --mirror "$PLACE/full" "$PLACE/$1"
    git -C "$PLACE/$1" update-ref refs/heads/main "$(commit_of "$2")"
}

commit_of() { sed -n "s/^\([0-9a-f]*\) $1\$/\1/p" "$PLACE/commits.txt"; }

push() {  # the mainline moves to this commit, and the service polls it
    git -C "$PLACE/warpnorm" update-ref refs/heads/main "$(commit_of "$1")"
    drive known "$(commit_of "$1")"
}

pull() {  # the forge tells of a pull request
    drive pull "$1" "$(git -C "$PLACE/full" rev-parse "refs/pull/$1/head")" "$(git -C "$PLACE/full" merge-base main "refs/pull/$1/head")"
}

facts() {  # both pull requests and one commit, compiled without the GPU
    mkdir -p "$PLACE/facts"
    for one in ${FACTS:-any-stride layer-single plain-result}; do
        kw facts warpnorm "$(commit_of "$one")" --arch sm_90 --format md > "$PLACE/facts/$one.md" 2> "$PLACE/facts/$one.err" || true
    done
}

idle() { drive idle "$1"; }

calibrate() { kw calibration run warpnorm --device "$DEVICE"; }

calibrated() { drive calibrated "$1"; }

pages() {
    mkdir -p "$PLACE/pages"
    drive pages "$PLACE/pages" || true
}

keep() {
    mkdir -p "$OUT"
    drive copy "$OUT/kernelwatch.db.gz"
    { nvidia-smi; "$PYTHON" -m pip list 2>/dev/null | grep -iE "^(torch|triton|nvidia|numpy|scipy)"; uname -a; nproc; } > "$OUT/machine.txt" 2>&1 || true
    cat "$PLACE/up.log" "$KERNELWATCH_STATE"/logs/*.log > "$OUT/service.log" 2> /dev/null || true
    cp "$PLACE/commits.txt" "$OUT/"
    kw status > "$OUT/status.txt" 2>&1 || true
    tar -C "$PLACE" -czf "$OUT/pages.tar.gz" $(cd "$PLACE" && ls -d pages facts 2> /dev/null) || true
    ls -la "$OUT"
}

stop() { kill -TERM "$(cat "$PLACE/up.pid")" && sleep 3; }

one() { case $1 in *:*) "${1%%:*}" "${1#*:}" ;; *) "$1" ;; esac }

if [ "$1" = --one ]; then
    one "$2"
    exit
fi
for step in "$@"; do
    echo "== $step ($(date +%T))"
    if ! bash "$0" --one "$step"; then
        echo "!! $step failed"
        case " $NEEDED " in *" ${step%%:*} "*) bash "$0" --one keep || true; exit 1 ;; esac
    fi
done
echo "== done ($(date +%T))"
