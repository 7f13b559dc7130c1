#!/usr/bin/env bash
# What docs/quality_and_cost.md says of CIFAR-10, on one GPU within STOP seconds; later steps have what is left.
#
#     bash benchmarks/quality.sh DATA OUT usual [STOP]     TINY=1: digits, a CPU, to see that everything runs
#     bash benchmarks/quality.sh DATA OUT klom [STOP]
#
# DATA holds the images, OUT gets archives of rows, margins and logs, packed anew every 40 seconds. Processes start at
# once, compile while others do, and wait for files.
#
# usual: the fast recipe is timed with nothing beside it (not with FAST=0), then networks are trained, settings of ours
# are tried on networks, rows and a class of their own (draw 1), and every method serves every request.
# klom: settings of ours are tried on networks of their own (draw 1) while NETWORKS networks from seed FIRST on are trained,
# with FOLDS sets of fold models; then ours serves as many originals as there is time for, large sets before small ones.
# OURS: settings of ours to try, a line each, NAME=JSON. With CHOOSE=0 nothing is tried: all OURS are served.
set -u
mkdir -p "$2"
data=$(cd "$1" && pwd) out=$(cd "$2" && pwd) what=$3 stop=${4:-560}
here=$(cd "$(dirname "$0")/.." && pwd)
for python in ${PYTHON:-python python3}; do  # the first that has torch
    "$python" -c 'import importlib.util as u; raise SystemExit(u.find_spec("torch") is None)' 2> /dev/null && break
done
export OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=4 PYTHONPATH=$here/src:$here PYTHONUNBUFFERED=1
cd "${WORK:-$(mktemp -d)}" || exit 1  # the commands that rows tell have names relative to it
mkdir -p choose klom usual usual-choose logs
choose=${CHOOSE:-1} first=${FIRST:-64} size=(--data "$data")
networks=${NETWORKS:-64} folds=${FOLDS:-16} trained=${TRAINED:-$((stop * 3 / 5))}
epochs=10 usual=10 seeds=5 tried=8 many=${WORKERS:-16} few=8
if [ -n "${TINY:-}" ]; then networks=4 folds=2 seeds=2 tried=4 many=1 few=1 size=(--tiny --device cpu); fi
ours=()
while IFS= read -r line; do [ -n "$line" ] && ours+=(--ours "$line"); done <<< "${OURS:-}"

go() {  # NAME DEADLINE SCRIPT ARGUMENTS: seconds from the start of all; a hard end a little after the soft one
    local name=$1 left=$(($2 - SECONDS)) script=$3
    shift 3
    [ "$left" -gt 5 ] || return
    timeout -k 2 $((left + 6)) "$python" "$here/benchmarks/$script.py" "$@" "${size[@]}" --stop "$left" \
        > logs/$name.log 2>&1 || echo "$name ended with $? after $SECONDS s" >> logs/times.log
    echo "$name: ended after $SECONDS s" >> logs/times.log
}
each() {  # COUNT SUFFIX FILE NAME DEADLINE SCRIPT ARGUMENTS: workers side by side, started when the file is there
    local count=$1 suffix=$2 file=$3 name=$4
    shift 4
    until [ -e "$file" ]; do sleep 0.5; done
    for i in $(seq 0 $((count - 1))); do
        go "$name-$i" "$@" --worker "$i" --workers "$count" --out "served-$name-$i.$suffix" &
    done
    wait
}
archive() {  # NAME FILES: under another name first, so that a file that comes back is whole
    local name=$1
    shift
    [ $# -gt 0 ] || return 0
    tar czf "$out/$name.part" --exclude='network-*' --exclude='folds-*' --exclude='*.part*' "$@" 2> /dev/null
    mv "$out/$name.part" "$out/$name.tgz"
}
pack() {
    shopt -s nullglob
    archive logs logs ./*.jsonl
    if [ "$what" = klom ]; then
        archive klom klom choose served-*
    else
        archive usual usual usual-choose
        archive usual-0 served-usual-*[02468].pt
        archive usual-1 served-usual-*[13579].pt
    fi
}
(while sleep 40; do pack; done) &
packing=$!
trap 'kill $packing 2> /dev/null' EXIT

touch begun
if [ "$what" = klom ]; then
    own=(--chosen choose.jsonl)
    if [ "$choose" = 0 ]; then
        touch choose.jsonl chosen
        own=("${ours[@]}")
    else
        go choose-train $((stop / 3)) klom train --draw 1 --first 9008 --networks $tried --folds 1 --epochs $epochs --plain \
            --at-once 2 --keep choose &
        (each "$many" jsonl begun choose $((stop / 2)) klom_serve choose --draw 1 --epochs $epochs --count 2 --keep choose \
            --only ours "${ours[@]}"
         cat served-choose-*.jsonl > choose.jsonl; touch chosen) &
    fi
    (go klom-train "$trained" klom train --first "$first" --networks "$networks" --folds "$folds" --epochs $epochs \
        --at-once 4 --keep klom; touch networks) &
    (until [ -e networks ] && [ -e chosen ]; do sleep 0.5; done; touch ready) &
    (until [ "$SECONDS" -ge $((trained - 25)) ] || [ -e networks ]; do sleep 0.5; done; touch soon) &
    each "$many" pt soon ours "$stop" klom_serve run --epochs $epochs --keep klom --parts 0 --after ready --only ours \
        "${own[@]}" &
else
    if [ "${FAST:-1}" = 0 ]; then touch fast; else
        speed=(fleet_speed --timed --recipes 28:0.4 --seeds 4 --at-once 4)
        (until [ -e ready-usual ] && [ -e ready-whitened ] || [ "$SECONDS" -ge 95 ]; do sleep 0.5; done; touch ready) &
        (go fast 165 "${speed[@]}" --out speed-0.jsonl --after ready; touch fast-0) &
        (go fast-whitened 200 "${speed[@]}" --network resnet-9-whitened --out speed-1.jsonl --ready ready-whitened \
            --after fast-0; touch fast) &
    fi
    (go usual-train $((stop - 120)) usual_table train --networks $seeds --folds 1 --epochs $usual --keep usual \
        --choose usual-choose --at-once 3 --ready ready-usual --after fast; touch networks) &
    (each $few jsonl fast usual-choose $((stop * 2 / 3)) usual_table choose --epochs $usual --keep usual-choose
     cat served-usual-choose-*.jsonl > own.jsonl; touch chosen) &
    (until [ -e networks ] && [ -e chosen ]; do sleep 0.5; done; touch served)  &
    each $few pt fast usual "$stop" usual_table serve --networks $seeds --epochs $usual --keep usual --patience 30 \
        --own own.jsonl --after served &
fi
while [ "$(jobs -rp | grep -cv "^$packing\$")" -gt 0 ] && [ "$SECONDS" -lt $((stop + 8)) ]; do sleep 1; done
kill "$packing" $(jobs -rp) 2> /dev/null
pack
tail -n 2 logs/*.log
ls -l "$out"
