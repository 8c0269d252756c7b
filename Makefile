# `make demo`, `make check` (quick) and `make test` (all) need Python 3.11 or newer and make; they make .venv on the first run.
PYTHON ?= python3
BIN := .venv/bin

# Tests run on all cores, one thread each.
PYTEST := $(BIN)/pytest -n auto --maxprocesses 8 --dist worksteal

.PHONY: demo check test bench clean

demo: .venv/core
	$(BIN)/bayescade demo --out demo

check: .venv/dev
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(PYTEST) -m "not slow"

test: .venv/dev
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(PYTEST)

# Speed on this machine's CPU, a quarter of an hour; peers are timed if they are installed.
bench: .venv/dev
	$(BIN)/python benchmarks/projectors.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/inference.py --samples 24

.venv/core: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/dev: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@ .venv/core

.venv/bin/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'bayescade needs Python 3.11 or newer; try: make PYTHON=python3.11')"
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv demo
