#!/usr/bin/env bash
# All attacks on the host of a GPU, with PostgreSQL and RabbitMQ: session.sh servers | set-up | storms | rest | timing
# GIFTS holds servers.tar.xz (usr/lib/{erlang,rabbitmq,postgresql}, usr/share/postgresql, and their libraries in libs/),
# whl/ (wheels of requirements.txt), dev/ (those of pytest, its plugins and schemathesis) and debs/ (bubblewrap).
set -uo pipefail
ROOT=$(cd "$(dirname "$0")/../../.." && pwd)
GIFTS=${GIFTS:-$ROOT/.gpu} PLACE=${PLACE:-/tmp/kw} PYTHON=${PYTHON:-/opt/torch/.venv/bin/python3} OUT=${OUT:-/tmp/kw/out}
mkdir -p "$PLACE/site" "$PLACE/debs" "$OUT"
cd "$ROOT" || exit
export PYTHONPATH=$PLACE/site:$ROOT HYPOTHESIS_STORAGE_DIRECTORY=$PLACE/hypothesis OMP_NUM_THREADS=1
pg() { env LD_LIBRARY_PATH="$PLACE/servers/libs" setpriv --reuid 65534 --regid 65534 --clear-groups "/usr/lib/postgresql/15/bin/$1" "${@:2}"; }
rabbit() { env LD_LIBRARY_PATH="$PLACE/servers/libs" HOME=/root PATH="/usr/lib/erlang/bin:$PATH" RABBITMQ_NODENAME=rabbit@localhost \
    ERL_EPMD_ADDRESS=127.0.0.1 RABBITMQ_LOG_BASE="$PLACE/rabbit" RABBITMQ_MNESIA_BASE="$PLACE/rabbit" "/usr/lib/rabbitmq/bin/$1" "${@:2}"; }
servers() {  # unpack PostgreSQL and RabbitMQ
    mkdir -p "$PLACE/servers"
    tar -xf "$GIFTS/servers.tar.xz" -C "$PLACE/servers"
    cp -a "$PLACE/servers/usr/." /usr/
}
start() {
    mkdir -p "$PLACE/pg" "$PLACE/rabbit" && chown 65534:65534 "$PLACE/pg" && chmod 755 /tmp "$PLACE"
    [ -e "$PLACE/pg/data" ] || pg initdb -D "$PLACE/pg/data" -U root --auth=trust > "$OUT/initdb.txt" 2>&1
    pg pg_ctl -D "$PLACE/pg/data" -l "$PLACE/pg/log" -o "-k $PLACE/pg -c max_connections=400" -w start | tail -1
    rabbit rabbitmq-server -detached > "$OUT/rabbit.txt" 2>&1
    for _ in $(seq 60); do (exec 3<> /dev/tcp/127.0.0.1/5672) 2> /dev/null && break; sleep 0.5; done
    for n in $(seq 8); do rabbit rabbitmqctl add_vhost "s$n"; rabbit rabbitmqctl set_permissions -p "s$n" guest '.*' '.*' '.*'; done > "$OUT/vhosts.txt" 2>&1
    tail -1 "$OUT/vhosts.txt"
}
setup() {
    for deb in "$GIFTS"/debs/*.deb; do dpkg -x "$deb" "$PLACE/debs"; done
    command -v bwrap > /dev/null || cp "$PLACE/debs/usr/bin/bwrap" /usr/bin/
    find "$PLACE/debs" -name "lib*.so.*" | while read -r library; do  # only those that the host lacks
        name=$(basename "$library" | sed 's/\(\.so\.[0-9]*\).*/\1/')
        ldconfig -p | grep -q "$name" || cp -P "$library" /usr/lib/x86_64-linux-gnu/
    done
    ldconfig
    for wheel in "$GIFTS"/whl/*.whl "$GIFTS"/dev/*.whl; do "$PYTHON" -m zipfile -e "$wheel" "$PLACE/site"; done
    { nvidia-smi; "$PYTHON" -m pip list 2> /dev/null | grep -iE "^(torch|triton|numpy) "; uname -a; nproc; } > "$OUT/machine.txt"
}
tests() {  # NAME SECONDS ARGUMENTS...
    local name=$1 limit=$2
    shift 2
    timeout "$limit" "$PYTHON" -m pytest -q -p no:cacheprovider -p no:benchmark --attack-table "$OUT/$name.md" "$@" > "$OUT/$name.txt" 2>&1
    echo "== $(date +%T) $name: $(tail -1 "$OUT/$name.txt") load $(cut -d' ' -f1 /proc/loadavg)"
}
storms() {  # eight storms of a kind side by side, with a virtual host each
    for n in $(seq 8); do
        CHAOS_S=${CHAOS_S:-140} CHAOS_SEED=$n CHAOS_VHOST=s$n tests "storm-$1-$n" 400 -n 0 --basetemp "$PLACE/storm-$1-$n" \
            --with attack -m attack tests/attacks/test_queue.py -k "nothing_is_lost and $1" &
    done
    wait
}
rest() {
    tests rest 420 -n 10 --with attack tests/attacks --deselect tests/attacks/test_timing.py \
        --deselect tests/attacks/test_queue.py::test_nothing_is_lost_or_doubled_while_processes_and_connections_die
}
timing() { tests timing 420 -n 0 --with attack -m attack tests/attacks/test_timing.py; }
for step in "$@"; do
    case $step in
        servers) servers ;; start) start ;; set-up) setup ;; rest) rest ;; timing) timing ;;
        storms-*) storms "${step#storms-}" ;;
        *) echo "no step $step" >&2; exit 2 ;;
    esac
    echo "== $(date +%T) $step ended"
done
