#!/usr/bin/env bash
#SBATCH --job-name=fedmos-seeds
#SBATCH --array=0-4
#SBATCH --cpus-per-task=1
#SBATCH --requeue
# One run a task of a SLURM job array, on a file system that all nodes share; the number of the task is the seed:
#     sbatch examples/slurm/seeds.sh CONFIG.toml runs/mine [--set KEY=VALUE …]
# A task that SLURM starts again continues from the newest checkpoint of its run; one that is done trains nothing. Then:
#     fedmos report runs/mine/seed-*
set -euo pipefail
configuration=$1 out=$2
shift 2
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
exec fedmos run "$configuration" --set "seed=$SLURM_ARRAY_TASK_ID" --out "$out/seed-$SLURM_ARRAY_TASK_ID" --resume --quiet "$@"
