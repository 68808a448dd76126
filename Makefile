# Commands of the project. Everything runs in .venv, from the locked requirements; nothing is installed outside it.
.DEFAULT_GOAL := help
# the first Python in PATH that is new enough; make PYTHON=… chooses another. A variable of the environment does not: others use that name
ifeq ($(findstring command,$(origin PYTHON)),)
PYTHON = $(shell for python in python3.11 python3.12 python3.13 python3.14 python3; do "$$python" -I -c \
	'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
endif
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
# a variable of the environment is not meant by these, either
DATA   := data
ARGS   :=
# the suite starts hundreds of interpreters, and without byte code each would compile Mooring again
unexport PYTHONDONTWRITEBYTECODE
# modules and settings of another Python, and settings with which pytest or pip does not run
unexport PYTHONHOME PYTHONPATH PYTHONSAFEPATH PYTHONUSERBASE PYTHONIOENCODING PYTHONOPTIMIZE PYTHONWARNINGS PYTHONINSPECT
# recipes replace their shell by exec, so that a signal that ends make ends what it runs
# in continuous integration the order of tests is the same in each run, so that a failure comes from the change
ORDER := $(if $(filter-out 0 false,$(CI)),--randomly-seed=1,)
# tracing takes a third longer, so that it is left to continuous integration and to `make coverage`
GATE := $(if $(filter-out 0 false,$(CI)),--cov --cov-branch --cov-report= --pure-coverage,)

.PHONY: help setup demo test test-all test-long faults test-changed steady coverage check bench up lock format clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

VERSION := import sys; print("%d.%d" % sys.version_info[:2])
# tests/environment.py says that one is too old, and is itself no syntax of these
RUNS := import sys; print(sys.version_info >= (3, 8))
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(if $(filter /%,$(VENV)),,$(CURDIR)/)$(VENV) $(shell \
	test -x $(BIN)/python && $(if $(findstring command,$(origin PYTHON)),"$(PYTHON)",$(BIN)/python) -I -c '$(VERSION)' 2>/dev/null))
.PHONY: $(STAMP) # no environment yet, an unfinished one, or one of another folder or Python
endif
$(STAMP): requirements/dev.lock pyproject.toml
	@python="$(PYTHON)"; if [ -z "$$python" ]; then echo "error: no Python 3.11 or newer in PATH: install it \
	(Debian, Ubuntu: apt install python3 python3-venv), or name one: make PYTHON=/path/to/python3" >&2; exit 1; fi; \
	test "$$("$$python" -I -c '$(RUNS)' 2>/dev/null)" = True || { echo "error: $$python is not a Python that runs, or one before 3.8: make PYTHON=/path/to/python3" \
	>&2; exit 1; }; \
	exec "$$python" tests/environment.py $(VENV)

setup: $(STAMP) ## make .venv with all requirements

demo: setup ## run a server, create a token, join three machines: every step with its time
	@exec $(BIN)/python -m tests.demo

up: setup ## run a server: state in ./data, admin kubeconfig at ./data/admin.conf
	@exec $(BIN)/mooring up --data-dir "$(DATA)"

test: setup ## run the tests of a change; ARGS="-k rbac" runs some; CI=true adds the coverage gate of the pure rooms
	exec $(BIN)/python -m pytest -n auto --dist worksteal $(ORDER) -m "not scenario" $(GATE) $(ARGS)

test-all: setup ## run the rest: scenarios, real clients, faults and crashes
	exec $(BIN)/python -m pytest -n auto --dist worksteal $(ORDER) -m scenario $(ARGS)

faults: setup ## run 300 seeds of failing file operations; MOORING_FAULT_SEEDS=1000-2000 chooses others
	MOORING_FAULT_SEEDS="$${MOORING_FAULT_SEEDS:-0-299}" exec $(BIN)/python -m pytest -n auto --dist worksteal -m faults $(ARGS)

test-long: setup ## run what takes longest, about 40 minutes: those seeds, and 2 000 examples of a property; ARGS chooses among the properties
	$(MAKE) faults ARGS=
	HYPOTHESIS_PROFILE=thorough exec $(BIN)/python -m pytest -n auto --dist worksteal --timeout 3600 -m hypothesis $(ARGS)

test-changed: setup ## run the tests of the rooms that the working tree touches
	exec $(BIN)/python -m tests.changed $(ARGS)

steady: setup ## find tests that wait for luck: every test in a new order, on a busy machine with a slow disk
	exec $(BIN)/python -m tests.steady $(ARGS)

coverage: setup ## run the whole suite, and print the coverage of every room
	exec $(BIN)/python -m pytest -n auto --dist worksteal --cov --cov-branch --cov-report= --room-coverage

check: setup ## check lint, format, types, layers and purity, generated pages, citations
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -c 'import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())'
	$(BIN)/python -m tests.generated --check
	$(BIN)/python -m tests.citations
	$(BIN)/python -m tests.locks --closed

format: setup ## format the tree, and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## measure Mooring's figures beside those of Kubernetes
	exec $(BIN)/python -m bench

lock: setup ## renew requirements/*.lock for every Python; ARGS=--check lists what is behind, ARGS=--keep keeps versions
	exec $(BIN)/python -m tests.locks $(ARGS)

clean: ## remove the files that the targets made (not ./data)
	rm -rf $(VENV) .venv-newest-pip .keystone .ansible .bench .coverage .coverage.* .*_cache .hypothesis
