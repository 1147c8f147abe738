#!/usr/bin/env bash
# The exchange of ranks on a machine with one GPU (one minute): ranks.sh FOLDER. The output goes to FOLDER/ranks.log.
#  1. every collective of a run through nccl, with one rank;
#  2. one rank, and two and four ranks that share the GPU: these warn and exchange through the CPU. Each run prints a hash
#     of the model and how far the model is from those of the runs before;
#  3. what nccl itself says to two ranks on one GPU (expected: "Duplicate GPU detected").
# With several GPUs, step 2 goes through nccl.
set -uo pipefail
export PYTHONPATH=src OMP_NUM_THREADS=1 FEDMOS_RANK_TIMEOUT=1
log="$1/ranks.log" python=${PYTHON:-python3} models=$(mktemp -d)
nvidia-smi -L > "$log" 2>&1
{
    timeout 120 "$python" benchmarks/ranks_gpu.py --nccl
    for size in 1 2 4; do
        timeout 120 "$python" -m torch.distributed.run --nproc-per-node "$size" benchmarks/ranks_gpu.py --models "$models"
    done
    timeout 120 "$python" -m torch.distributed.run --nproc-per-node 2 benchmarks/ranks_gpu.py --sharing
} >> "$log" 2>&1
grep -E "rank|refused|Duplicate|exchange" "$log"
