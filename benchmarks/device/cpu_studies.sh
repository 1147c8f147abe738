#!/usr/bin/env bash
# The studies of benchmarks/studies.py on the processor, in the background: cpu_studies.sh [STUDY …], default all.
# One thread a job, FEDMOS_STUDY_PROCESSES jobs at a time (default 11). The files of all jobs are in /tmp/results/studies,
# and are written again after each run. FEDMOS_STUDY_ROUNDS=2 tries everything out, and FEDMOS_STUDY_ONLY is a pattern that
# names of jobs must match. It does not touch /tmp/results/done,
# because other jobs run beside it; /tmp/results/studies/done says that all of them ended.
set -euo pipefail
tree=/tmp/tree-studies
mkdir -p "$tree" /tmp/results/studies /tmp/data
cp -r src benchmarks examples "$tree"
cp -r .carry/accounting "$tree"
cp -n .carry/small/*.npz /tmp/data/ || true
cd "$tree"
export PYTHONPATH=src:accounting FEDMOS_DATA=/tmp/data PYTHONUNBUFFERED=1
export CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
processes="${FEDMOS_STUDY_PROCESSES:-11}"
"${PYTHON:-python3}" benchmarks/studies.py list "$@" | grep -E "${FEDMOS_STUDY_ONLY:-.}" > /tmp/results/studies/jobs
setsid bash -c '
    xargs -a /tmp/results/studies/jobs -d "\n" -P "$1" -I {} bash -c \
        "nice -n 10 \"\$1\" benchmarks/studies.py train \"\$2\" --out /tmp/results/studies > \"/tmp/log-\${2//[^A-Za-z0-9]/-}\" 2>&1 ||
        { echo \"failed: \$2\"; tail -n 2 \"/tmp/log-\${2//[^A-Za-z0-9]/-}\"; } >> /tmp/results/studies.log" job "$2" {}
    touch /tmp/results/studies/done
' studies "$processes" "${PYTHON:-python3}" > /dev/null 2>&1 &
echo "started $(wc -l < /tmp/results/studies/jobs) jobs, $processes at a time"
