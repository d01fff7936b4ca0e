#!/bin/bash
# Everything that a GPU is needed for, in one call: for a machine that is lent by the minute and has no network.
#
#     bash benchmarks/gpu/borrowed.sh RESULTS SECONDS [PACKAGES.tar.xz]
#
# Records the jobs of examples/gpu and those with planted faults (tests/acceptance/gpu_job.py), then measures the
# remedies and the link. All jobs import at once and take the GPU one after the other. What is done is in
# RESULTS/*.tar at any time. PACKAGES.tar.xz holds what the machine's Python lacks, as unpacked wheels (polars,
# polars-runtime-32, adbc-driver-manager, adbc-driver-sqlite, argcomplete, msgspec; torchao and trl to be
# compared with), beside lostflops' own .dist-info; torch, transformers and peft have to be there.
set -u
OUT=$(mkdir -p "$1" && cd "$1" && pwd) LIMIT=$2 PACKAGES=${3:-}
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
cd "$(dirname "$0")/../.." || exit
ROOT=$PWD BEGAN=$(date +%s) WORK=$(mktemp -d)
passed() { echo $(($(date +%s) - BEGAN)); }
at() { echo "== $(passed) s: $*"; }

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
[ -z "$PACKAGES" ] || { mkdir "$WORK/site" && tar -xJf "$PACKAGES" -C "$WORK/site"; }
export PYTHONPATH=$WORK/site:$ROOT/src

RUNS=$WORK/rec
mkdir "$RUNS" "$WORK/jobs"
cp -r examples tests/acceptance/gpu_job.py tests/acceptance/gpu_step.py "$WORK/jobs"
cd "$WORK/jobs" || exit
LOCK="import fcntl; held = open('$WORK/lock', 'w'); fcntl.flock(held, fcntl.LOCK_EX); main()"
sed -i "s|^    main()\$|    $LOCK|" gpu_job.py examples/gpu/*.py
record() { # NAME, options and the job
    name=$1 && shift
    timeout 190 python3 -m lostflops record --output "$RUNS/$name" "$@" > "$RUNS/$name.log" 2>&1 &
}
python3 -m lostflops --version # compiles lostflops once
record faults --step-on gpu_step:ended --steps 9-11 --every 14 -- python3 gpu_job.py --times "$RUNS/faults.json" --seconds 85
sleep 1
cd examples/gpu || exit
LORA="--steps 4-6 --what cuda,shapes,python --monitor"
record lora-workers-0 $LORA -- python3 train_lora.py --workers 0 --layers 8
record lora-workers-4 $LORA -- python3 train_lora.py --workers 4 --layers 8
record ddp --steps 8-10 --monitor -- python3 -m torch.distributed.run --standalone --nproc-per-node 1 train.py --how ddp
record graph --steps 8-10 --what cuda,shapes,python -- python3 train.py --how graph
record generate --steps 3-4 --step-on transformers.generation.utils:GenerationMixin.generate -- python3 generate.py
record compiled --steps 8-10 -- python3 train.py --how compiled
record lora-7b --steps 4-6 --what cuda,shapes,memory --monitor -- python3 train_lora.py --workers 0 --layers 32
wait
at recorded
tail -n 4 "$RUNS"/*.log | cut -c1-300
tar -cf "$OUT/faults.tar" --exclude boot -C "$WORK" rec/faults
tar -cf "$OUT/lora-7b.tar" --exclude boot -C "$WORK" rec/lora-7b
tar -cf "$OUT/runs.tar" --exclude boot --exclude faults --exclude lora-7b -C "$WORK" rec

cd "$ROOT" || exit
timeout 60 python3 -m lostflops bench links --card "$OUT/card.json" --json "$OUT/links.json" --repeats 10 2>&1 | tail -25
at links
RESULTS=$WORK/results && mkdir "$RESULTS"
keep() { tar -cf "$WORK/kept" -C "$WORK" results && cp "$WORK/kept" "$OUT/results.tar"; }
while sleep 10; do keep; done &
KEEPING=$!
LEFT=$((LIMIT - 15 - $(passed)))
timeout $((LEFT + 7)) python3 benchmarks/gpu/run.py --within --share 0.2 --minutes "$(python3 -c "print($LEFT / 60)")" \
    --tokens 2048 8192 --results "$RESULTS" 2>&1 | tee "$OUT/benchmark.log" | cut -c1-200
kill $KEEPING
keep
at done
