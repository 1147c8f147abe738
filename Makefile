# Everything runs in .venv, which these targets make and fill by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Flower besides the version that constraints.txt pins
OTHER_FLOWER := 1.42.0
FLOWER_TESTS := tests/flower/local $(addprefix tests/flower/test_,deployed_runs.py registration.py replies.py restarts.py)

.PHONY: demo test test-extended test-deploy test-flower-versions test-faults test-gpu lint docs bench bench-limits bench-peers bench-events clean

demo: $(READY)        ## compare FedAvg, FedProx and FedMoS on real digits; table and report
	$(BIN)/fedmos demo

test: $(READY)        ## lint, check imports and types, and run the tests that CI runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal

test-extended: $(READY)  ## further combinations of methods, selectors and engines, and long single tests
	$(BIN)/pytest -n 2 --dist worksteal -m extended

test-gpu: $(READY)    ## the conformance suite on a GPU, against the same equations, and layers against the loop
	FEDMOS_TEST_DEVICE=cuda $(BIN)/pytest -n 8 tests/algorithms -k "trajectory or agree or identity"
	FEDMOS_TEST_DEVICE=cuda $(BIN)/pytest -n 8 tests/engine/test_layers_in_engines.py tests/engine/test_recurrent_networks.py \
		tests/kernels/test_recurrence.py tests/kernels/test_recurrence_triton.py
	FEDMOS_TEST_DEVICE=cuda $(BIN)/pytest -n 8 tests/engine/test_attention_models.py tests/engine/test_frozen_parameters.py \
		tests/models/test_hugging_face_adapters.py -k "agree or hugging"

test-deploy: $(READY) ## a SuperLink and its SuperNodes: methods, authentication, kills
	$(BIN)/pytest -m deploy tests/flower/deploy

test-flower-versions: .venv-flwr-$(OTHER_FLOWER)/.ready  ## Flower's other version: unit tests, and a deployment of real processes
	.venv-flwr-$(OTHER_FLOWER)/bin/python -c 'import flwr; assert flwr.__version__ == "$(OTHER_FLOWER)", flwr.__version__'
	.venv-flwr-$(OTHER_FLOWER)/bin/python -m pytest -q -n 2 --dist worksteal $(FLOWER_TESTS)
	.venv-flwr-$(OTHER_FLOWER)/bin/python -m pytest -q -m deploy tests/flower/deploy/test_versions.py

test-faults: $(READY) ## kill, starve, damage and race runs: about 15 minutes, prints the figures of docs/reliability.md
	$(BIN)/pytest -q -s -m slow tests/faults tests/flower/deploy

lint: $(READY)        ## fix what can be fixed automatically, then check types
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

docs: $(READY)        ## build the documentation into site/ (open site/index.html), and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python tools/site/check_links.py site

bench: $(READY)       ## seconds a round of every engine, beside a loop by hand and beside centralised training
	$(BIN)/python benchmarks/engines.py

bench-limits: $(READY)  ## seconds of partitions and reports that must not keep a user waiting, beside their limits
	$(BIN)/python benchmarks/limits.py

bench-peers: $(READY) .venv-pfl/.ready .venv-flower/.ready  ## a FedAvg round beside pfl's and Flower's
	$(BIN)/python benchmarks/peers.py

bench-events: $(READY) .venv-appfl/.ready .venv-flower/.ready  ## events a second of asynchronous runs, beside APPFL's and Flower's
	$(BIN)/python benchmarks/events.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

# The packages of .venv with another version of flwr in front of them.
.venv-flwr-%/.ready: $(READY)
	$(PYTHON) -m venv .venv-flwr-$*
	.venv-flwr-$*/bin/pip install -q --disable-pip-version-check --no-deps flwr==$*
	$(BIN)/python -c 'import sys; print("$(CURDIR)/src", *(p for p in sys.path if p.endswith("-packages")), sep="\n")' \
		> $$(echo .venv-flwr-$*/lib/python3*/site-packages)/packages.pth
	touch $@

# Without dependencies: what peers ask for disagrees with constraints.txt, and left alone would bring another torch.
.venv-%/.ready: benchmarks/peers/requirements-%.txt constraints.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip install -q --disable-pip-version-check -c constraints.txt torch numpy scipy scikit-learn safetensors
	.venv-$*/bin/pip install -q --disable-pip-version-check --no-deps -r $<
	touch $@

clean:
	rm -rf $(VENV) .venv-pfl .venv-flower .venv-appfl .venv-flwr-* runs site .pytest_cache .mypy_cache .ruff_cache .hypothesis
