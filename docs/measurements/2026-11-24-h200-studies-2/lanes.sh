#!/usr/bin/env bash
# Two GPUs at the same time: lanes.sh LIMIT_S "STEPS OF GPU 0" "STEPS OF GPU 1".  Steps are those of steps.sh, with the prefix stacks/
# those of stacks.sh.  After LIMIT_S seconds what there is goes into $OUT/results.tar.xz.
set -uo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
lane() {  # NUMBER STEPS
    export CUDA_VISIBLE_DEVICES=$1 OUT=$RESULTS/gpu$1
    mkdir -p "$OUT"
    for step in $2; do
        case $step in
            stacks/*) bash "$HERE/stacks.sh" "${step#stacks/}" ;;
            *) bash "$HERE/steps.sh" "$step" ;;
        esac
    done
}
RESULTS=${RESULTS:-/tmp/results}
rm -rf "$RESULTS" && mkdir -p "$RESULTS" "$OUT"
(lane 0 "$2" > "$RESULTS.0.txt" 2>&1) & first=$!
(lane 1 "$3" > "$RESULTS.1.txt" 2>&1) & second=$!
while [ $SECONDS -lt "$1" ] && { kill -0 $first || kill -0 $second; } 2> /dev/null; do sleep 1; done
mkdir -p "$RESULTS/studies" && cp /tmp/studies/*.jsonl "$RESULTS/studies/" 2> /dev/null
mv "$RESULTS".[01].txt "$RESULTS/"
tar -C "$RESULTS" -cJf "$OUT/results.tar.xz" .
for number in 0 1; do echo "=== GPU $number" && tail -c 5000 "$RESULTS/results.$number.txt" 2> /dev/null || tail -c 5000 "$RESULTS"/*"$number.txt"; done
echo "$SECONDS s"
