#!/usr/bin/env bash
# Profiles, then rows of benchmarks/networks.py one after another: rows.sh
set -uo pipefail
mkdir -p /tmp/results /tmp/tree
cp -r src benchmarks examples /tmp/tree
tar -C /tmp/tree -xJf .carry/bundle/packages.tar.xz
cd /tmp/tree
export PYTHONPATH=src:hf:test:cli PYTHONUNBUFFERED=1
(printf "%s\n" gpt convnext "resnet, group" "resnet, frozen" audio table-mlp wide-mlp |
        timeout 240 xargs -d "\n" -P 7 -I {} python3 benchmarks/networks.py {} --warm > /tmp/results/warm.log 2>&1) &
python3 benchmarks/networks.py bert-tiny lstm gru u-net --profile --rounds 4 > /tmp/results/profile.txt 2> /tmp/results/profile.log
wait
echo "profiles after $SECONDS s"
timeout 170 python3 benchmarks/networks.py gpt convnext "resnet, group" audio table-mlp wide-mlp "resnet, frozen" --rounds 3 > /tmp/results/rows.txt 2> /tmp/results/rows.log
cat /tmp/results/rows.txt
echo "rows after $SECONDS s"
