# Every target sets up what it needs by itself: `make demo` and `make test` work on a fresh clone.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
LINTS := lint-format lint-code lint-types lint-imports lint-names lint-proto lint-lock lint-crds lint-charts lint-docs
.PHONY: help setup demo soak faults moves check check-tests test test-all ci lint $(LINTS) format bench sim crds lock docs docs-serve release-check audit pin-base pictures vendor proto new-catalog-version format-fixture clean

PYTHON ?= python3
export UV_PYTHON_DOWNLOADS := never
export PYTHONPATH :=
# What is compiled is kept: the tests start thousands of Python processes, and each would compile all anew.
export PYTHONDONTWRITEBYTECODE :=
BIN := .venv/bin
BUILD_REQUIREMENTS := operator/image/build-requirements.txt
UV := $(if $(shell command -v uv),uv,.tools/uv/bin/uv)
# Tiers that a test run may not skip: HOLDFAST_REQUIRE=kube,postgres,s3,spark,helm,kafka fails if one is missing.
export HOLDFAST_REQUIRE ?=
# Processes that run tests: one more than there are processors, because tests often wait for servers; at most 4.
# Each process starts its own servers.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Runs several targets at once. The output of each comes in one piece.
PARALLEL := $(MAKE) --no-print-directory --output-sync=target -j $(JOBS)

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 28

.venv/.synced: pyproject.toml catalog/pyproject.toml operator/pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "setup: Python 3.11 or newer is needed as '$(PYTHON)'; install it or run make with PYTHON=/path/to/python3" >&2; exit 1; }
	@command -v uv >/dev/null || test -x .tools/uv/bin/uv || { \
	  $(PYTHON) -m venv .tools/uv && .tools/uv/bin/pip install --quiet --disable-pip-version-check \
	    --require-hashes --requirement $(BUILD_REQUIREMENTS); } || \
	  { echo "setup: could not install uv; install it from https://docs.astral.sh/uv and run make again" >&2; exit 1; }
	@$(UV) sync --quiet --locked --python $(PYTHON) --all-packages --all-groups --all-extras
	@touch $@

setup: .venv/.synced  ## create .venv with everything that the project needs

demo: setup  ## the whole path on a real API server: catalog, collection, Spark snapshot, a crash
	@PYTHONPATH=tests $(BIN)/python -m demo

check: setup  ## lint, and the unit tests of what changed since main: about a minute
	@$(PARALLEL) $(LINTS) check-tests

# BUDGET is the number of seconds after which no test starts any more.
BUDGET ?= 40
check-tests: setup
	@changed=$$($(BIN)/python checks/changed_tests.py) && if test -z "$$changed"; then echo "check: no unit test changed"; else \
	  $(BIN)/python -m pytest -q -n 2 --part short --budget $(BUDGET) $$changed; fi

test: setup lint  ## lint, then the tests: 15 minutes on 2 processors. It builds the servers that tests need
	@$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 4 --provide --part short

test-all: setup  ## the tests that `make test` leaves out: all simulated worlds, all mutants, the node, long Spark jobs
	@$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 4 --provide --part long

ci: setup lint  ## all of `make test` and `make test-all` in one run, which starts each server once: what CI runs
	@$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 4 --provide

soak: setup  ## kill writers, operators and servers for hours (ARGS="--seeds 100 --pairs file+sqlite operator")
	@PYTHONPATH=tests $(BIN)/python -m crash $(ARGS)

faults: setup  ## operators behind a bad way to the API server, and on a bad day, for 20 seeds (or SEEDS=50)
	@HOLDFAST_FAULT_SEEDS=$(or $(filter-out 2000,$(SEEDS)),20) $(BIN)/python -m pytest -q tests/apiserver/test_operator_faults.py tests/apiserver/test_operator_bad_day.py

moves: setup  ## all crashes and meetings of moving a catalog, and a large one: some minutes
	@cd tests && ../$(BIN)/python -m moves soak

lint: setup  ## ruff, mypy --strict, import contracts, class names, generated files up to date
	@$(PARALLEL) $(LINTS)

lint-format: setup
	@$(BIN)/ruff format --check --quiet . || { echo "lint: run 'make format'" >&2; exit 1; }
lint-code: setup
	@$(BIN)/ruff check --quiet .
lint-types: setup
	@$(BIN)/mypy
lint-imports: setup
	@$(BIN)/lint-imports
lint-names: setup
	@$(BIN)/python checks/class_names.py
	@$(BIN)/python checks/imports.py
lint-proto: setup
	@$(BIN)/python proto/generate.py --check
lint-lock: setup
	@$(EXPORT) | diff $(BUILD_REQUIREMENTS) - || { echo "lint: run 'make lock'" >&2; exit 1; }
lint-crds: setup
	@$(BIN)/python -m holdfast_operator.api.generate crds --chart charts/holdfast-crds/templates --check
lint-charts: setup
	@$(BIN)/python charts/generate.py --check
lint-docs: setup
	@$(BIN)/python docs/generate.py --check

format: setup  ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup  ## run the benchmarks and write bench/RESULTS.md (make bench ONLY="append snapshot": some)
	@$(BIN)/python bench/run.py $(ONLY)

SEEDS ?= 2000
FROM ?= 0
sim: setup  ## the simulation: SEEDS=10000 FROM=0 runs many worlds, SEED=123 shows what happens in one
	@cd tests && ../$(BIN)/python -m sim $(if $(SEED),$(SEED),run --seeds $(SEEDS) --from $(FROM))

crds: setup  ## generate crds/ and the chart of the CRDs from the models, and the charts' tables of values
	@$(BIN)/python -m holdfast_operator.api.generate crds --chart charts/holdfast-crds/templates
	@$(BIN)/python charts/generate.py

EXPORT := $(BIN)/uv export --quiet --locked --only-group build --format requirements-txt --no-header
lock: setup  ## lock the versions of all packages, and export those that build packages, with hashes
	@$(BIN)/uv lock
	@$(EXPORT) > $(BUILD_REQUIREMENTS)

docs: setup  ## generate the tables and diagrams in docs/, and build the site into site/
	@$(BIN)/python docs/generate.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: setup  ## show the site at http://127.0.0.1:8000 while pages are written
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

release-check: setup  ## build wheels, charts, the image and an SBOM into dist/, and install the wheels alone
	@PYTHONPATH=tests $(BIN)/python checks/release.py

pin-base: setup  ## write the digest of the released image's base to operator/base/Dockerfile
	@PYTHONPATH=tests $(BIN)/python checks/base.py --pin

pictures: setup  ## draw the pictures of the console in docs/images, with a real console in Chromium
	@PYTHONPATH=tests $(BIN)/python docs/console_pictures.py

vendor: setup  ## get the files from npm that the repository contains, in the versions of their VENDORED.toml
	@$(BIN)/python checks/vendored.py --renew

audit: setup  ## look up known vulnerabilities of all packages in uv.lock (exit code 3: the service can't be asked)
	@$(BIN)/python checks/audit.py $(ARGS)

proto: setup  ## generate holdfast/_pb from proto/
	@$(BIN)/python proto/generate.py

new-catalog-version: setup  ## freeze a new version of the catalog's objects (AGAIN=1: the newest once more)
	@$(BIN)/python proto/new_version.py $(if $(AGAIN),--again)

format-fixture: setup  ## make the fixture of a new format version (once, when it is released)
	@PYTHONPATH=tests $(BIN)/python tests/fixtures/make_format.py

clean:  ## remove what setup made
	rm -rf .venv .tools
