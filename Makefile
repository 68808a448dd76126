# Commands of the project. Everything runs in .venv, from the locked requirements; nothing is installed outside it.
.DEFAULT_GOAL := help
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
DATA   ?= data
# the suite starts hundreds of interpreters, and without byte code each would compile Mooring again
unexport PYTHONDONTWRITEBYTECODE
# in continuous integration the order of tests is the same in each run, so that a failure comes from the change
ORDER := $(if $(CI),--randomly-seed=1,)

.PHONY: help setup demo test test-all coverage check bench up lock format clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(STAMP): requirements/dev.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed: install it or run make PYTHON=python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip check --disable-pip-version-check >$(VENV)/check.log || { cat $(VENV)/check.log; exit 1; }
	@touch $@

setup: $(STAMP) ## make .venv with all requirements

demo: setup ## run a server, create a token, join three machines: every step with its time
	@$(BIN)/python -m tests.demo

up: setup ## run a server: state in ./data, admin kubeconfig at ./data/admin.conf
	@$(BIN)/mooring up --data-dir $(DATA)

test: setup ## run the tests of a change, with the coverage gate of the pure rooms
	$(BIN)/python -m pytest -n auto --dist worksteal $(ORDER) -m "not scenario" --cov --cov-branch --cov-report= --pure-coverage

test-all: setup ## run the rest: scenarios, real clients, faults and crashes
	$(BIN)/python -m pytest -n auto --dist worksteal $(ORDER) -m scenario

coverage: setup ## run the whole suite, and print the coverage of every room
	$(BIN)/python -m pytest -n auto --dist worksteal --cov --cov-branch --cov-report= --room-coverage

check: setup ## check lint, format, types, layers and purity, generated pages, citations
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.generated --check
	$(BIN)/python -m tests.citations

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## measure Mooring's figures beside those of Kubernetes
	$(BIN)/python -m bench

lock: setup ## renew requirements/*.lock from pyproject.toml
	$(BIN)/python -m pip install --quiet pip-tools
	for extra in run dev; do $(BIN)/pip-compile --quiet --generate-hashes --no-strip-extras --allow-unsafe --no-emit-options \
		--no-header --no-annotate --output-file requirements/$$extra.lock --extra cel --extra etcd --extra pkcs11 $$([ $$extra = dev ] && echo --extra dev) \
		pyproject.toml || exit 1; done

clean: ## remove the files that the targets made (not ./data)
	rm -rf $(VENV) .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis
