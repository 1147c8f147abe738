#!/usr/bin/env bash
# Put what the jobs of this folder need beside torch, numpy, scipy, scikit-learn and safetensors into .carry/, in parts
# small enough to be sent one by one to a GPU machine without network:
#     bash benchmarks/device/prepare.sh [PYTHON-VERSION, default 3.12]
# CIFAR-10, MNIST and Fashion-MNIST are read as NAME.npz from $FEDMOS_DATA, default ~/.cache/fedmos.
set -euo pipefail
cd "$(dirname "$0")/../.."
version="${1:-3.12}"
data="${FEDMOS_DATA:-$HOME/.cache/fedmos}"

fetch() { # folder, packages …: wheels for the other machine's Python, without what they depend on
    local folder=".carry/$1"
    shift
    rm -rf "$folder"
    "${PYTHON:-python3}" -m pip install -q --disable-pip-version-check --no-compile --no-deps --only-binary=:all: \
        --python-version "$version" --implementation cp --abi "cp${version/./}" --abi abi3 --abi none \
        --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux_2_28_x86_64 --platform any \
        --target "$folder" -c constraints.txt "$@"
    rm -rf "$folder/bin"
}

bash benchmarks/vendor.sh "$version"
bash benchmarks/peers/vendor.sh "$version"
fetch test pytest pytest-xdist execnet pluggy iniconfig hypothesis sortedcontainers attrs packaging pygments \
    dp-accounting absl-py dm-tree mpmath wrapt peft accelerate psutil pyyaml
# What the option privacy= needs, for jobs that send little.
fetch accounting dp-accounting absl-py dm-tree mpmath wrapt attrs
fetch hf transformers tokenizers huggingface-hub hf-xet regex pyyaml filelock fsspec tqdm requests packaging \
    typing-extensions httpx httpcore anyio certifi h11 idna sniffio shellingham typer click rich
# Of transformers, only the models of the tests and benchmarks travel.
models=.carry/hf/transformers/models
for folder in "$models"/*/; do
    case "$(basename "$folder")" in
        auto | bert | bloom | distilbert | gpt2 | vit | roberta | encoder_decoder) ;;
        *) rm -rf "$folder" ;;
    esac
done
find .carry/hf .carry/test .carry/accounting -name '*.pyi' -delete
find .carry/hf .carry/test .carry/accounting -type d -name tests -prune -exec rm -rf {} +

"${PYTHON:-python3}" benchmarks/device/cifar10.py pack "$data/cifar10.npz" .carry  # in three parts; needs numpy
mkdir -p .carry/small && cp "$data/mnist.npz" "$data/fmnist.npz" .carry/small/
# Most packages in one file, for a job that needs many of them.
mkdir -p .carry/bundle && cp "$data/mnist.npz" .carry/bundle/
tar -C .carry -c hf test cli pfl accounting | xz -T0 -3 > .carry/bundle/packages.tar.xz
du -sh .carry/*
