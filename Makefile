# make setup       the environment in .venv
# make quickstart  the environment, then the main job on a small real model
# make test        the environment with the developers' tools, then lint, types and tests
# make test-cuda   the tests that need an NVIDIA GPU
# make bench       timings; never part of the tests
#
# Settings: PYTHON=python3.12 (which Python makes .venv), EXTRA=cpu|cuda|none (which MLX; found out if left out),
# PYTEST="-k name" (arguments of pytest). Works with GNU make 3.81 and later.

SHELL := /bin/bash
PYTHON ?=
EXTRA ?=
PYTEST ?= -n 2
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
STEP := @printf '== %s\n'

.PHONY: help setup quickstart test test-cuda lint types bench clean

help:
	@sed -n -e '/^SHELL/q' -e 's/^# \{0,1\}//p' Makefile

setup: .venv/.setup
	@echo "== Ready: .venv/bin/tq --help"

quickstart: setup
	$(STEP) 'tq run quickstart'
	@.venv/bin/tq run quickstart
	$(STEP) 'The report: runs/quickstart/report.html. What the numbers mean: docs/evaluate.md. More to try: README.md (tq is .venv/bin/tq)'

test: lint types
	$(STEP) 'Tests'
	@$(PY) -m pytest $(PYTEST)

test-cuda: .venv/.dev
	$(STEP) 'Tests on an NVIDIA GPU'
	@$(PY) -m pytest tests/cuda -rs -s

lint: .venv/.dev
	$(STEP) 'Lint'
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

types: .venv/.dev
	$(STEP) 'Types'
	@$(PY) -m mypy

bench: .venv/.dev
	@$(PY) -m bench

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks

# Which MLX: the Mac's comes by itself; on Linux the one for the GPU if an NVIDIA driver is there.
FIND_EXTRA = extra="$(EXTRA)"; \
	if [ -z "$$extra" ]; then \
		if [ "$$(uname -s)" != Linux ]; then extra=none; \
		elif [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1; then extra=cuda; \
		else extra=cpu; fi; \
	fi

.venv/.setup: pyproject.toml | .venv/.made
	@$(FIND_EXTRA); \
	echo "== Installing tq and MLX (kind: $$extra): some 650 MB, one to four minutes the first time"; \
	if [ "$$extra" = none ]; then what=.; else what=".[$$extra]"; fi; \
	$(PIP) install -qq --editable "$$what"
	@touch $@

.venv/.dev: pyproject.toml | .venv/.made
	@$(FIND_EXTRA); \
	echo "== Installing tq, MLX (kind: $$extra) and the developers' tools: one to five minutes the first time"; \
	if [ "$$extra" = none ]; then what=".[dev]"; else what=".[$$extra,dev]"; fi; \
	$(PIP) install -qq --editable "$$what"
	@touch .venv/.setup $@

# A .venv that is there and works is kept, whoever made it.
.venv/.made:
	@fits() { "$$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; }; \
	if [ -x $(PY) ] && fits $(PY) && $(PY) -m pip --version >/dev/null 2>&1; then \
		echo "== Using the .venv that is there ($$($(PY) --version)); 'make clean' removes it"; \
	else \
		found=; \
		for python in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3); do \
			if fits "$$python"; then found=$$python; break; fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo "tq needs Python 3.11, 3.12 or 3.13 with its venv module, and $(if $(PYTHON),$(PYTHON) is not one,none was found on PATH)." >&2; \
			echo "Install one (Debian: apt install python3 python3-venv; Mac: brew install python@3.13), or name one: make setup PYTHON=/path/to/python3" >&2; \
			exit 1; \
		fi; \
		echo "== Making .venv with $$found ($$("$$found" --version))"; \
		"$$found" -m venv .venv; \
	fi
	@touch $@
