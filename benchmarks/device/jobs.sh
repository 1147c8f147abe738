#!/usr/bin/env bash
# The conformance suite on CUDA, then the three jobs beside pfl, and the cost of codecs and privacy, in the background.
set -euo pipefail
cp -r . /tmp/tree 2>/dev/null || true
mkdir -p /tmp/results
cd /tmp/tree
export PYTHONPATH=src:.carry/test PYTHONUNBUFFERED=1
setsid bash -c '
    FEDMOS_TEST_DEVICE=cuda timeout 240 python3 -m pytest -q -n 8 --maxfail 20 tests/algorithms tests/codecs tests/privacy \
        tests/aggregation -k "trajectory or agree or identity" > /tmp/results/tests.log 2>&1
    timeout 240 python3 benchmarks/peers.py mnist pfl-cifar lenet --ways auto pfl > /tmp/results/peers.txt 2>&1
    timeout 180 python3 benchmarks/codecs.py mnist pfl-cifar lenet --device cuda > /tmp/results/codecs.txt 2>&1
    timeout 120 python3 benchmarks/privacy.py mnist --device cuda > /tmp/results/privacy.txt 2>&1
    touch /tmp/results/done
' > /dev/null 2>&1 &
echo started
