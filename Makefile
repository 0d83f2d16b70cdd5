# Every target makes .venv, installs what it needs by itself, and reuses it while the pins are unchanged.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: demo test test-all lint bench clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python >= 3.11 is needed, found " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=24'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt 'torch==2.13.0'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/sage_tune demo

test: $(READY)
	$(BIN)/python -m pytest

test-all: $(READY)
	$(BIN)/python -m pytest -m 'slow or not slow'

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks.replay_exactness
	$(BIN)/python -m benchmarks.host_overhead
	$(BIN)/python -m benchmarks.replay_speed

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
