#!/usr/bin/env bash
# The exchange of ranks on a machine with one GPU (three minutes): ranks.sh FOLDER. The output goes to FOLDER/ranks.log.
#  1. every collective of a run through nccl, with one rank;
#  2. two and four ranks that share the GPU: they warn, exchange through the CPU, and print the same hash of the model;
#  3. what nccl itself says to two ranks on one GPU (expected: "Duplicate GPU detected").
# With several GPUs, step 2 goes through nccl, and the hash must stay the same.
set -uo pipefail
export PYTHONPATH=src OMP_NUM_THREADS=1 FEDMOS_RANK_TIMEOUT=1
log="$1/ranks.log" python=${PYTHON:-python3}
nvidia-smi -L > "$log" 2>&1
{
    timeout 120 "$python" benchmarks/ranks_gpu.py --nccl
    for size in 2 4; do
        timeout 120 "$python" -m torch.distributed.run --nproc-per-node "$size" benchmarks/ranks_gpu.py
    done
    timeout 120 "$python" -m torch.distributed.run --nproc-per-node 2 benchmarks/ranks_gpu.py --sharing
} >> "$log" 2>&1
grep -E "rank|refused|Duplicate|exchange" "$log"
hashes=$(grep -o 'model [0-9a-f]*' "$log" | sort -u | wc -l)
[ "$hashes" = 1 ] && echo "one hash of the model" || { echo "$hashes hashes of the model"; exit 1; }
