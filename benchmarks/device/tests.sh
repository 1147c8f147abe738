#!/usr/bin/env bash
# Run the tests of `make test-gpu` with the packages of .carry/test: tests.sh FOLDER. The output goes to FOLDER/tests.log.
set -uo pipefail
export FEDMOS_TEST_DEVICE=cuda PYTHONPATH=src:.carry/test:.carry/cli
log="$1/tests.log"
: > "$log"
pytest() { timeout 300 python3 -m pytest -q -p no:benchmark -p no:cacheprovider -n 8 "$@" >> "$log" 2>&1; }
pytest tests/algorithms -k "trajectory or agree or identity"
pytest tests/engine/test_layers_in_engines.py tests/engine/test_recurrent_networks.py tests/kernels/test_recurrence.py
pytest tests/engine/test_attention_models.py tests/engine/test_frozen_parameters.py tests/models/test_hugging_face_adapters.py \
    -k "agree or hugging"
grep -E "passed|failed|error" "$log"
