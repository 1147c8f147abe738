#!/usr/bin/env bash
# Put the training code of PFLlib, at the commit whose settings benchmarks/pfllib.py has, into .carry/pfllib:
#     bash benchmarks/peers/vendor_pfllib.sh
# PFLLIB: a git directory of it, if there is a copy on this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
commit=d832e76f6a23b833038949ec1e4fdefe63a4d350
source="${PFLLIB:-}"
if [ -z "$source" ]; then
    source="$(mktemp -d)"
    trap 'rm -rf "$source"' EXIT
    git clone -q --bare --filter=blob:none https://github.com/TsingZ0/PFLlib "$source"
fi
rm -rf .carry/pfllib
mkdir -p .carry/pfllib/system
git --git-dir="$source" archive "$commit:system" flcore utils | tar -x -C .carry/pfllib/system
git --git-dir="$source" show "$commit:LICENSE" > .carry/pfllib/LICENSE
du -sh .carry/pfllib
