# Each check is one target here; .ci/run calls `make test` and nothing else.
# PYTHON picks the interpreter, ARGS is handed to pytest, the demo or the benchmark, whichever runs.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
SECONDS ?= 60

BIN := $(VENV)/bin
RUN := $(VENV)/.installed-to-run
DEV := $(VENV)/.installed-to-develop
# A change in any of these means the editable install, and the compiled helper in it, is stale.
SOURCES := $(wildcard pyproject.toml setup.py setup.cfg diskcache_like/coherence/*build*.py diskcache_like/coherence/*.[ch])

.DEFAULT_GOAL := help
.PHONY: help demo test lint types imports unit django third-party fuzz docs format bench-quick bench-peers install clean venv-module

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(RUN)  ## see the cache work on the standard library of this Python (ARGS="DIRECTORY --processes N --limit N")
	$(BIN)/python -m diskcache_like demo $(ARGS)

test: lint types imports unit django docs  ## run everything that CI runs

lint: $(DEV)  ## check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(DEV)  ## check types
	$(BIN)/mypy

imports: $(DEV)  ## check that imports point down
	$(BIN)/lint-imports --no-logo

unit: $(DEV)  ## run the tests (ARGS="-k name")
	$(BIN)/python -m pytest $(ARGS)

django: $(DEV)  ## run Django's own cache tests on DjangoCache
	$(BIN)/python -m tests.django_suite

third-party: $(DEV)  ## run other projects' tests with DiskCache and on this package (ARGS="PROJECT ...")
	$(BIN)/python -m tests.third_party $(ARGS)

fuzz: $(DEV)  ## feed the decoders what nobody wrote (SECONDS=600 ARGS="--seed 7")
	$(BIN)/python -m tests.fuzz_codecs --seconds $(SECONDS) $(ARGS)

docs: $(DEV)  ## build the documentation into docs/_build/html, warnings being errors
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

format: $(DEV)  ## rewrite the code to the project's style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench-quick: $(DEV)  ## measure against DiskCache in one run
	$(BIN)/python -m benchmarks.quick $(ARGS)

bench-peers: $(DEV)  ## measure beside Memcached, Redis and other stores; installs them where it may
	@command -v memcached >/dev/null && command -v redis-server >/dev/null || \
	    apt-get install -y -q memcached redis-server || echo "memcached and redis-server could not be installed" >&2
	$(BIN)/python -m pip install -q '.[peers]' || echo "some clients could not be installed" >&2
	$(BIN)/python -m benchmarks.quick --only peers $(ARGS)

install: $(DEV)  ## make .venv with everything needed to work on the project

clean:  ## remove .venv and everything built
	rm -rf $(VENV) build dist docs/_build .cache .tox .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf *.egg-info diskcache_like/coherence/_native*.so diskcache_like/coherence/_native*.o
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(MAKE) --no-print-directory venv-module
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# Debian ships Python without the part of it that makes environments.
venv-module:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing python3-venv, which $(PYTHON) needs to make $(VENV)"; \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv; \
	else \
	    echo "$(PYTHON) cannot make $(VENV); install its venv module: sudo apt-get install python3-venv" >&2; exit 1; \
	fi

$(RUN): $(SOURCES) | $(BIN)/python
	@echo "installing diskcache_like into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[native,progress]'
	@touch $@

# Installs a superset of what the demo needs, so it settles that stamp as well.
$(DEV): $(SOURCES) | $(BIN)/python
	@echo "installing diskcache_like and the tools to work on it into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(RUN) $@
