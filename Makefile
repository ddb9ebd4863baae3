# Two words for newcomers: `make demo` and `make test`. Each needs Python, pip and make, nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# The CPU build of torch; a machine with its own torch may say TORCH=torch, or another version.
TORCH ?= torch==2.13.0

.PHONY: demo test check bench faults clean

demo: $(READY)
	$(BIN)/traceml demo

test: $(READY)
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks

# Every planted fault, several times over: about an hour on two cores.
faults: $(READY)
	$(BIN)/python -m benchmarks.faults --repeats 3

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
	touch $(READY)
