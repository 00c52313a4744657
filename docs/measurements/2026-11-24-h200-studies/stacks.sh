#!/usr/bin/env bash
# Releases of Triton judged by the service, and two stacks isolated, on a GPU host without a package index.
# Usage: stacks.sh STEP...   GIFTS has whl/ (wheels of requirements.txt), debs/ (bubblewrap), triton371.tar.xz (a wheel of Triton
# 3.7.1, unpacked, without AMD, Proton, CUPTI and the ptxas of Blackwell, libraries stripped,
# its RECORD without what was left out) and quack_kernels-0.6.4*.whl;
# steps.sh has unpacked Quack 0.6.5 into /tmp/q before.
set -uo pipefail
TREE=$(cd "$(dirname "$0")/../../.." && pwd)
GIFTS=${GIFTS:-$TREE/.gpu} PLACE=${PLACE:-/tmp/kw} PYTHON=${PYTHON:-/opt/torch/.venv/bin/python3} DEVICE=${DEVICE:-h200}
QUACK=${QUACK:-/tmp/q} OLD_TRITON=${OLD_TRITON:-3.6.0}
export OUT=${OUT:-$PLACE/out} PYTHONUNBUFFERED=1 PYTHONPATH=$PLACE/site:$PLACE/tree
export KERNELWATCH_STATE=$PLACE/state KERNELWATCH_ALLOWED_ROOTS="[\"$PLACE\"]" KERNELWATCH_PORT=${PORT:-8712}
export KERNELWATCH_QUEUE_POLL_S=0.5 KERNELWATCH_SESSION_LIMIT_S=${SESSION_LIMIT_S:-220}
kw() { "$PYTHON" -P -m service.cli "$@"; }
mkdir -p "$PLACE" "$OUT"

site() {
    mkdir -p "$PLACE/tree" "$PLACE/site" "$PLACE/debs"
    cp -r "$TREE"/{service,kernels,workers,dashboards,examples,kernelwatch} "$PLACE/tree/"
    for deb in "$GIFTS"/debs/*.deb; do dpkg -x "$deb" "$PLACE/debs"; done
    command -v bwrap || cp "$PLACE/debs/usr/bin/bwrap" /usr/bin/
    find "$PLACE/debs" -name "lib*.so.*" | while read -r library; do
        known=$(basename "$library" | sed 's/\(\.so\.[0-9]*\).*/\1/')
        ldconfig -p | grep -q "$known" || cp -P "$library" /usr/lib/x86_64-linux-gnu/
    done
    ldconfig
    "$PYTHON" - "$PLACE/site" "$GIFTS"/whl/*.whl <<'PY'
import sys, zipfile
for wheel in sys.argv[2:]:
    zipfile.ZipFile(wheel).extractall(sys.argv[1])
PY
    kw db upgrade
}

triton() {  # 3.7.1 as a folder and as a wheel, and the host's own as a wheel
    mkdir -p "$PLACE/triton371" "$PLACE/wheels"
    tar -C "$PLACE/triton371" -xJf "$GIFTS/triton371.tar.xz"
    wheel "$PLACE/triton371" 3.7.1
    local where
    where=$("$PYTHON" -c "import triton, pathlib; print(pathlib.Path(triton.__file__).parents[1])")
    wheel "$where" "$OLD_TRITON"
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
    mkdir -p "$PLACE/quack064"
    unzip -qo "$GIFTS"/quack_kernels-0.6.4*.whl -d "$PLACE/quack064" || "$PYTHON" -m zipfile -e "$GIFTS"/quack_kernels-0.6.4*.whl "$PLACE/quack064"
    kw stack adopt host --python "$PYTHON" --path "$QUACK" --path "$dsl"
    kw stack adopt old --python "$PYTHON" --path "$PLACE/quack064" --path "$QUACK" --path "$dsl"
    kw stack adopt new --python "$PYTHON" --path "$PLACE/triton371" --path "$QUACK" --path "$dsl"
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
    for _ in $(seq 60); do curl -fs "http://127.0.0.1:$KERNELWATCH_PORT/readyz" && break || sleep 0.5; done
}

release() {  # Triton 3.7.1 against the host's, through the service
    sed -e "s/^devices = .*/devices = [\"$DEVICE\"]/" -e 's/^suite = .*/suite = "few"/' -e 's/^sota = .*/sota = "inductor"/' \
        -e "s/^\[suites\]/[suites]\nfew = [${RELEASE_CASES:-\"rmsnorm.fwd.8192x8192.bf16-fp32\", \"rmsnorm.bwd.32768x1024.bf16-fp32\", \"layernorm.bwd.8192x8192.bf16-fp32\", \"rmsnorm.bwd.32768x1024.bf16-fp32.compile\"}]/" \
        "$TREE/examples/triton/recipe.toml" > "$PLACE/triton.toml"
    kw target add triton "$PLACE/wheels" --package triton --recipe "$PLACE/triton.toml" --trusted --backfill 0
    timeout "${RELEASE_S:-230}" "$PYTHON" -P -m service.cli run start triton 3.7.1 --wait > "$OUT/release.txt" 2> "$OUT/release.err.txt"
    echo "release ended with $?"
    tail -c 600 "$OUT/release.err.txt"
    cut -c1-220 "$OUT/release.txt" | head -60
}

keep() {
    kw report "$(kw run list --format json | "$PYTHON" -c 'import json, sys; print(json.load(sys.stdin)["items"][0]["id"])')" --all --format md > "$OUT/release.md" || true
    "$PYTHON" -c "import sqlite3, sys; a = sqlite3.connect(sys.argv[1]); b = sqlite3.connect(sys.argv[2]); a.backup(b)" "$PLACE/state/kernelwatch.db" "$PLACE/copy.db"
    gzip -c "$PLACE/copy.db" > "$OUT/kernelwatch.db.gz"
    tail -c 3000 "$PLACE/up.log" > "$OUT/up.txt"
    ls -la "$OUT"
}

for step in "$@"; do
    echo "== $step ($(date +%T))"
    $step || echo "!! $step failed"
done
