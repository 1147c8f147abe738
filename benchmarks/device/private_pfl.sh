#!/usr/bin/env bash
# benchmarks/private_pfl.py and pfl's own code, in the background: private_pfl.sh [MINUTES, default 25]
# First, a short run of each is timed alone, unless FEDMOS_PRIVATE_TIMES=0. Then all runs start, FEDMOS_PRIVATE_PROCESSES
# (default 16) at a time: one process for the seeds of a method here, and one for each seed of pfl. A process ends by
# itself after so many minutes. Each run writes /tmp/results/studies/private-pfl/NAME.json again after every evaluation.
# FEDMOS_PRIVATE_METHODS (default "FedAvg FedAvgM FedMoS"): methods here; pfl trains FedAvg.
# FEDMOS_PRIVATE_ARGS="--images 500 --rounds 3 --eval-every 1" tries everything out.
set -euo pipefail
export MINUTES="${1:-25}" PYTHON="${PYTHON:-python3}" PROCESSES="${FEDMOS_PRIVATE_PROCESSES:-16}"
export OUT_RUNS=/tmp/results/studies/private-pfl
tree=/tmp/tree-private-pfl
mkdir -p "$tree" "$OUT_RUNS" /tmp/mps
cp -r src benchmarks .carry/accounting .carry/pfl "$tree"
cd "$tree"
settings=("iid" "dirichlet" "iid --no-private")
ours="accounting benchmarks/private_pfl.py" theirs="pfl benchmarks/peers/pfl_private_job.py"
for setting in "${settings[@]}"; do
    echo "$ours $setting --timed --rounds 110 --eval-every 10"
    echo "$theirs $setting --timed --rounds 40 --eval-every 10"
done > times
for method in ${FEDMOS_PRIVATE_METHODS:-FedAvg FedAvgM FedMoS}; do
    printf "$ours %s --seeds 0 1 2 --method $method\n" "${settings[@]}"
done > jobs
for setting in "${settings[@]}"; do
    printf "$theirs $setting --seeds %s\n" 0 1 2
done >> jobs
cat > one.sh <<'JOB' # packages, program, arguments …: a run
packages="$1"
shift
log="/tmp/log-$(tr -c 'A-Za-z0-9\n' - <<< "$*")"
PYTHONPATH="src:$packages" "$PYTHON" "$@" --minutes "$MINUTES" --out "$OUT_RUNS" $FEDMOS_PRIVATE_ARGS > "$log" 2>&1 ||
    { echo "failed: $*"; tail -n 2 "$log"; } >> /tmp/results/private-pfl.log
JOB
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps PYTHONUNBUFFERED=1
export FEDMOS_DATA="${FEDMOS_DATA:-/tmp/data}" FEDMOS_ENGINE="${FEDMOS_ENGINE:-compiled}"
export FEDMOS_PRIVATE_ARGS="${FEDMOS_PRIVATE_ARGS:-}" OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1
nvidia-cuda-mps-control -d || echo "no MPS: processes take turns"
setsid bash -c '
    [ "${FEDMOS_PRIVATE_TIMES:-1}" = 0 ] || xargs -a times -L 1 bash one.sh
    xargs -a jobs -L 1 -P "$PROCESSES" bash one.sh
    touch /tmp/results/done
' > /dev/null 2>&1 &
echo "started $(wc -l < jobs) processes of $MINUTES minutes, after $(wc -l < times) for times"
