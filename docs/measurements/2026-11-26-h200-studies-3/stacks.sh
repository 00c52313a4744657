#!/usr/bin/env bash
# Releases of Triton and Quack judged by the service, and two stacks isolated, on a GPU host without a package index.
# Usage: stacks.sh STEP[:ARGUMENT...]...
# GIFTS has b/site.tar.xz (the wheels of requirements.txt, unpacked, without tests), b/debs/ (bubblewrap), c/triton-new.tar.xz (a wheel of Triton NEW_TRITON,
# unpacked, without AMD, Proton, CUPTI and the ptxas of Blackwell, its libraries stripped, and its entry_points.txt and
# RECORD without them) and b/quack_kernels-*.whl; steps.sh has unpacked Quack 0.6.5 into /tmp/q before.
set -uo pipefail
TREE=$(cd "$(dirname "$0")/../../.." && pwd)
GIFTS=${GIFTS:-$TREE/.gpu} PLACE=${PLACE:-/tmp/kw} PYTHON=${PYTHON:-/opt/torch/.venv/bin/python3} DEVICE=${DEVICE:-h200}
QUACK=${QUACK:-/tmp/q} OLD_TRITON=${OLD_TRITON:-3.6.0} NEW_TRITON=${NEW_TRITON:-3.7.1} OLD_QUACK=${OLD_QUACK:-0.6.4}
export OUT=${OUT:-$PLACE/out} PYTHONUNBUFFERED=1 PYTHONPATH=$PLACE/site:$PLACE/tree
export KERNELWATCH_STATE=$PLACE/state KERNELWATCH_ALLOWED_ROOTS="[\"$PLACE\"]" KERNELWATCH_PORT=${PORT:-8712}
export KERNELWATCH_QUEUE_POLL_S=0.5 KERNELWATCH_SESSION_LIMIT_S=${SESSION_LIMIT_S:-220}
kw() { "$PYTHON" -P -m service.cli "$@"; }
mkdir -p "$PLACE" "$OUT"

site() {
    mkdir -p "$PLACE/tree" "$PLACE/site" "$PLACE/debs"
    cp -r "$TREE"/{service,kernels,workers,dashboards,examples,kernelwatch} "$PLACE/tree/"
    for deb in "$GIFTS"/b/debs/*.deb; do dpkg -x "$deb" "$PLACE/debs"; done
    command -v bwrap || cp "$PLACE/debs/usr/bin/bwrap" /usr/bin/
    find "$PLACE/debs" -name "lib*.so.*" | while read -r library; do
        known=$(basename "$library" | sed 's/\(\.so\.[0-9]*\).*/\1/')
        ldconfig -p | grep -q "$known" || cp -P "$library" /usr/lib/x86_64-linux-gnu/
    done
    ldconfig
    tar -C "$PLACE/site" -xJf "$GIFTS/b/site.tar.xz"
    kw db upgrade
}

triton() {  # the new one as a folder and as a wheel, and the host's own as a wheel
    mkdir -p "$PLACE/triton-new" "$PLACE/wheels"
    tar -C "$PLACE/triton-new" -xJf "$GIFTS/c/triton-new.tar.xz"
    wheel "$PLACE/triton-new" "$NEW_TRITON"
    local where
    where=$("$PYTHON" -c "import triton, pathlib; print(pathlib.Path(triton.__file__).parents[1])")
    wheel "$where" "$OLD_TRITON"
    cp "$GIFTS"/b/quack_kernels-*.whl "$PLACE/wheels/"
    ls -la "$PLACE/wheels"
}
wheel() {  # FOLDER VERSION: not compressed
    "$PYTHON" - "$1" "$PLACE/wheels/triton-$2-$TAG.whl" triton "triton-$2.dist-info" <<'PY'
import pathlib, sys, zipfile
where = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(sys.argv[2], "w") as archive:
    for name in sys.argv[3:]:
        for path in sorted((where / name).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(where))
PY
}
TAG=$("$PYTHON" -c "import sys; v = '%d%d' % sys.version_info[:2]; print(f'cp{v}-cp{v}-linux_x86_64')")

stacks() {
    local dsl=$QUACK/nvidia_cutlass_dsl/dsl_packages
    mkdir -p "$PLACE/quack-old"
    "$PYTHON" -m zipfile -e "$GIFTS"/b/quack_kernels-"$OLD_QUACK"-*.whl "$PLACE/quack-old"
    kw stack adopt host --python "$PYTHON" --path "$QUACK" --path "$dsl"
    kw stack adopt old --python "$PYTHON" --path "$PLACE/quack-old" --path "$QUACK" --path "$dsl"
    kw stack adopt new --python "$PYTHON" --path "$PLACE/triton-new" --path "$QUACK" --path "$dsl"
    kw stack list
}

