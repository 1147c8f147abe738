#!/usr/bin/env bash
# Comparisons of codecs in the background, side by side: codec_study.sh [NAME …], default mnist_codecs cifar10_codecs, each
# examples/NAME.toml with eight runs at a time.
set -euo pipefail
tree=/tmp/tree-codecs
mkdir -p "$tree" /tmp/results /tmp/data /tmp/mps
cp -r src examples benchmarks .carry/cli "$tree"
[ ! -d .carry/small ] || cp -n .carry/small/*.npz /tmp/data/
cd "$tree"
[ $# -gt 0 ] || set -- mnist_codecs cifar10_codecs
export FEDMOS_ENGINE="${FEDMOS_ENGINE:-compiled}" PYTHONPATH=src:cli FEDMOS_DATA=/tmp/data PYTHONUNBUFFERED=1 NAMES="$*"
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps
nvidia-cuda-mps-control -d || echo "no MPS: processes take turns"
setsid bash -c '
    compared() {
        python3 benchmarks/device/compare.py "examples/$1.toml" "/tmp/$1" --set precision=\"tf32\" > "/tmp/results/$1.log" 2>&1
        [ ! -e "/tmp/$1/table.json" ] || (mkdir -p "/tmp/results/$1" && cd "/tmp/$1" &&
            cp --parents -t "/tmp/results/$1" table.* report.html comparison.toml runs/*/metrics.jsonl)
    }
    for name in $NAMES; do compared "$name" & done
    wait
    touch /tmp/results/done
' > /dev/null 2>&1 &
echo started
