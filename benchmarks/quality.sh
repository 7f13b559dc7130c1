#!/usr/bin/env bash
# What docs/quality_and_cost.md says of CIFAR-10, on one GPU within STOP seconds; later steps have what is left.
#
#     bash benchmarks/quality.sh DATA OUT [STOP [all|klom|usual]]     TINY=1: digits, a CPU, to see that everything runs
#
# DATA holds the images, OUT gets klom.tgz, usual.tgz and logs.tgz. Processes start at once, compile while others train,
# and wait for files: settings are tried on networks of their own (draw 1), the fast recipe is timed with nothing beside
# it, then the networks of the design are trained while settings are tried, then ours, the usual table and all others.
# OURS: settings of ours to try, a line each, NAME=JSON. With CHOOSE=0, or less than 540 s, nothing is tried: all OURS,
# or the package's own settings, are served, others have their usual ones, and the usual table has three seeds. FAST=0: the
# recipe is not timed.
set -u
mkdir -p "$2"
data=$(cd "$1" && pwd) out=$(cd "$2" && pwd) stop=${3:-575} what=${4:-all}
here=$(cd "$(dirname "$0")/.." && pwd)
for python in ${PYTHON:-python python3}; do  # the first that has torch
    "$python" -c 'import importlib.util as u; raise SystemExit(u.find_spec("torch") is None)' 2> /dev/null && break
done
export OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=4 PYTHONPATH=$here/src:$here PYTHONUNBUFFERED=1
cd "${WORK:-$(mktemp -d)}" || exit 1  # the commands that rows tell have names relative to it
mkdir -p choose klom usual logs
epochs=10 usual=8 networks=60 seeds=5 many=6 size=(--data "$data")
choose=${CHOOSE:-$((stop >= 540))} trained=$((stop < 540 ? stop - 110 : 400))
if [ "$choose" = 0 ]; then seeds=3; fi
if [ -n "${TINY:-}" ]; then networks=4 seeds=2 many=2 size=(--tiny --device cpu); fi
ours=()
while IFS= read -r line; do [ -n "$line" ] && ours+=(--ours "$line"); done <<< "${OURS:-}"

go() {  # NAME DEADLINE SCRIPT ARGUMENTS: seconds from the start of all; a hard end a little after the soft one
    local name=$1 left=$(($2 - SECONDS)) script=$3
    shift 3
    [ "$left" -gt 5 ] || return
    timeout -k 2 $((left + 6)) "$python" "$here/benchmarks/$script.py" "$@" "${size[@]}" --stop "$left" \
        > logs/$name.log 2>&1 || echo "$name ended with $? after $SECONDS s"
    echo "$name: ended after $SECONDS s" >> logs/times.log
}
each() {  # FILE NAME DEADLINE SCRIPT ARGUMENTS: workers side by side, started when the file is there
    local file=$1 name=$2
    shift 2
    until [ -e "$file" ]; do sleep 0.5; done
    for i in $(seq 0 $((many - 1))); do
        go "$name-$i" "$@" --worker "$i" --workers $many --out served-$name-$i.$suffix &
    done
    wait
}
pack() {  # Under another name first: a file that comes back is whole.
    local less=(--exclude='network-*' --exclude='folds-*' --exclude='*.part*')
    tar czf "$out/klom.part" "${less[@]}" klom choose $(ls -d served-[!u]* ./*.jsonl 2> /dev/null) 2> /dev/null
    mv "$out/klom.part" "$out/klom.tgz"
    tar czf "$out/usual.part" "${less[@]}" usual $(ls -d served-usual-* 2> /dev/null) 2> /dev/null
    mv "$out/usual.part" "$out/usual.tgz"
    tar czf "$out/logs.part" logs && mv "$out/logs.part" "$out/logs.tgz"
}
(while sleep 60; do pack; done) &
packing=$!
trap 'kill $packing 2> /dev/null' EXIT

suffix=pt own=()
touch begun
if [ "$what" != usual ]; then
    if [ "$choose" = 0 ]; then
        touch choose.jsonl chosen
        own=("${ours[@]}")
    else
        go choose-train 150 klom train --draw 1 --first 9008 --networks 8 --folds 1 --epochs $epochs --plain \
            --at-once 2 --keep choose &
        (suffix=jsonl; each begun choose 260 klom_serve choose --draw 1 --epochs $epochs --count 1 --keep choose \
            --after fast "${ours[@]}"
         cat served-choose-*.jsonl > choose.jsonl; touch chosen) &
    fi
    first=(); if [ "$choose" != 0 ]; then first=(--after choose/trained-9008.pt); fi
    (if [ "${FAST:-1}" != 0 ]; then
        go fast 150 fleet_speed --timed --recipes 28:0.4 --seeds 4 --at-once 4 --out speed.jsonl "${first[@]}"
     fi; touch fast) &
    (go klom-train "$trained" klom train --networks $networks --folds 4 --cuts 8 --epochs $epochs --at-once 4 \
        --keep klom --after fast; touch networks) &
    (until [ -e networks ] && [ -e chosen ]; do sleep 0.5; done; touch ready) &
    run=("$stop" klom_serve run --epochs $epochs --keep klom --chosen choose.jsonl --parts 0 --after ready)
    each fast ours "${run[@]}" --only ours --sets large "${own[@]}" &
    each others others "${run[@]}" --only others --sets large --patience 20 &
    each small small "${run[@]}" --only ours --sets small "${own[@]}" &
fi
if [ "$what" != klom ]; then
    chosen=("${own[@]}")
    if [ "$what" = all ]; then chosen+=(--chosen choose.jsonl --after chosen); else touch fast networks; fi
    (until [ -e fast ]; do sleep 0.5; done
     go usual-train $((stop - 60)) usual_table train --networks $seeds --folds 1 --epochs $usual --keep usual \
        --after networks; touch others) &
    (each networks usual "$stop" usual_table serve --networks $seeds --epochs $usual --keep usual \
        --patience 15 "${chosen[@]}"; touch small) &
else
    (until [ -e networks ]; do sleep 0.5; done; sleep $((stop / 12)); touch others
     sleep $((stop / 6)); touch small) &
fi
while [ "$(jobs -rp | grep -cv "^$packing\$")" -gt 0 ] && [ "$SECONDS" -lt $((stop + 8)) ]; do sleep 1; done
kill "$packing" $(jobs -rp) 2> /dev/null
pack
tail -n 2 logs/*.log
ls -l "$out"
