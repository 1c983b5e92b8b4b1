# From a fresh clone: `make demo` runs the main job, `make test` every check. `make help` lists the rest.
# Another interpreter: `make demo PYTHON=python3.12`.

PYTHON     ?= python3
VENV       := .venv
BIN        := $(VENV)/bin
READY      := $(VENV)/.ready
LOWEST     := .venv-lowest
MIN_PYTHON := $(shell sed -n 's/^min_python *= *//p' settings.ini)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-lowest bench docs clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "%-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with the package and its tools at the tested versions

$(READY): settings.ini setup.py constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < tuple(map(int, "$(MIN_PYTHON)".split("."))))' 2>/dev/null || { \
	  echo "fastai_txf needs Python $(MIN_PYTHON) or later; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo missing)." >&2; \
	  echo "Name another one: make PYTHON=python3.12" >&2; exit 1; }
	@echo '==> Python environment in $(VENV)'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo '==> fastai_txf and what it needs, at the versions in constraints.txt (minutes the first time)'
	@$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY) ## train, evaluate and generate on the built-in text (a few minutes)
	@echo '==> python -m fastai_txf.demo'
	@$(BIN)/python -m fastai_txf.demo

test: $(READY) ## every check: export and clean, the notebooks, pytest
	@echo '==> 1/3 exported code in step with the notebooks, notebooks clean'
	@$(BIN)/python -m pytest -q tests/test_in_step.py
	@echo '==> 2/3 the notebooks'
	@# a process each: notebooks that define what they export would leave their own classes behind for the next one
	@$(BIN)/python -c "from nbdev.doclinks import nbglob; print(*nbglob(), sep='\0', end='\0')" | OMP_NUM_THREADS=1 xargs -0 -P 2 -n 1 $(BIN)/nbdev-test --n-workers 0
	@echo '==> 3/3 the tests'
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile -m 'not slow' --durations=10 --ignore=tests/test_in_step.py
	@echo '==> all checks passed'

test-all: test $(VENV)/.docs ## every check, and the tests that take minutes
	@$(BIN)/python -m pytest -q -m slow
	@echo '==> all checks passed, slow ones too'

$(LOWEST)/.ready: settings.ini setup.py constraints-lowest.txt pyproject.toml
	@echo '==> Python $(MIN_PYTHON) with the lowest versions that settings.ini allows in $(LOWEST)'
	@python$(MIN_PYTHON) -m venv --clear $(LOWEST)
	@echo '*' > $(LOWEST)/.gitignore
	@$(LOWEST)/bin/python -m pip install -c constraints-lowest.txt -e '.[pairs,hf,dist,share]' hypothesis pytest
	@touch $@

# 6 GB, most of it CUDA, where pip finds no build of torch for the CPU
test-lowest: $(LOWEST)/.ready ## the tests at the lowest versions that settings.ini allows
	@# without what needs nbdev; a process each, as one file can hide from another what it does to fastai's classes
	@for o in $$(find tests -name 'test_*.py' ! -name test_in_step.py ! -name test_project.py | sort); do \
	  echo "==> $$o"; OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -q -m 'not slow' -k 'not nbdev' $$o || exit; done
	@echo '==> all checks passed'

$(VENV)/.bench: $(READY)
	@echo '==> what the benchmarks compare with'
	@$(BIN)/python -m pip install -c constraints.txt -e '.[bench]'
	@touch $@

$(VENV)/.docs: $(READY)
	@echo '==> what the site is built with'
	@$(BIN)/python -m pip install -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## build the site into _docs: workshop, course, tutorials, how-to, API, results
	@$(BIN)/python docs/build.py

BENCHES := train epoch scale generate tokenizing

bench: $(VENV)/.bench ## measure beside the peers: tables and a plot in benchmarks/results (two hours; leave the machine alone)
	@for o in $(BENCHES); do echo "==> benchmarks/$$o.py"; $(BIN)/python benchmarks/$$o.py || exit; done
	@$(BIN)/python benchmarks/plot.py
	@$(BIN)/python benchmarks/page.py
	@echo '==> benchmarks/README.md, benchmarks/results/*.md and their pictures'

clean: ## remove build products and caches (the environments stay: rm -rf .venv .venv-lowest)
	rm -rf build dist *.egg-info .pytest_cache .hypothesis _proc _docs
	find . \( -path ./$(VENV) -o -path ./$(LOWEST) \) -prune -o -name __pycache__ -type d -exec rm -rf {} +
