#!/usr/bin/env bash
# The runs of benchmarks/pfllib.py in the background, one process per run, side by side under MPS:
#     pfllib.sh [MINUTES, default 8] [SPLIT …, default both]
# Each run ends by itself after so many minutes and writes /tmp/results/pfllib/SPLIT-METHOD.json again after every
# evaluation. Then benchmarks/pfllib.py time and, with .carry/pfllib, PFLlib's own code are timed one after another, in at
# most five minutes, into /tmp/results/pfllib-times.txt (FEDMOS_PFLLIB_TIMES=0 leaves them out).
# FEDMOS_PFLLIB_PROCESSES: runs at a time, default 14, which is all of them.
# FEDMOS_PFLLIB_METHODS="FedAvg Ditto": these methods only.
# FEDMOS_PFLLIB_ROUNDS: rounds of all methods but FedAvg and FedProx, whose accuracy rises longest; default 2000.
# Runs of FedAvg and FedProx are stored in /tmp/results/pfllib-runs.tar.gz; unpacked as .carry/pfllib-runs, with the JSON
# files in .carry/pfllib-runs/results, they continue.
# pfllib.sh 0.1 with FEDMOS_PFLLIB_ARGS="--images 2000 --eval-every 1" tries everything out.
set -euo pipefail
export MINUTES="${1:-8}" PYTHON="${PYTHON:-python3}" PROCESSES="${FEDMOS_PFLLIB_PROCESSES:-14}"
splits=("${@:2}")
[ "${#splits[@]}" -gt 0 ] || splits=(pathological dirichlet)
export tree=/tmp/tree-pfllib
mkdir -p "$tree/.carry" /tmp/results/pfllib /tmp/pfllib-runs /tmp/mps /tmp/data
cp -r src benchmarks "$tree"
[ ! -d .carry/pfllib ] || cp -r .carry/pfllib "$tree/.carry/"
[ ! -d .carry/pfllib-runs ] || { cp -r .carry/pfllib-runs /tmp/ && cp /tmp/pfllib-runs/results/*.json /tmp/results/pfllib/; }
[ ! -d .carry/small ] || cp -n .carry/small/fmnist.npz /tmp/data/ || true
for method in ${FEDMOS_PFLLIB_METHODS:-FedAvg FedProx Ditto FedRep SCAFFOLD FedPer Local}; do
    rounds="${FEDMOS_PFLLIB_ROUNDS:-2000}"
    case "$method" in FedAvg | FedProx) rounds=2000 ;; esac
    printf '%s\n' "${splits[@]/%/:$method:$rounds}"
done > /tmp/jobs-pfllib
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps PYTHONUNBUFFERED=1 PYTHONPATH=src
export FEDMOS_DATA="${FEDMOS_DATA:-/tmp/data}" FEDMOS_ENGINE="${FEDMOS_ENGINE:-compiled}"
export OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1
nvidia-cuda-mps-control -d || echo "no MPS: processes take turns"
cd "$tree"
setsid bash -c '
    xargs -a /tmp/jobs-pfllib -P "$PROCESSES" -I {} bash -c \
        "log={}; exec \"\$PYTHON\" benchmarks/pfllib.py train {} --minutes \"\$MINUTES\" --out /tmp/results/pfllib \
            --folders /tmp/pfllib-runs \$FEDMOS_PFLLIB_ARGS > /tmp/results/pfllib-\${log//:/-}.log 2>&1"
    cd /tmp/pfllib-runs && tar -czf /tmp/results/pfllib-runs.tar.gz --ignore-failed-read *-FedAvg *-FedProx
    cd "$tree"
    if [ "${FEDMOS_PFLLIB_TIMES:-1}" != 0 ]; then
        unset OMP_NUM_THREADS
        timeout 120 "$PYTHON" benchmarks/pfllib.py time FedAvg SCAFFOLD Ditto > /tmp/results/pfllib-times.txt 2>&1
        [ ! -e .carry/pfllib ] || timeout 180 "$PYTHON" benchmarks/peers/pfllib_job.py FedAvg SCAFFOLD Ditto \
            >> /tmp/results/pfllib-times.txt 2>&1
    fi
    touch /tmp/results/pfllib/done /tmp/results/done
' > /dev/null 2>&1 &
echo "started $(wc -l < /tmp/jobs-pfllib) runs of $MINUTES minutes"
