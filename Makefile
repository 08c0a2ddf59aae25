PYTHON ?= python3
ARGS ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help train speedup test test-gpu test-timing tensorboard format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

train: .venv/installed ## train; ARGS="model=gpt data=stdlib_text perf=all" overrides the default
	$(BIN)/python train.py $(ARGS)

speedup: .venv/installed ## what each technique is worth here (six minutes on two cores); ARGS="experiment=gpt2" for another run
	$(BIN)/python train.py study=techniques study.blocks=3 study.compile_cache=warm \
		train.max_steps=50 meter.warmup_steps=15 $(ARGS)

test: .venv/installed-test ## lint, types and the tests that need no GPU
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -m "not gpu and not timing"

test-gpu: .venv/installed-test ## the tests that need a GPU
	$(BIN)/pytest -m gpu

test-timing: .venv/installed-test ## whole studies with planted effects; needs a quiet machine
	$(BIN)/pytest -m timing

tensorboard: .venv/installed ## show all runs under outputs/
	$(BIN)/tensorboard --logdir outputs

format: .venv/installed-test ## sort imports and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment, caches and build leftovers; outputs/ stays
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

.venv/installed-test: pyproject.toml .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@
