#!/usr/bin/env bash
#SBATCH --job-name=fedmos-compare
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --requeue
# A comparison on a Ray cluster that lives as long as the SLURM job, one process of Ray a node:
#     sbatch examples/slurm/compare.sh CONFIG.toml runs/mine [--set KEY=VALUE …]
# `ray symmetric-run` starts the cluster, runs the command on the first node, and stops the cluster. Submitted again, the
# comparison continues.
set -euo pipefail
configuration=$1 out=$2
shift 2
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
export RAY_ADDRESS="${hosts%%$'\n'*}:${PORT:-6379}"  # the first
exec srun ray symmetric-run --address "$RAY_ADDRESS" --min-nodes "$SLURM_JOB_NUM_NODES" --num-cpus "$SLURM_CPUS_PER_TASK" -- \
    fedmos compare "$configuration" --out "$out" --on ray --quiet "$@"
