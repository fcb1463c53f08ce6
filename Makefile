# Two commands matter: `make demo` and `make test`. Both set up everything they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One thread per pytest worker, two workers: the tests count and compare, they do not time.
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all slow browser lint format bench results clean

help:  ## what each command does
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: $(STAMP)  ## the virtual environment with everything in it

# Made again only when the dependencies change; a set-up that broke off leaves no stamp and is done again.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attnbench needs Python 3.11 or newer, found " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) (a minute or two the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,data,ray]'
	@touch $@

demo: $(STAMP)  ## the quick sweep over the eight named variants: progress, tables, plots, page
	@$(BIN)/attnbench run quick --out results/quick --jobs 2

test: $(STAMP)  ## all tests but the slow, the GPU's and the browser's
	@$(PYTEST) -n $(WORKERS) --dist worksteal

slow: $(STAMP)  ## the longer tests
	@$(PYTEST) -n $(WORKERS) --dist worksteal -m 'slow and not gpu'

browser: $(STAMP)  ## the page in a real browser (needs Chromium)
	@$(PYTEST) -m browser

test-all: test slow browser  ## every test that needs no GPU

lint: $(STAMP)  ## formatting, lint, types, import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(STAMP)  ## put the code into its one format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP)  ## every variant under pytest-benchmark, one after the other
	@$(BIN)/python -m pytest tests/benchmarks --benchmark-autosave

results: $(STAMP)  ## the reference results of results/cpu-2core, all of them anew (hours)
	@for spec in quick recall tasks-short controls lengths operating default decode; do \
		$(BIN)/attnbench run $$spec --out results/cpu-2core/$$spec --jobs 2 --fresh || exit 1; \
	done
	@rm -rf results/cpu-2core/aa results/cpu-2core/twice
	@$(BIN)/python results/proofs/aa.py results/cpu-2core > results/cpu-2core/aa.md
	@for proof in share threads overhead first_steps; do \
		$(BIN)/python results/proofs/$$proof.py > results/cpu-2core/$$proof.md || exit 1; \
	done

clean:  ## remove what the commands made, but for results
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache
