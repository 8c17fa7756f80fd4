# Each check is one target here; .ci/run calls `make test`, .ci/objectives `make objectives`, and nothing else.
# PYTHON picks the interpreter, ARGS is handed to pytest, the demo or the benchmark, whichever runs.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
SECONDS ?= 60
PROVE_SECONDS ?= 75

# The tests make thousands of caches: in memory, if it may hold programs and has 4 GB left, which is a fifth faster.
MEMORY := $(shell grep -q ' /dev/shm .*noexec' /proc/mounts || \
	df -k /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print "TMPDIR=/dev/shm" }')

BIN := $(VENV)/bin
RUN := $(VENV)/.installed-to-run
DEV := $(VENV)/.installed-to-develop
CORES := diskcache_like/coherence/_native*.so
PEERS := $(VENV)/.installed-to-compare
# A change in any of these means the editable install, and the compiled core in it, is stale.
SOURCES := $(wildcard pyproject.toml setup.py setup.cfg tools/build_backend.py diskcache_like/coherence/*.[ch])

.DEFAULT_GOAL := help
.PHONY: help demo test lint types imports sanitize unit prove prove-short django hosts third-party recipes matrix fuzz fuzz-coverage docs dist wheels format bench bench-codecs bench-frames bench-quick bench-peers compare objectives install clean venv-module bench-async bench-django bench-overview bench-machines bench-hits bench-serving

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(RUN)  ## see the cache work on the standard library of this Python (ARGS="DIRECTORY --processes N --limit N")
	$(BIN)/python -m tools.demo $(ARGS)

# The checks that run in one process come first, two at a time. Where make can, it keeps the output of each together.
test: $(PEERS)  ## run everything that CI runs
	@$(MAKE) --no-print-directory --jobs 2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) \
	    lint types imports sanitize docs dist django hosts recipes
	@$(MAKE) --no-print-directory unit prove-short

lint: $(DEV)  ## check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(DEV)  ## check types
	$(BIN)/mypy

imports: $(DEV)  ## check that imports point down
	$(BIN)/lint-imports --no-logo

sanitize: $(DEV)  ## run the tests of the core in C, compiled with AddressSanitizer and UBSan (ARGS="tests/coherence")
	$(if $(TMPDIR),,$(MEMORY)) $(BIN)/python -m tools.sanitize $(ARGS)

unit: $(PEERS)  ## run the tests (ARGS="-k name")
	$(if $(TMPDIR),,$(MEMORY)) $(BIN)/python -m pytest --numprocesses auto --dist worksteal $(ARGS)

django: $(DEV)  ## run Django's own cache tests on DjangoCache
	$(BIN)/python -m tools.django_suite

hosts: $(DEV)  ## run the tests of the libraries that have adapters here, on these
	$(BIN)/python -m tools.third_party --check

third-party: $(DEV)  ## run other projects' tests as they are and on this package (ARGS="PROJECT ...")
	$(BIN)/python -m tools.third_party $(ARGS)

recipes: $(DEV)  ## run the recipes of docs/libraries.md whose libraries .venv does not have
	$(BIN)/python -m tools.recipes

matrix: $(DEV)  ## run chosen tests with every Python and SQLite at hand (ARGS="--python COMMAND --sqlite VERSION --all --arm64")
	$(BIN)/python -m tools.matrix $(ARGS)

prove: $(PEERS)  ## show the promises by force, in ten minutes (ARGS="--seconds 3600 --only NAME --seed N --list")
	$(BIN)/python -m prove $(ARGS)

prove-short: $(PEERS)  ## show the promises by force, briefly
	$(BIN)/python -m prove --seconds $(PROVE_SECONDS)

fuzz: $(DEV)  ## feed the decoders what nobody wrote (SECONDS=600 ARGS="--seed 7")
	$(BIN)/python -m tools.fuzz_codecs --seconds $(SECONDS) $(ARGS)

fuzz-coverage: $(DEV)  ## have atheris choose by coverage what the decoders are fed (SECONDS=300)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m tools.fuzz_by_coverage --seconds $(SECONDS) $(ARGS)

docs: $(DEV)  ## build the documentation into docs/_build/html, warnings being errors
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

dist: $(DEV)  ## build the source archive and this platform's wheel into dist/, having tried each in an empty environment
	$(BIN)/python -m tools.dist

wheels: dist  ## build the wheels of every Linux, or every Mac, from that archive (needs Docker, or a Mac; ARGS="--archs aarch64")
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[wheels]'
	$(BIN)/python -m cibuildwheel --output-dir dist $(ARGS) dist/*.tar.gz

format: $(DEV)  ## rewrite the code to the project's style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(PEERS)  ## measure percentiles beside every peer, and plot them, in under 20 minutes (ARGS="--list")
	$(BIN)/python -m benchmarks $(ARGS)

bench-overview: $(PEERS)  ## draw the one picture: get, set, delete beside four peers, in 5 minutes (ARGS="--docs README.md")
	$(BIN)/python -m benchmarks.overview $(ARGS)

bench-async: $(PEERS)  ## measure awaited calls beside other caches for asyncio, in 2 minutes (ARGS="--docs docs/results/awaited.md")
	$(BIN)/python -m benchmarks.quick --only awaited $(ARGS)

bench-machines: $(PEERS)  ## measure two machines that share a Redis server beside its other clients (ARGS="--docs docs/results/machines.md")
	$(BIN)/python -m benchmarks.quick --only machines $(ARGS)

bench-hits: $(DEV)  ## replay traces on simulators of eviction policies, in 3 minutes (ARGS="FILE ... --replay --docs docs/results/traces.md")
	$(BIN)/python -m benchmarks.traces --synthetic all --public $(ARGS)

bench-django: $(PEERS)  ## serve a Django page under gunicorn from four caches, in 3 minutes (ARGS="--docs README.md")
	$(BIN)/python -m benchmarks.django_page $(ARGS)

bench-serving: $(PEERS)  ## load `diskcache-like serve` beside Redis and Memcached, in 4 minutes (ARGS="--docs docs/server.md")
	$(BIN)/python -m benchmarks.serving $(ARGS)

bench-quick: $(DEV)  ## measure against DiskCache in one run
	$(BIN)/python -m benchmarks.quick $(ARGS)

bench-peers: $(PEERS)  ## measure beside Memcached, Redis and other stores; installs them where it may
	$(BIN)/python -m benchmarks.quick --only peers $(ARGS)

bench-frames: $(DEV)  ## measure frames and tables against msgpack of their rows, and pickle
	$(BIN)/python -m benchmarks.codecs.frames $(ARGS)

bench-codecs: $(DEV)  ## measure every serializer with every compressor (ARGS="--out DIRECTORY")
	$(BIN)/python -m benchmarks.codecs $(ARGS)

compare: $(DEV)  ## compare the speed of two revisions (ARGS="BASE HEAD", . being the working tree)
	$(BIN)/python -m benchmarks.compare $(ARGS)

objectives: $(PEERS)  ## check the latency objectives of the design beside Memcached and Redis
	$(BIN)/python -m benchmarks.objectives $(ARGS)

install: $(DEV)  ## make .venv with everything needed to work on the project

clean:  ## remove .venv and everything built
	rm -rf $(VENV) build dist docs/_build .cache .tox .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf *.egg-info $(CORES) diskcache_like/coherence/_native*.o
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

# An older core under a name that comes first would be loaded instead of the new one.
$(RUN): $(SOURCES) | $(BIN)/python
	@echo "installing diskcache_like into $(VENV)"
	@rm -f $(CORES)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

# Installs a superset of what the demo needs, so it settles that stamp as well.
$(DEV): $(SOURCES) | $(BIN)/python
	@echo "installing diskcache_like and the tools to work on it into $(VENV)"
	@rm -f $(CORES)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(RUN) $@

# What cannot be installed is named and left out; CI then fails for want of a server, and says so.
$(PEERS): benchmarks/peers/install.py | $(DEV)
	@echo "installing the stores that the benchmarks and their tests compare with"
	@$(BIN)/python -m benchmarks.peers.install
	@touch $@
