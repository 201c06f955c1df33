# make up       the whole product on this machine, in the foreground
# make test     the suite, against real PostgreSQL and Valkey
# make check    linters, types, import contracts, sizes, migrations
# make mutants  break one law at a time and see the tests notice (some minutes)
# make bench-sharing   what isolation costs in cache hits, on the dialogues below $SALTROUTE_DATA
# make bench-policies  every routing policy on every workload, in simulated time (BENCH_ARGS=--quick: a minute)
# make bench-routing   our router and others over HTTP before the same simulated fleet (twenty minutes; others where they are installed)
# make bench-proxy     what a request costs: CPU, requests/s, added latency
# make soak MINUTES=30 the router's memory under prefixes that come and go (BENCH_ARGS=--kill: what a kill -9 costs)
# make chaos    100,000 requests while ingest, workers and stores are killed: every record counts once (some minutes; BENCH_ARGS="--count 5000")
# PYTHON=...    which Python (3.11 to 3.13) a new .venv is made with

PYTHON ?=
WORKERS ?= 2
PYTEST_ARGS ?=
MINUTES ?= 30
VENV := .venv/bin
PACKAGES := settings tenants namespaces routing console deploy

.PHONY: up test check test-engine mutants bench-sharing bench-policies bench-routing bench-proxy soak chaos lock clean install install-dev

up: install
	@exec $(VENV)/python -m deploy.local up

test: install-dev
	$(VENV)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

check: install-dev
	$(VENV)/ruff check .
	$(VENV)/ruff format --check --quiet .
	$(VENV)/mypy $(PACKAGES) tests manage.py
	$(VENV)/lint-imports
	$(VENV)/python -m deploy.checks.size
	$(VENV)/python -m deploy.checks.paths
	PYTHONWARNINGS=ignore::RuntimeWarning $(VENV)/python manage.py makemigrations --check --dry-run

test-engine: install-dev
	SALTROUTE_REQUIRE_ENGINE=1 $(VENV)/python -m pytest -m engine tests/engine $(PYTEST_ARGS)

mutants: install-dev
	$(VENV)/python -m tests.laws.mutants $(MUTANTS_ARGS)

bench-sharing: install-dev
	$(VENV)/python -m tests.bench.sharing $(BENCH_ARGS)

bench-policies: install-dev
	$(VENV)/python -m tests.bench.policies $(BENCH_ARGS)

bench-routing: install-dev
	$(VENV)/python -m tests.bench.routing $(BENCH_ARGS)

bench-proxy: install-dev
	$(VENV)/python -m tests.bench.proxy $(BENCH_ARGS)

soak: install-dev
	$(VENV)/python -m tests.bench.churn --minutes $(MINUTES) $(BENCH_ARGS)

chaos: install-dev
	$(VENV)/python -m tests.bench.chaos $(BENCH_ARGS)

# Resolve pyproject.toml again into the two lock files, with hashes, for every Python that we support.
lock:
	@PYTHON="$(PYTHON)" sh deploy/local/lock.sh

# Caches and the virtual environment; data and keys of `make up` (.saltroute) stay.
clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +

install:
	@PYTHON="$(PYTHON)" sh deploy/local/install.sh run

install-dev:
	@PYTHON="$(PYTHON)" sh deploy/local/install.sh dev