repository() {  # its own function does not matter: built-in providers are measured
    mkdir -p "$PLACE/norms" && cd "$PLACE/norms" || exit
    [ -d .git ] || git init -q -b main
    printf 'import torch\n\n\ndef forward(x, weight, eps):\n    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)\n' > plain.py
    cat > kernelwatch.toml <<TOML
devices = ["$DEVICE"]
suite = "few"
sota = "inductor"

[providers.plain]
rmsnorm.fwd = "plain:forward"

[suites]
few = [${CASES:-"\"rmsnorm.fwd.32768x1024.bf16-fp32\", \"rmsnorm.fwd.8192x8192.bf16-fp32\", \"rmsnorm.bwd.32768x1024.bf16-fp32\", \"layernorm.bwd.8192x8192.bf16-fp32\""}]
TOML
    git add -A && git -c user.name=me -c user.email=me@example.org commit -qm first || true
}

isolate() {
    cd "$PLACE/norms" || exit
    # shellcheck disable=SC2086
    timeout ${ISOLATE_S:-200} "$PYTHON" -P -m service.cli isolate ./ --from old --to new ${PROVIDERS:---provider inductor --provider quack --provider triton} \
        --trials "${TRIALS:-3}" --max-trials "${TRIALS:-3}" --save "$OUT" > "$OUT/isolate.txt" 2> "$OUT/isolate.err.txt"
    echo "isolate ended with $?"
    tail -c 1500 "$OUT/isolate.err.txt"
    cut -c1-220 "$OUT/isolate.txt" | head -60
}

start() {
    setsid "$PYTHON" -P -m service.cli up >> "$PLACE/up.log" 2>&1 < /dev/null &
    echo $! > "$PLACE/up.pid"
    for _ in $(seq 60); do curl -fs "http://127.0.0.1:$KERNELWATCH_PORT/readyz" && break || sleep 0.5; done
}

stop() {  # the whole process session of `up`: a worker that is left holds the device
    kill -TERM -- "-$(cat "$PLACE/up.pid")"
    for _ in $(seq 40); do kill -0 -- "-$(cat "$PLACE/up.pid")" 2> /dev/null && sleep 0.5 || break; done
}

release() {  # EXAMPLE PACKAGE VERSION: against the release before it, through the service, with the cases of suite `short`
    local name=$1 package=$2 version=$3
    sed -e "s/^devices = .*/devices = [\"$DEVICE\"]/" -e "s/^suite = .*/suite = \"${SUITE:-short}\"/" ${SOTA:+-e "s/^sota = .*/sota = \"$SOTA\"/"} \
        "$TREE/examples/$name/recipe.toml" > "$PLACE/$name.toml"
    [ -z "${CASES:-}" ] || sed -i "s/^\[suites\]/[suites]\nfew = [$CASES]/" "$PLACE/$name.toml"
    kw target add "$name" "$PLACE/wheels" --package "$package" --recipe "$PLACE/$name.toml" --trusted --backfill 0
    timeout "${RELEASE_S:-230}" "$PYTHON" -P -m service.cli run start "$name" "$version" --wait > "$OUT/release-$name.txt" 2> "$OUT/release-$name.err.txt"
    echo "release of $name ended with $?"
    tail -c 600 "$OUT/release-$name.err.txt"
    cut -c1-220 "$OUT/release-$name.txt" | head -60
}

keep() {  # what the service has of its runs, and the database
    for run in $(kw run list --format json | "$PYTHON" -c 'import json, sys; print(*(run["id"] for run in json.load(sys.stdin)["items"]))'); do
        kw report "$run" --all --format md > "$OUT/run-$run.md" || true
    done
    "$PYTHON" -c "import sqlite3, sys; a = sqlite3.connect(sys.argv[1]); b = sqlite3.connect(sys.argv[2]); a.backup(b)" "$PLACE/state/kernelwatch.db" "$PLACE/copy.db"
    xz -T0 -c "$PLACE/copy.db" > "$OUT/kernelwatch.db.xz"
    tail -c 3000 "$PLACE/up.log" > "$OUT/up.txt"
    ls -la "$OUT"
}

for step in "$@"; do
    echo "== $step ($(date +%T))"
    # shellcheck disable=SC2086
    ${step//:/ } || echo "!! $step failed"
done
