#!/usr/bin/env bash
# Several GPUs at the same time: lanes.sh LIMIT_S "STEPS OF GPU 0" "STEPS OF GPU 1" ...  Steps are those of steps.sh; with the
# prefix stacks/, those of stacks.sh of the session before.  After LIMIT_S seconds what there is goes into $OUT/results.tar.xz.
set -uo pipefail
HERE=$(cd "$(dirname "$0")" && pwd) RESULTS=${RESULTS:-/tmp/results} limit=$1
shift
lane() {  # NUMBER STEPS
    export CUDA_VISIBLE_DEVICES=$1 OUT=$RESULTS/gpu$1
    mkdir -p "$OUT"
    for step in $2; do
        case $step in
            old/*) TREE=/tmp/old bash "$HERE/steps.sh" "${step#old/}" ;;  # the tree that a session of a study was begun with
            stacks/*) bash "$HERE/../2026-11-24-h200-studies-2/stacks.sh" "${step#stacks/}" ;;
            *) bash "$HERE/steps.sh" "$step" ;;
        esac
    done
}
rm -rf "$RESULTS" && mkdir -p "$RESULTS" "$OUT"
set -m  # a process group for each lane
number=0 lanes=()
for steps in "$@"; do
    (lane $number "$steps" > "$RESULTS/lane$number.txt" 2>&1) &
    lanes+=($!)
    number=$((number + 1))
done
alive() { for one in "${lanes[@]}"; do kill -0 "$one" 2> /dev/null && return; done; return 1; }
while [ $SECONDS -lt "$limit" ] && alive; do sleep 1; done
for one in "${lanes[@]}"; do kill -- "-$one" 2> /dev/null; done
sleep 1
mkdir -p "$RESULTS/studies" && cp /tmp/studies/*.jsonl "$RESULTS/studies/" 2> /dev/null
tar -C "$RESULTS" -cf - . | xz -T8 > "$OUT/results.tar.xz"
for file in "$RESULTS"/lane*.txt; do echo "=== $file" && tail -c "${TAIL:-2700}" "$file"; done
echo "$SECONDS s"
