#!/usr/bin/env bash
# Exams on the GPU, in the background, one process for each part and method, side by side: exam.sh [EXAM …], default
# niid-bench. Each process adds its records to /tmp/results/exam/JOB when the seeds of its method have ended, and shows
# its progress in /tmp/log-exam-JOB. FEDMOS_EXAM_OPTIONS="--rounds 2 --seeds 1" tries everything out.
set -euo pipefail
tree=/tmp/tree-exam
mkdir -p "$tree" /tmp/results/exam /tmp/mps
cp -r src .carry/cli "$tree"
cd "$tree"
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps
export PYTHONPATH=src:cli FEDMOS_DATA=/tmp/data PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
nvidia-cuda-mps-control -d || echo "no MPS: processes take turns"
[ $# -gt 0 ] || set -- niid-bench
"${PYTHON:-python3}" - "$@" > /tmp/results/exam/jobs <<'LIST'
import sys

from fedmos.experiments.reproduce.study import load

for name in sys.argv[1:]:
    for part in load(name).parts:
        for label in part.labels:
            print(name, part.name, label, sep="\t")
LIST
setsid bash -c '
    while IFS=$'"'\t'"' read -r exam part method; do
        job="$exam-$part-${method//[^A-Za-z0-9]/-}"
        { "$1" -m fedmos exam "$exam" --part "$part" --methods "$method" --out /tmp/exam --records "/tmp/results/exam/$job" \
            ${FEDMOS_EXAM_OPTIONS:-} > "/tmp/log-exam-$job" 2>&1 ||
            { echo "failed: $job"; tail -n 2 "/tmp/log-exam-$job"; } >> /tmp/results/exam.log; } &
    done < /tmp/results/exam/jobs
    wait
    touch /tmp/results/done
' exam "${PYTHON:-python3}" > /dev/null 2>&1 &
echo "started $(wc -l < /tmp/results/exam/jobs) jobs"
