#!/usr/bin/env bash
# The studies of benchmarks/studies.py with CIFAR-10, FEDMOS_STUDY_PROCESSES jobs at a time (default 6) on the GPU, in the
# background: image_studies.sh MINUTES [STUDY …], default asynchronous-cifar10 and private-cifar10. No run starts after so
# many minutes. Results are as those of cpu_studies.sh.
set -euo pipefail
tree=/tmp/tree-images
mkdir -p "$tree" /tmp/results/studies /tmp/mps
cp -r src benchmarks examples .carry/accounting "$tree"
cd "$tree"
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps
export PYTHONPATH=src:accounting FEDMOS_DATA=/tmp/data PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
nvidia-cuda-mps-control -d || echo "no MPS: processes take turns"
export UNTIL=$(($(date +%s) + 60 * $1)) PROCESSES="${FEDMOS_STUDY_PROCESSES:-6}"
shift
[ $# -gt 0 ] || set -- asynchronous-cifar10 private-cifar10
python3 benchmarks/studies.py list "$@" > /tmp/results/studies/jobs
setsid bash -c '
    xargs -a /tmp/results/studies/jobs -d "\n" -P "$PROCESSES" -I {} bash -c \
        "python3 benchmarks/studies.py train \"\$1\" --out /tmp/results/studies --until \"\$UNTIL\" > \"/tmp/log-\${1//[^A-Za-z0-9]/-}\" 2>&1 ||
        { echo \"failed: \$1\"; tail -n 2 \"/tmp/log-\${1//[^A-Za-z0-9]/-}\"; } >> /tmp/results/studies.log" job {}
    touch /tmp/results/done
' > /dev/null 2>&1 &
echo "started $(wc -l < /tmp/results/studies/jobs) jobs"
