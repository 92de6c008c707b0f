# One entry point for work on this project. Needed: Python 3.11 or newer and make; everything else goes into $(VENV).

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
BENCH_ARGS ?= --help
DEMO_ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help venv test unit interop spark check static coverage fix demo spark-demo spark-zip bench dist docker-check clean distclean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## Make the virtual environment (the others do it by themselves)

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit(f"Python 3.11 or newer is needed, this is {v}: make PYTHON=python3.12 ...")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "installing triomq and its tools into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,spark]'
	@touch $@

test: unit interop spark ## Run all tests; what needs a missing JVM, Maven or Go skips by name (fails if CI=true)

unit: $(INSTALLED) ## Run the tests that need Python only
	@$(PYTEST) --ignore=tests/interop --ignore=tests/spark $(PYTEST_ARGS)

interop: $(INSTALLED) ## Run the tests with Apache's brokers and clients (Java, Maven, Go)
	@$(PYTEST) tests/interop $(PYTEST_ARGS)

spark: $(INSTALLED) ## Run the tests with a Spark session in this process tree (Java)
	@$(PYTEST) tests/spark $(PYTEST_ARGS)

check: static coverage ## The gate: format, lint, types, imports, tests with coverage

static: $(INSTALLED) ## The part of the gate that runs no code: format, lint, types, imports
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/mypy --explicit-package-bases tests bench
	@$(BIN)/lint-imports
	@find broker client spark -name '*.py' | xargs $(BIN)/flake8-async --enable=ASYNC1,ASYNC2,ASYNC913 --startable-in-context-manager=_keep_connections

coverage: $(INSTALLED) ## Run the tests that need Python only, with branch coverage and its report
	@$(BIN)/coverage run -m pytest --ignore=tests/interop --ignore=tests/spark $(PYTEST_ARGS)
	@$(BIN)/coverage report --skip-covered --show-missing

fix: $(INSTALLED) ## Format, and repair what the linter can
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

demo: $(INSTALLED) ## Run the demo: broker, producer, two consumer groups, real data
	@$(BIN)/python -m triomq.demo $(DEMO_ARGS)

spark-demo: $(INSTALLED) ## Run the data pipeline: real data by Spark into a topic and out of it, counted (Java)
	@$(BIN)/python -m triomq.demo.pipeline $(DEMO_ARGS)

spark-zip: $(INSTALLED) ## Build dist/triomq-spark.zip for spark-submit --py-files
	@mkdir -p dist
	@$(BIN)/python -m triomq.spark.archive dist/triomq-spark.zip

bench: $(INSTALLED) ## Run the load tests (BENCH_ARGS=--help tells the options)
	@$(BIN)/python -m bench $(BENCH_ARGS)

dist: $(INSTALLED) ## Build sdist and wheel into dist/
	@rm -rf build dist
	@mkdir dist
	@$(BIN)/python -m build --no-isolation --outdir dist . >dist/log 2>&1 || { cat dist/log; exit 1; }
	@rm dist/log && ls dist/*

docker-check: $(INSTALLED) ## Run the Dockerfile's commands in a fresh virtual environment, without a container engine
	@TRIOMQ_DOCKER_CHECK=1 $(PYTEST) tests/packaging/test_dockerfile.py $(PYTEST_ARGS)

clean: ## Remove caches and what was built
	@rm -rf build dist htmlcov .coverage .coverage.* .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## As clean, and remove the virtual environment and what the interop kit built
	@rm -rf $(VENV) tests/interop/kit/target src/*.egg-info
