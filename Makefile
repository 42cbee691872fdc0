# make demo    train, export and check a digit classifier
# make test    every test, lint and types included     (ARGS="-k layers" goes to pytest)
# make lint    ruff and mypy alone
# make bench   every benchmark                         (PEERS=path/to/python adds the peers installed there)
#
# Each creates .venv with PYTHON and installs what it needs, once; later runs start at once.

PYTHON ?= python3
PEERS ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench
.DELETE_ON_ERROR: # a virtual environment without pip is no environment

demo: $(VENV)/.demo
	$(BIN)/python -m engine.tools.demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy

bench: $(VENV)/.dev
	$(if $(PEERS),EDGEGRAD_BENCH_PEERS="$(abspath $(PEERS))") $(BIN)/python -m pytest bench \
		--benchmark-columns=min,median,iqr,rounds --benchmark-sort=name $(ARGS)

$(VENV)/.demo $(VENV)/.dev: $(VENV)/.%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: make PYTHON=path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
