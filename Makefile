# Two commands from a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 2

.PHONY: demo test check bench docs slow fuzz lock clean

.venv/bin/python:
	$(PYTHON) -m venv .venv

# A stamp per set of packages, so that a second run installs nothing.
#
# Every file is checked against the digest in a lock, the build backend included. torch alone comes without one: its CPU,
# CUDA and ROCm builds share a version and differ in their digests (and bring packages of their own along), so it is held
# by its version. pip's checking of digests knows no editable packages, hence the last line of each.
.venv/installed: pyproject.toml constraints.txt requirements/run.lock | .venv/bin/python
	$(BIN)/pip install --quiet --require-hashes --no-deps -r requirements/run.lock
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.venv/installed-dev: pyproject.toml constraints.txt requirements/dev.lock | .venv/bin/python
	$(BIN)/pip install --quiet --require-hashes --no-deps -r requirements/dev.lock
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/pip check
	@touch $@ .venv/installed

demo: .venv/installed
	$(BIN)/spotless demo

check: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# One process a core, one thread each: small tensors gain nothing from more.
test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

slow: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m slow

# For every night. A run that was stopped goes on where it was; remove fuzz.log to begin anew.
fuzz: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.fuzz --count 100000 --log fuzz.log --out results/fuzz.json

bench: .venv/installed-dev
	$(BIN)/python benchmarks/operators.py
	$(BIN)/python benchmarks/fit_many.py

docs: .venv/installed-dev
	$(BIN)/mkdocs build --strict

# After a change of constraints.txt, once `pip install -c constraints.txt -e '.[dev]'` has brought the new versions in.
lock:
	$(BIN)/python requirements/lock.py

clean:
	rm -rf .venv site .mypy_cache .pytest_cache .ruff_cache
