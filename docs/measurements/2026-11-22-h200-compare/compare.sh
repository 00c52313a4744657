#!/usr/bin/env bash
# `kernelwatch compare` on a GPU host, on three commits of the repository that docs/measurements/2026-11-22-h200-commits/build.py makes.
set -uo pipefail
TREE=$(pwd); HERE=$TREE/docs/measurements/2026-11-22-h200-compare; GIFTS=${GIFTS:-$TREE/.gpu}; PLACE=/tmp/kw; PYTHON=/opt/torch/.venv/bin/python3; OUT=${OUT:-/tmp/out}
mkdir -p $PLACE/site "$OUT"; chmod 755 $PLACE
for deb in "$GIFTS"/debs/*.deb; do dpkg -x "$deb" $PLACE/debs; done
command -v bwrap || cp $PLACE/debs/usr/bin/bwrap /usr/bin/
find $PLACE/debs -name "lib*.so.*" | while read -r library; do
    known=$(basename "$library" | sed 's/\(\.so\.[0-9]*\).*/\1/')
    ldconfig -p | grep -q "$known" || cp -P "$library" /usr/lib/x86_64-linux-gnu/
done
ldconfig
$PYTHON -c 'import sys, zipfile
for wheel in sys.argv[2:]: zipfile.ZipFile(wheel).extractall(sys.argv[1])' $PLACE/site "$GIFTS"/whl/*.whl
export PYTHONPATH=$PLACE/site:$TREE PYTHONUNBUFFERED=1 HOME=$PLACE/home
mkdir -p $HOME
$PYTHON docs/measurements/2026-11-22-h200-commits/build.py $PLACE/full > $PLACE/commits.txt
git -C $PLACE/full log --oneline -1
kw() { $PYTHON -P -m service.cli "$@"; }
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
kw doctor 2>&1 | head -30
one() {  # BASE HEAD FORMAT
    local began=$SECONDS
    (cd $PLACE/full && timeout 170 $PYTHON -P -m service.cli compare "$1" "$2" --recipe "$HERE/recipe.toml" --python $PYTHON --all --format "$3") > "$OUT/$2.$3" 2> "$OUT/$2.err"
    echo "compare $1 $2: exit $?, $((SECONDS - began)) s"; head -40 "$OUT/$2.$3" | cut -c1-160; tail -5 "$OUT/$2.err" | cut -c1-300
}
one d4752fe 956254a table
one 956254a 9d90a17 table
one 9d90a17 2dece03 table
cp $PLACE/commits.txt "$OUT/"
