# Requires Python 3.11 or newer and make; everything else is installed into $(VENV).

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
BENCH_ARGS ?= --help
# Test processes side by side, on two cores. Those of `long` are busy; those of the other suites also wait for processes.
JOBS ?= 2
QUICK_JOBS ?= 3
INTEROP_JOBS ?= 3
DEMO_ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n $(JOBS) --dist worksteal
QUICK := -n $(QUICK_JOBS) --dist worksteal
# Repeats failed tests, one at a time, up to five failures. The first failure stays in the output and in the gate's summary.
ONCE_MORE = || { [ $$? -eq 1 ] && echo "--- failed tests once more" && $(PYTEST) --last-failed --last-failed-no-failures none --maxfail 5

QUICK_TESTS := tests/unit tests/property tests/integration
LONG_TESTS := tests/chaos tests/dashboard tests/fuzz tests/kills tests/packaging tests/powercut

.DEFAULT_GOAL := help
.PHONY: help venv test quick smoke test-all test-containers unit long interop interop-clients spark check static docs coverage fix demo spark-demo spark-zip bench dist docker-check lock clean distclean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## Make the virtual environment (the other targets do so when it is missing)

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit(f"Python 3.11 or newer is needed, this is {v}: make PYTHON=python3.12 ...")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "installing triomq and its tools into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,spark]'
	@touch $@

test: quick smoke ## Show that it works, in minutes: unit, property and integration tests, a Java client, a Spark job

quick: $(INSTALLED) ## Run the unit, property and integration tests
	@$(PYTEST) $(QUICK) $(QUICK_TESTS) $(PYTEST_ARGS) $(ONCE_MORE) $(QUICK_TESTS) $(PYTEST_ARGS); }

smoke: $(INSTALLED) ## Run one scenario of Apache's Java client and one Spark job (Java, Maven)
	@echo "smoke tests with Java: the first run downloads Apache's jars, which takes minutes"
	@$(PYTEST) $(QUICK) tests/interop tests/spark -m smoke $(PYTEST_ARGS) $(ONCE_MORE) tests/interop tests/spark -m smoke $(PYTEST_ARGS); }

test-all: unit interop spark test-containers ## Run all tests; those that need a missing tool are skipped (with CI=true they fail)

unit: $(INSTALLED) ## Run all tests that need only Python
	@$(PYTEST) $(PARALLEL) $(QUICK_TESTS) $(LONG_TESTS) $(PYTEST_ARGS) $(ONCE_MORE) $(QUICK_TESTS) $(LONG_TESTS) $(PYTEST_ARGS); }

long: $(INSTALLED) ## Run the tests of unit that test leaves out: fuzzing, kills, power cuts, chaos, a browser, packages
	@$(PYTEST) $(PARALLEL) $(LONG_TESTS) $(PYTEST_ARGS) $(ONCE_MORE) $(LONG_TESTS) $(PYTEST_ARGS); }

interop: $(INSTALLED) ## Run the tests with Apache's brokers and clients (Java, Maven, Go)
	@$(PYTEST) -n $(INTEROP_JOBS) --dist loadfile tests/interop $(PYTEST_ARGS) $(ONCE_MORE) tests/interop $(PYTEST_ARGS); }

interop-clients: $(INSTALLED) ## Build the programs around clients of Node and Rust, which takes minutes (interop does so too)
	@$(BIN)/python -m tests.interop.other_clients

spark: $(INSTALLED) ## Run the tests with Spark (Java)
	@$(PYTEST) tests/spark $(PYTEST_ARGS) $(ONCE_MORE) tests/spark $(PYTEST_ARGS); }

test-containers: $(INSTALLED) ## Build the image and run each compose file (podman and podman-compose, or Docker)
	@$(PYTEST) tests/containers $(PYTEST_ARGS)

check: static coverage ## Format, lint, types, imports, then `unit` with coverage

static: $(INSTALLED) ## Check format, lint, types and imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/mypy --explicit-package-bases tests bench
	@$(BIN)/lint-imports
	@$(BIN)/python -m bench.size --check
	@find broker client spark -name '*.py' | xargs -P $(JOBS) -n 64 $(BIN)/flake8-async --enable=ASYNC1,ASYNC2,ASYNC913 --startable-in-context-manager=_keep_connections,keep_asking,serve_connections

docs: $(INSTALLED) ## Build the documentation as a site, in build/docs
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs build/docs

coverage: $(INSTALLED) ## Run the tests of unit and report branch coverage
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest $(PARALLEL) $(QUICK_TESTS) $(LONG_TESTS) $(PYTEST_ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered --show-missing

fix: $(INSTALLED) ## Format the code and apply the linter's fixes
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

demo: $(INSTALLED) ## Run the demo: broker, producer, two consumer groups, real data
	@$(BIN)/python -m triomq.demo $(DEMO_ARGS)

spark-demo: $(INSTALLED) ## Run the data pipeline: Spark writes real data to a topic, reads it back and counts it (Java)
	@$(BIN)/python -m triomq.demo.pipeline $(DEMO_ARGS)

spark-zip: $(INSTALLED) ## Build dist/triomq-spark.zip for spark-submit --py-files
	@mkdir -p dist
	@$(BIN)/python -m triomq.spark.archive dist/triomq-spark.zip

bench: $(INSTALLED) ## Run the load tests (BENCH_ARGS=--help lists the options)
	@$(BIN)/python -m bench $(BENCH_ARGS)

dist: $(INSTALLED) ## Build sdist and wheel into dist/
	@rm -rf build dist
	@mkdir dist
	@$(BIN)/python -m build --no-isolation --outdir dist . >dist/log 2>&1 || { cat dist/log; exit 1; }
	@rm dist/log && ls dist/*

docker-check: $(INSTALLED) ## Run the Dockerfile's commands in a fresh virtual environment, without a container engine
	@TRIOMQ_DOCKER_CHECK=1 $(PYTEST) tests/packaging/test_dockerfile.py $(PYTEST_ARGS)

lock: $(INSTALLED) ## Renew requirements.lock and the digest of the base image (package index, Docker with buildx)
	@$(PYTHON) -m venv build/lock && build/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/python -m tests.packaging.lock | build/lock/bin/uv pip compile - --quiet --no-config --no-header --upgrade \
		--python-version 3.12 --python-platform linux --generate-hashes --output-file requirements.lock
	@base=$$(sed -n 's/^ARG BASE=\(.*\)@.*/\1/p' Dockerfile) && \
		digest=$$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$$base") && \
		sed -i "s|^ARG BASE=.*|ARG BASE=$$base@$$digest|" Dockerfile

clean: ## Remove caches and build results
	@rm -rf build dist htmlcov .coverage .coverage.* .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## clean, and remove the virtual environment and the interop kit's build
	@rm -rf $(VENV) tests/interop/kit/target src/*.egg-info
