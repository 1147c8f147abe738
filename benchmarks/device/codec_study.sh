#!/usr/bin/env bash
# The comparisons of examples/mnist_codecs.toml and examples/cifar10_codecs.toml, side by side, in the background.
set -euo pipefail
cp -r . /tmp/tree 2>/dev/null || true
mkdir -p /tmp/results /tmp/data
cp .carry/small/*.npz /tmp/data/
cd /tmp/tree
export PYTHONPATH=src:.carry/cli FEDMOS_DATA=/tmp/data PYTHONUNBUFFERED=1
setsid bash -c '
    python3 -m fedmos compare examples/mnist_codecs.toml --out /tmp/mnist_codecs > /tmp/results/mnist_codecs.log 2>&1 &
    [ -e /tmp/data/cifar10.npz ] &&
        python3 -m fedmos compare examples/cifar10_codecs.toml --out /tmp/cifar10_codecs > /tmp/results/cifar10_codecs.log 2>&1 &
    wait
    for name in mnist_codecs cifar10_codecs; do
        for file in table.json table.md table.csv report.html; do
            [ -e "/tmp/$name/$file" ] && cp "/tmp/$name/$file" "/tmp/results/$name-$file"
        done
    done
    touch /tmp/results/done
' > /dev/null 2>&1 &
echo started
