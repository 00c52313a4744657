#!/usr/bin/env bash
# Does CUDA work inside the sandbox, how fast, and do its walls hold with the nodes of a GPU in it?
# Usage: sandbox.sh [STEP...]   as root; steps: site cuda probes bombs user.  Needs no package index.
# GIFTS holds whl/ (wheels of requirements.txt) and debs/ (bubblewrap and its libraries), as for the session of commits.
set -uo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
TREE=$(cd "$HERE/../../.." && pwd)
GIFTS=${GIFTS:-$TREE/.gpu} PLACE=${PLACE:-/tmp/kw-walls} PYTHON=${PYTHON:-/opt/torch/.venv/bin/python3}
export OUT=${OUT:-$PLACE/out} KERNELWATCH_STATE=$PLACE/state PYTHONPATH=$PLACE/site:$TREE PYTHONUNBUFFERED=1
mkdir -p "$PLACE/site" "$OUT" && chmod 755 "$PLACE"

site() {
    for deb in "$GIFTS"/debs/*.deb; do dpkg -x "$deb" "$PLACE/debs"; done
    command -v bwrap || cp "$PLACE/debs/usr/bin/bwrap" /usr/bin/
    find "$PLACE/debs" -name "lib*.so.*" | while read -r library; do  # only those that the host lacks
        known=$(basename "$library" | sed 's/\(\.so\.[0-9]*\).*/\1/')
        ldconfig -p | grep -q "$known" || cp -P "$library" /usr/lib/x86_64-linux-gnu/
    done
    ldconfig && bwrap --version
    "$PYTHON" -c 'import sys, zipfile
for wheel in sys.argv[2:]: zipfile.ZipFile(wheel).extractall(sys.argv[1])' "$PLACE/site" "$GIFTS"/whl/*.whl
}

cuda() { "$PYTHON" "$HERE/sandbox_gpu.py" cuda "$PYTHON"; }          # torch, torch.compile, Triton and graphs, in and out
probes() { "$PYTHON" "$HERE/sandbox_gpu.py" probes "$PYTHON"; }      # tests/attacks/inside_sandbox.py, with the nodes
bombs() { "$PYTHON" "$HERE/sandbox_gpu.py" bombs "$PYTHON"; }        # memory that CUDA pins on the host, limited to 4 GiB
user() {                                                             # all of it for a worker that is not root
    mkdir -p "$PLACE/user" && chown 65534:65534 "$PLACE/user"
    for step in cuda probes bombs; do
        KERNELWATCH_STATE=$PLACE/user PLACE=$PLACE/user setpriv --reuid 65534 --regid 65534 --clear-groups \
            "$PYTHON" "$HERE/sandbox_gpu.py" "$step" "$PYTHON"
    done
}

for step in "${@:-site}"; do
    echo "== $step"
    "$step" 2>&1 | tee "$OUT/sandbox-$step.txt"
done
[ $# -gt 0 ] || for step in cuda probes bombs user; do echo "== $step"; "$step" 2>&1 | tee "$OUT/sandbox-$step.txt"; done
