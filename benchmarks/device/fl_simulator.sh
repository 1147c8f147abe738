#!/usr/bin/env bash
# Start the runs of docs/comparison/fl-simulator.md that data/fl-simulator.json lacks, one process per method, four at a
# time under MPS. The longest start first.
set -euo pipefail
cp -r . /tmp/tree 2>/dev/null || true
mkdir -p /tmp/results /tmp/mps
cat > /tmp/jobs <<'END'
dirichlet-0.6:FedSpeed dirichlet-0.1:FedSpeed one-class:FedSpeed:200
dirichlet-0.6:MoFedSAM dirichlet-0.1:MoFedSAM one-class:MoFedSAM:200
dirichlet-0.6:FedSMOO one-class:FedSMOO:200
dirichlet-0.6:SCAFFOLD dirichlet-0.1:SCAFFOLD one-class:SCAFFOLD:200
dirichlet-0.6:FedCM one-class:FedCM:200
one-class:FedHBM:200
one-class:FedMoS:200
one-class:FedMoS-0.02:200
one-class:FedAvg:200
END
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps FEDMOS_DATA=/tmp/data FEDMOS_ENGINE=compiled PYTHONPATH=src
nvidia-cuda-mps-control -d || echo "no MPS: processes take turns"
cd /tmp/tree
setsid bash -c '
    xargs -a /tmp/jobs -P 4 -I {} bash -c \
        "set -- {}; python3 benchmarks/fl_simulator.py train \$* --precision tf32 --out /tmp/results > /tmp/results/\${1/:/-}.log 2>&1"
    touch /tmp/results/done
' > /dev/null 2>&1 &
echo started
