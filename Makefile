# Every target sets up what it needs, in $(VENV): a fresh checkout needs python3 (3.11 or later) and make, no more.

VENV ?= .venv
OLDEST ?= .venv-oldest
NEWEST ?= .venv-newest
PYTHON ?= python3
WORKERS ?= 2

BIN := $(VENV)/bin
DEMO := build/demo
PIP_INSTALL := python -m pip install --quiet --disable-pip-version-check

.PHONY: help venv lint format test test-oldest test-newest demo clean

help:
	@echo "make venv     create $(VENV) with the versions of constraints.txt"
	@echo "make lint     ruff check, ruff format --check, mypy"
	@echo "make format   ruff format, and the fixes of ruff check"
	@echo "make test     lint, then every test that needs no GPU"
	@echo "make demo     tune, emit and prove a module for an H200 that need not be here"

venv: $(VENV)/installed

# torch first: the build of it that this machine's pip finds decides what the rest may be. The build backend comes with
# it, as an isolated build would take its newest release instead of the one in constraints.txt.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP_INSTALL) -c constraints.txt torch hatchling editables
	$(BIN)/$(PIP_INSTALL) -c constraints.txt --no-build-isolation --editable '.[test]'
	touch $@

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(BIN)/python -m pytest -m "not gpu" -n $(WORKERS)

# The oldest triton that is supported; its interpreter fails with numpy 2.4. torch's metadata may ask for a later triton,
# hence --no-deps. Planted faults are rejected or not by the prover, and kernels in Gluon are exact or not on the model of the
# machine, whatever triton is here: once is enough.
test-oldest:
	$(MAKE) venv VENV=$(OLDEST)
	$(OLDEST)/bin/$(PIP_INSTALL) --no-deps 'triton==3.6.0' 'numpy<2.4'
	$(OLDEST)/bin/python -m pytest -m "not gpu" -n $(WORKERS) tests/kernels tests/cases tests/verify $(wildcard tests/compiler) \
		--ignore tests/verify/test_mutants.py --ignore-glob 'tests/kernels/gluon/test_[bf]*.py'

# The newest triton that modules run kernels in Gluon on, whose names change from one to the next.
test-newest:
	$(MAKE) venv VENV=$(NEWEST)
	$(NEWEST)/bin/$(PIP_INSTALL) --no-deps 'triton==3.9.0'
	$(NEWEST)/bin/python -m pytest -m "not gpu" -n $(WORKERS) tests/compiler/test_gluon.py tests/kernels/gluon/test_module.py

demo: venv
	rm -rf $(DEMO)
	$(BIN)/flashgen tune --gpu h200 --head-dim 128 --causal --trials 32 --out $(DEMO)/configs
	$(BIN)/flashgen emit --gpu h200 --configs $(DEMO)/configs --out $(DEMO)/flash_attention.py
	TRITON_INTERPRET=1 $(BIN)/python $(DEMO)/flash_attention.py
	@echo
	@echo "Tuned for an H200 that need not be here: compiled for it for real, timed by a cost model, hence 'predicted'."
	@echo "$(DEMO)/flash_attention.py is the module; it needs torch and triton only, and has just proven itself above."

clean:
	rm -rf build dist $(VENV) $(OLDEST) $(NEWEST)
