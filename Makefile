# Everything runs in .venv, which these targets make and fill by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-faults lint bench clean

demo: $(READY)        ## compare FedAvg, FedProx and FedMoS on real digits; table and report
	$(BIN)/fedmos demo

test: $(READY)        ## lint, type-check, and run the tests that CI runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

test-faults: $(READY) ## the slow suite: fuzzed configurations and data, and other faults
	$(BIN)/pytest -m slow tests/faults

lint: $(READY)        ## mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/mypy

bench: $(READY)       ## seconds a round of every engine, beside a loop by hand and beside centralised training
	$(BIN)/python benchmarks/engines.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
