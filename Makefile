# The two commands are `make nightly` and `make test`; both need Python >= 3.10, git and make.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

# Most slow tests wait most of the time, so they run in two processes per core, and the small ones in one; up to 8.
# ARGS="-n 0" runs tests in one process, as a debugger needs it.
PYTEST := $(VENV)/bin/python -m pytest --maxprocesses 8
PROCESSES = $$($(VENV)/bin/python -c 'import os; print(2 * (os.cpu_count() or 1))')

.PHONY: help setup nightly test test-fast test-nightly dev lint clean

help:
	@echo "make nightly  run a whole nightly of the example backend here"
	@echo "make test     run the tests; those that need an outside service are skipped where there is none"
	@echo "make test-fast     run the small tests only, in a minute"
	@echo "make test-nightly  run the longer tier: whole nights, a fuzzer, 50 kills of an ingest, 200 on pools, 300 of builds, 200 of the relay, kills of a real Bazel"
	@echo "make dev      open the Dagster UI on the same data, http://127.0.0.1:3000"
	@echo "make lint     run ruff, mypy and the import rules"
	@echo "make setup    create the environment that all of these share"
	@echo "make clean    remove the environment and the data folder"

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed; try make PYTHON=python3.11 …"; exit 1; }
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the pinned environment into $(VENV) …"
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check -r requirements.lock
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --editable .
	@touch $@

nightly: setup
	$(VENV)/bin/accel-ci run nightly $(ARGS)

test: setup
	$(PYTEST) -n $(PROCESSES) -m "not long" $(ARGS)

test-fast: setup
	$(PYTEST) -n logical -m "not slow" $(ARGS)

test-nightly: setup
	$(VENV)/bin/python -m pip install -qq --disable-pip-version-check atheris==3.0.0
	ACCEL_CI_KILLS=50 ACCEL_CI_FUZZ_RUNS=100000 ACCEL_CI_POOL_KILLS=86 ACCEL_CI_BUILD_KILLS=300 ACCEL_CI_RELAY_KILLS=100 ACCEL_CI_LONG=1 $(PYTEST) -n $(PROCESSES) -m "nightly or long" $(ARGS)

dev: setup
	$(VENV)/bin/accel-ci dev $(ARGS)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

clean:
	rm -rf $(VENV) .accel_ci
