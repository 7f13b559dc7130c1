# Two commands from a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 2

.PHONY: demo test matrix check bench docs slow fuzz lock wheel image clean

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# A stamp per set of packages, so that a second run installs nothing.
#
# Every file is checked against the digest in a lock, the build backend included. torch alone comes without one: its CPU,
# CUDA and ROCm builds share a version and differ in their digests (and bring packages of their own along), so it is held
# by its version. pip's checking of digests knows no editable packages, hence the last line of each.
$(VENV)/installed: pyproject.toml constraints.txt requirements/run.lock | $(VENV)/bin/python
	$(BIN)/pip install --quiet --require-hashes --no-deps -r requirements/run.lock
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt requirements/dev.lock | $(VENV)/bin/python
	$(BIN)/pip install --quiet --require-hashes --no-deps -r requirements/dev.lock
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/pip check
	@touch $@ $(VENV)/installed

demo: $(VENV)/installed
	$(BIN)/spotless demo

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# One process a core, one thread each: small tensors gain nothing from more.
test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --durations=40 --durations-min=4

# Every Python that the package allows and this machine has, each in an environment of its own (`.venv-3.12`).
VERSIONS ?= 3.11 3.12 3.13
matrix:
	@for version in $(VERSIONS); do \
	  if python$$version -c "" 2> /dev/null; \
	  then $(MAKE) test PYTHON=python$$version VENV=.venv-$$version || exit 1; \
	  else echo "python$$version is not here: nothing was tested with it"; fi; \
	done

slow: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m slow

# For every night. A run that was stopped goes on where it was; remove fuzz.log to begin anew.
fuzz: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.fuzz --count 100000 --log fuzz.log --out results/fuzz.json

bench: $(VENV)/installed-dev
	$(BIN)/python benchmarks/operators.py
	$(BIN)/python benchmarks/fit_many.py

docs: $(VENV)/installed-dev
	$(BIN)/mkdocs build --strict

# After a change of constraints.txt, once `pip install -c constraints.txt -e '.[dev]'` has brought the new versions in.
lock:
	$(BIN)/python requirements/lock.py

# For a package index: README's links become absolute, so the address of the repository must be given.
wheel: $(VENV)/installed-dev
	$(BIN)/python requirements/wheel.py dist "$(REPOSITORY)"

# With podman or docker; Containerfile says how to run it.
CONTAINER ?= podman
image:
	$(CONTAINER) build -f Containerfile -t spotlessnet .

clean:
	rm -rf .venv .venv-3.* site .mypy_cache .pytest_cache .ruff_cache
