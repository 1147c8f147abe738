#!/usr/bin/env bash
# Start the runs of docs/comparison/fl-simulator.md that data/fl-simulator.json lacks, one process per run, five at
# a time under MPS. The longest start first.
set -euo pipefail
cp -r . /tmp/tree 2>/dev/null || true
mkdir -p /tmp/results /tmp/mps
cat > /tmp/jobs <<'END'
dirichlet-0.6:FedSMOO
dirichlet-0.6:FedSpeed
dirichlet-0.6:MoFedSAM
dirichlet-0.1:FedSpeed
dirichlet-0.1:MoFedSAM
END
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps FEDMOS_DATA=/tmp/data FEDMOS_ENGINE=compiled PYTHONPATH=src
nvidia-cuda-mps-control -d || echo "no MPS: processes take turns"
cd /tmp/tree
setsid bash -c '
    xargs -a /tmp/jobs -P 5 -I {} bash -c \
        "log={}; python3 benchmarks/fl_simulator.py train {} --precision tf32 --out /tmp/results > /tmp/results/\${log//:/-}.log 2>&1"
    touch /tmp/results/done
' > /dev/null 2>&1 &
echo started
