# make reproduce   everything, from nothing to a report
# make plan        what would be measured, for how long, in how much memory
# make verify      ARCHIVE=results/archive/NAME.tar.zst: intact, or what is damaged, missing or too much
# make restore     ARCHIVE=...: a run folder again
# make rebuild     RUN=results/NAME: its analysis and report once more, without the engine
# make compare     RUNS="results/A results/B": sealed runs side by side, the first one is the reference
# make test-memory many more generated operations on the engine's memory
# make bench       ratios measured side by side: depth sweep, fills, overhead, planning, the kernel
# make test        formatting, lint, unit tests, engine tests, a whole small run
# make cluster     what submits jobs to SLURM or Kubernetes, see workflow/profiles
# make test-slurm  the default workflow on a real SLURM of one node (needs slurm-wlm, munge and root)
# make test-browser the pages in chromium (make test does this too where it is installed)
# make docs        the pages of docs/ as a site in site/, with the parts that are made of code written anew
# make lock        resolve requirements.lock, requirements-test.lock and requirements-cluster.lock anew

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FAKEPREFIX := $(BIN)/fakeprefix
CONFIGFILES ?=
BENCH ?=
ARCHIVE ?=
RUN ?=
RUNS ?=

# a target behind --configfile would be taken for one more file
SNAKEMAKE := $(BIN)/snakemake $(if $(CONFIGFILES),--configfile $(CONFIGFILES)) --cores all

.DELETE_ON_ERROR:
.PHONY: reproduce plan test bench verify restore rebuild compare cluster test-slurm test-browser test-memory test-resources docs format lock clean preflight

reproduce: $(VENV)/.complete
	@echo "== measuring (stages: host, trace, plan, engine, model, contract, measure, analysis, report)"
	@$(SNAKEMAKE)

plan: $(VENV)/.complete
	@$(SNAKEMAKE) plan
	@$(BIN)/python -c "import sys; sys.path.insert(0, 'workflow'); from fakeprefix.planning.plan import describe; from fakeprefix.storage import read_json; print(describe(read_json('results/current/trace/plan.json')))"

test: $(VENV)/.test-complete
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/snakemake --lint
	$(BIN)/python -m pytest -m "not engine and not workflow and not slurm"
	$(MAKE) test-resources
	$(BIN)/python -m pytest -m "engine or workflow"

test-browser: $(VENV)/.test-complete
	BROWSER_REQUIRED=1 $(BIN)/python -m pytest -m browser

test-slurm: $(VENV)/.test-complete $(VENV)/.cluster-complete
	SLURM_REQUIRED=1 $(BIN)/python -m pytest -s -m slurm

test-memory: $(VENV)/.test-complete test-resources
	MEMORY_EXAMPLES=1000 $(BIN)/python -m pytest tests/engine/test_memory.py

bench: test-resources
	PYTHONPATH=workflow $(BIN)/python -m fakeprefix.bench $(BENCH)

test-resources: $(VENV)/.complete
	@$(SNAKEMAKE) test_resources

verify: $(VENV)/.complete
	@$(FAKEPREFIX) verify "$(ARCHIVE)"

restore: $(VENV)/.complete
	@$(FAKEPREFIX) restore "$(ARCHIVE)"

rebuild: $(VENV)/.complete
	@$(FAKEPREFIX) rebuild "$(RUN)"

compare: $(VENV)/.complete
	@$(FAKEPREFIX) compare $(RUNS)

docs: $(VENV)/.test-complete
	@PYTHONPATH=workflow $(BIN)/python -m fakeprefix.settings.reference
	@$(BIN)/python docs/generate.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

format: $(VENV)/.test-complete
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow/rules

COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header

lock: $(VENV)/.complete
	$(BIN)/python -m pip install --quiet uv
	$(COMPILE) --output-file requirements.lock pyproject.toml
	$(COMPILE) --extra test --constraint requirements.lock --output-file requirements-test.lock pyproject.toml
	$(COMPILE) --extra cluster --constraint requirements.lock --output-file requirements-cluster.lock pyproject.toml

INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement
INSTALL_FAILED = echo "error: the Python packages could not be installed; is there a network, and a package index?" >&2

$(VENV)/.packages: requirements.lock | preflight
	@echo "== installing Python packages into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) requirements.lock || { $(INSTALL_FAILED); exit 1; }
	@touch $@

# the command fakeprefix; needs no network
$(VENV)/.complete: pyproject.toml $(VENV)/.packages
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.test-complete: requirements-test.lock $(VENV)/.complete
	@echo "== installing what the tests need besides"
	@$(INSTALL) requirements-test.lock || { $(INSTALL_FAILED); exit 1; }
	@touch $@

# what submits jobs to SLURM or Kubernetes, see workflow/profiles
cluster: $(VENV)/.cluster-complete

$(VENV)/.cluster-complete: requirements-cluster.lock $(VENV)/.complete
	@echo "== installing what submits jobs to a cluster"
	@$(INSTALL) requirements-cluster.lock || { $(INSTALL_FAILED); exit 1; }
	@touch $@

preflight:
	@PYTHON=$(PYTHON) workflow/preflight.sh

clean:
	rm -rf $(VENV) resources .snakemake
