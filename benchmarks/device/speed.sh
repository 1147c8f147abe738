#!/usr/bin/env bash
# In the background: speed.sh [PART …], default tests networks peers codecs privacy (9 minutes). First the tests of layers
# and networks on CUDA run while programs are compiled; then, one after another, networks.py, the three jobs beside pfl,
# and the cost of codecs and of privacy. With FEDMOS_WARM_ONLY=1 programs are compiled and nothing is timed.
set -euo pipefail
mkdir -p /tmp/results /tmp/tree
[ $# -gt 0 ] || set -- tests networks peers codecs privacy
export PARTS=" $* "
cp -r src benchmarks tests examples docs pyproject.toml README.md /tmp/tree
[ ! -e .carry/bundle ] || tar -C /tmp/tree -xJf .carry/bundle/packages.tar.xz
cd /tmp/tree
[ ! -e pfl ] || { mkdir -p .carry && rm -rf .carry/pfl && mv pfl .carry/; }
export PYTHONPATH=src:hf:test:cli:accounting PYTHONUNBUFFERED=1
setsid bash -c '
    chosen() { [[ "$PARTS" == *" $1 "* ]]; }
    peers() { # lenet multiplies in bf16, the others in tf32
        timeout 150 python3 benchmarks/peers.py mnist pfl-cifar --precision tf32 --passes 1 --ways "$@"
        timeout 90 python3 benchmarks/peers.py lenet --precision bf16 --passes 1 --ways "$@"
    }
    codecs() { timeout 150 python3 benchmarks/codecs.py mnist pfl-cifar lenet --device cuda --engine compiled "$@"; }
    privacy() { timeout 150 python3 benchmarks/privacy.py mnist pfl-cifar --device cuda --engine compiled "$@"; }
    if chosen tests; then
        FEDMOS_TEST_DEVICE=cuda timeout 170 python3 -m pytest -q -n 6 -p no:cacheprovider -p no:benchmark tests/kernels \
            tests/engine/test_layers_in_engines.py tests/engine/test_recurrent_networks.py \
            tests/engine/test_attention_models.py tests/engine/test_batch_norm.py tests/engine/test_frozen_parameters.py \
            tests/models/test_hugging_face_adapters.py > /tmp/results/tests.log 2>&1 &
    fi
    ! chosen peers || peers compiled > /tmp/results/warm-peers.log 2>&1 &
    ! chosen codecs || codecs --repeat 1 > /tmp/results/warm-codecs.log 2>&1 &
    ! chosen privacy || privacy --repeat 1 > /tmp/results/warm-privacy.log 2>&1 &
    printf "%s\n" ${FEDMOS_NETWORKS:-gpt vit bert-tiny distilbert-lora bert-base-lora gru lstm u-net convnext resnet,_group \
        resnet,_local resnet,_frozen audio table-mlp wide-mlp} | tr _ " " > /tmp/networks
    ! chosen networks || xargs -a /tmp/networks -d "\n" -P 8 -I {} timeout 150 python3 benchmarks/networks.py {} --warm \
        > /tmp/results/warm.log 2>&1
    wait
    echo "tested and compiled after $SECONDS s" >> /tmp/results/times.txt
    if [ -z "${FEDMOS_WARM_ONLY:-}" ]; then
        mapfile -t networks < /tmp/networks
        ! chosen networks || timeout 420 python3 benchmarks/networks.py --row "${networks[@]}" --rounds 2 \
            > /tmp/results/networks.txt 2> /tmp/results/networks.log
        echo "networks after $SECONDS s" >> /tmp/results/times.txt
        ! chosen peers || peers compiled pfl > /tmp/results/peers.txt 2>&1
        echo "peers after $SECONDS s" >> /tmp/results/times.txt
        ! chosen codecs || codecs > /tmp/results/codecs.txt 2>&1
        ! chosen privacy || privacy --repeat 3 > /tmp/results/privacy.txt 2>&1
        echo "all after $SECONDS s" >> /tmp/results/times.txt
    fi
    touch /tmp/results/done
' > /dev/null 2>&1 &
echo started
