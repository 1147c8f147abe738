#!/usr/bin/env bash
# Put pfl and the pure Python it imports into .carry/pfl, for machines where nothing can be installed:
#     bash benchmarks/peers/vendor.sh [PYTHON-VERSION, default 3.12]
# There, with torch, numpy, scipy, scikit-learn and safetensors:
#     PYTHONPATH=src:.carry/pfl python benchmarks/peers/pfl_job.py mnist
set -euo pipefail
cd "$(dirname "$0")/../.."
rm -rf .carry/pfl
"${PYTHON:-python3}" -m pip install -q --disable-pip-version-check --no-deps --no-compile --only-binary=:all: \
    --python-version "${1:-3.12}" --target .carry/pfl -r benchmarks/peers/requirements-pfl.txt
rm -rf .carry/pfl/bin .carry/pfl/multiprocess/tests .carry/pfl/dill/tests
find .carry/pfl -name '*_test.py' -delete
if find .carry/pfl -name '*.so' | grep .; then
    echo "not pure Python" >&2
    exit 1
fi
du -sh .carry/pfl
bash benchmarks/peers/vendor_pfllib.sh || echo "without PFLlib" >&2
