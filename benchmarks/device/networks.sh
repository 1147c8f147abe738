#!/usr/bin/env bash
# Tests of layers and networks on CUDA, then benchmarks/networks.py, in the background.
set -euo pipefail
cp -r . /tmp/tree 2>/dev/null || true
mkdir -p /tmp/results
cd /tmp/tree
export PYTHONPATH=src:.carry/hf:.carry/test PYTHONUNBUFFERED=1
setsid bash -c '
    FEDMOS_TEST_DEVICE=cuda timeout 170 python3 -m pytest -q -n 8 -x --maxfail 20 tests/engine/test_layers_in_engines.py \
        tests/engine/test_recurrent_networks.py tests/kernels tests/engine/test_attention_models.py tests/engine/test_batch_norm.py \
        tests/engine/test_frozen_parameters.py tests/models/test_hugging_face_adapters.py > /tmp/results/tests.log 2>&1
    timeout 520 python3 benchmarks/networks.py > /tmp/results/networks.txt 2>&1
    touch /tmp/results/done
' > /dev/null 2>&1 &
echo started
