# make demo         train, export and check a digit classifier
# make test         every test, lint and types included     (ARGS="-k layers" goes to pytest)
# make test-all     the same, and at length what `make test` samples
# make fuzz         hostile models, files and arguments (N=10000 mutations, ARGS="--what plans --seed 5")
# make test-random  random small models, each computed in every way (N=10000 graphs, SEED=5 of the first)
# make test-torch   the tests of Trainer.from_torch, and what pages show of PyTorch; installs it
# make test-aim     the test of AimLog; installs Aim, 230 MB with what it needs
# make test-oldest  the core tests with the oldest versions that pyproject.toml allows
# make lint         ruff and mypy alone, then the largest files and functions
# make docs         the documentation site, in build/docs; a warning is an error
# make pictures     the pictures of docs/gallery.md and docs/reports.md, by a headless browser
# make builds       every target and kind of build with five models; writes docs/build-matrix.md
# make languages    every language on every platform that this machine can run: 10,000 sessions, both models; fetches 9 GB
# make wheels       the sdist and the wheels of all platforms, in dist/
# make examples     the applications of examples/, whole, and their table; example-NAME: one of them
# make bench        the benches that ARGS names; their list without   (PEERS=path/to/python adds the peers installed there)
# make bench-table  the table of training steps, MobileNetV2's among them, at 1 and 2 threads   (PEERS: as above)
# make bench-cores  inner loops on cores of ARM, by LLVM's analyser; writes docs/cores.md
#
# Each creates .venv (test-oldest: .venv-oldest) with PYTHON and installs what it needs, once; later
# runs start at once.  Tests run on every core; ARGS="-n 0" runs them in one process.

PYTHON ?= python3
PEERS ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest
N ?= 10000
SEED ?= $(shell date +%Y%m%d)000
PARALLEL := -n auto --dist worksteal

# What depends on the packages at run time: artifacts, checkpoints and exports, the compiler, the
# engine.  Not the rows of operators and opsets that came with a newer onnx than the oldest allowed.
CORE := $(foreach name,api artifacts checkpoint control custom differentiate export faults \
	goldens infer losses math patterns plan runtime,$(filter-out tests/torch/%,$(wildcard tests/*/test_$(name).py)))

# Beside a program, Python takes a clone called `edgegrad` for a package, before it asks setuptools
# where the editable one is; a folder on its path that has this package is found first.
define FIND_ALIAS
import pathlib, sys, sysconfig
pathlib.Path(sysconfig.get_path("purelib"), "edgegrad-alias.pth").write_text(sys.argv[1] + chr(10))
endef
export FIND_ALIAS

.PHONY: demo test test-all fuzz test-random test-torch test-aim test-oldest lint docs pictures builds languages wheels examples bench bench-table bench-cores
.DELETE_ON_ERROR: # a virtual environment without pip is no environment

demo: $(VENV)/.demo
	$(BIN)/python -m engine.tools.cli demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL) --whole $(ARGS)

fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz $(N) $(ARGS)
	$(BIN)/python -m tests.fuzz.native $(N)

test-random: $(VENV)/.dev
	$(BIN)/python -m tests.random_graphs $(N) --seed $(SEED) $(ARGS)

test-torch: $(VENV)/.dev $(VENV)/.torch-tests
	$(BIN)/python -m pytest tests/torch tests/docs/test_pages.py $(ARGS)

test-aim: $(VENV)/.dev $(VENV)/.aim
	$(BIN)/python -m pytest tests/aim $(ARGS)

test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest $(PARALLEL) $(CORE) $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest -q -n 0 tests/house/test_english.py
	$(BIN)/python -m tests.support.sizes

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -b html -W --keep-going -n -d build/doctrees $(ARGS) docs build/docs

pictures: $(VENV)/.dev
	$(BIN)/python -m engine.tools.dev.pictures

builds: $(VENV)/.dev
	$(BIN)/python -m bench builds --page $(ARGS)

languages: $(VENV)/.dev
	$(BIN)/python -m tests.support.roots
	$(BIN)/python -m pytest --whole $(ARGS) tests/bindings

wheels: $(VENV)/.wheels
	$(BIN)/python -m engine.tools.dev.wheels $(ARGS)

examples: $(VENV)/.dev
	$(BIN)/python -m bench examples --page $(ARGS)

example-%: $(VENV)/.dev
	$(BIN)/python -m bench examples $* $(ARGS)

bench: $(VENV)/.dev
	$(if $(PEERS),EDGEGRAD_BENCH_PEERS="$(abspath $(PEERS))") $(BIN)/python -m bench $(ARGS)

bench-table: $(VENV)/.dev
	$(if $(PEERS),EDGEGRAD_BENCH_PEERS="$(abspath $(PEERS))") $(BIN)/python -m bench steps $(ARGS)

bench-cores: $(VENV)/.dev
	$(BIN)/python -m bench cores --page $(ARGS)

$(VENV)/.aim $(VENV)/.demo $(VENV)/.dev $(VENV)/.docs $(VENV)/.torch-tests $(VENV)/.wheels: $(VENV)/.%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[$*]'
	@$(BIN)/python -c "$$FIND_ALIAS" "$(CURDIR)/engine/alias"
	@touch $@

# Every `name>=version,<limit` of the project's dependencies as `name==version`.
$(OLDEST)/.installed: pyproject.toml | $(OLDEST)/bin/python
	$(OLDEST)/bin/python -c 'import tomllib; \
		project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print(*(d.split(",")[0].replace(">=", "==") for d in project["dependencies"]), sep="\n")' \
		> $(OLDEST)/oldest.txt
	$(OLDEST)/bin/python -m pip install --disable-pip-version-check --editable . \
		--requirement $(OLDEST)/oldest.txt hypothesis onnxruntime pytest pytest-benchmark pytest-xdist
	@touch $@

$(BIN)/python $(OLDEST)/bin/python: %/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: make PYTHON=path/to/python3.11")'
	$(PYTHON) -m venv $*
