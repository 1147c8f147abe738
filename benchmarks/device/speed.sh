#!/usr/bin/env bash
# In the background: the tests of `make test-gpu` and those of codecs, privacy and aggregation on CUDA, while the programs
# of the benchmarks are compiled; then, one after another, networks.py, peers.py, codecs.py and privacy.py.
set -euo pipefail
mkdir -p /tmp/results /tmp/tree
cp -r src benchmarks tests examples docs pyproject.toml README.md /tmp/tree
tar -C /tmp/tree -xJf .carry/bundle/packages.tar.xz
cd /tmp/tree
mkdir -p .carry && mv pfl .carry/
export PYTHONPATH=src:hf:test:cli PYTHONUNBUFFERED=1
setsid bash -c '
    (FEDMOS_TEST_DEVICE=cuda timeout 200 python3 -m pytest -q -n 8 -p no:cacheprovider --durations 10 \
        tests/engine/test_layers_in_engines.py tests/engine/test_recurrent_networks.py tests/kernels \
        tests/engine/test_attention_models.py tests/engine/test_batch_norm.py tests/engine/test_frozen_parameters.py \
        tests/models/test_hugging_face_adapters.py > /tmp/results/tests-networks.log 2>&1
     FEDMOS_TEST_DEVICE=cuda timeout 200 python3 -m pytest -q -n 8 -p no:cacheprovider --durations 10 tests/algorithms \
        tests/codecs tests/privacy tests/aggregation -k "trajectory or agree or identity" > /tmp/results/tests.log 2>&1) &
    tests=$!
    python3 benchmarks/networks.py --help > /tmp/results/help.txt
    printf "%s\n" gpt vit bert-tiny distilbert-lora bert-base-lora gru lstm u-net convnext "resnet, group" "resnet, local" \
        "resnet, local-affine" "resnet, frozen" audio table-mlp wide-mlp |
        timeout 240 xargs -d "\n" -P 6 -I {} python3 benchmarks/networks.py {} --warm > /tmp/results/warm.log 2>&1
    echo "compiled after $SECONDS s" >> /tmp/results/times.txt
    wait $tests
    echo "tests after $SECONDS s" >> /tmp/results/times.txt
    timeout 500 python3 benchmarks/networks.py --rounds 5 > /tmp/results/networks.txt 2> /tmp/results/networks.log
    echo "networks after $SECONDS s" >> /tmp/results/times.txt
    timeout 150 python3 benchmarks/peers.py mnist pfl-cifar --precision tf32 --ways auto pfl --passes 1 > /tmp/results/peers.txt 2>&1
    timeout 90 python3 benchmarks/peers.py lenet --precision bf16 --ways auto pfl --passes 1 >> /tmp/results/peers.txt 2>&1
    echo "peers after $SECONDS s" >> /tmp/results/times.txt
    timeout 180 python3 benchmarks/codecs.py mnist pfl-cifar lenet --device cuda --engine compiled > /tmp/results/codecs.txt 2>&1
    timeout 100 python3 benchmarks/privacy.py mnist --device cuda --engine compiled --repeat 2 > /tmp/results/privacy.txt 2>&1
    echo "all after $SECONDS s" >> /tmp/results/times.txt
    touch /tmp/results/done
' > /dev/null 2>&1 &
echo started
