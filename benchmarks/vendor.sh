#!/usr/bin/env bash
# Put what the command line needs beside torch, numpy, scipy, scikit-learn and safetensors into .carry/cli, for a Linux
# machine where nothing can be installed:
#     bash benchmarks/vendor.sh [PYTHON-VERSION, default 3.12]
# There:
#     PYTHONPATH=src:.carry/cli python -m fedmos reproduce --list
set -euo pipefail
cd "$(dirname "$0")/.."
version="${1:-3.12}"
rm -rf .carry/cli
"${PYTHON:-python3}" -m pip install -q --disable-pip-version-check --no-compile --only-binary=:all: \
    --python-version "$version" --implementation cp --abi "cp${version/./}" --abi abi3 --abi none \
    --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 --platform any \
    --target .carry/cli -c constraints.txt pydantic typer rich
rm -rf .carry/cli/bin
du -sh .carry/cli
