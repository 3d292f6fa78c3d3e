# Each target first makes what it needs: .venv, wheels, ROS 2, colcon build. A second call starts in seconds.
#   make demo DURATION=20     stop by itself after 20 s
#   make test TESTS=test/robot  one folder or file of tests; several, separated by spaces
#   make test ARGS="-k slots" hand arguments to pytest; WORKERS=0: in one process, one after the other
#   make soak MINUTES=5       half an hour by default
#   make PYTHON=python3.12    use another interpreter for a new environment
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test build lint format clean clean-all

PYTHON ?= python3
DURATION ?=
ARGS ?=
TESTS ?= test
WORKERS ?= 2
MINUTES ?= 30
SEED ?= 1
SETUP := $(PYTHON) scripts/setup_env.py
ENTER := source scripts/env.sh

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

demo: ## a simulated robot moves and says what it did, until Ctrl-C (or DURATION=20)
	@$(SETUP) --render
	@$(ENTER) && exec python scripts/run_foreground.py oxygen_demo $(if $(DURATION),--duration $(DURATION)) $(ARGS)

test: $(if $(filter-out test,$(TESTS)),,lint) ## linter, types and all tests, against the installed package
	@$(SETUP) --render
	@mkdir -p build/test
	@$(ENTER) && cd build/test && OMP_NUM_THREADS=1 python -m pytest -n $(WORKERS) --dist loadfile $(addprefix $(CURDIR)/,$(TESTS)) $(ARGS)

.PHONY: soak stress
soak: ## the node beside drivers that fail in every way; MINUTES=30 SEED=1
	@$(SETUP)
	@$(ENTER) && export PYTHONPATH="$(CURDIR)/tools:$$PYTHONPATH" && exec python scripts/run_foreground.py python -m soak run --minutes $(MINUTES) --seed $(SEED) $(ARGS)

stress: ## 100 starts and stops in every lifecycle state; SEED=1
	@$(SETUP)
	@$(ENTER) && export PYTHONPATH="$(CURDIR)/tools:$$PYTHONPATH" && exec python scripts/run_foreground.py python -m soak stress --seed $(SEED) $(ARGS)

build: ## environment and colcon build only
	@$(SETUP)
	@echo "built; now: source scripts/env.sh"

lint: ## ruff (rules and format) and mypy
	@$(SETUP)
	@$(ENTER) && ruff check . && ruff format --check . && mypy

format: ## rewrite the sources as the formatter wants them
	@$(SETUP)
	@$(ENTER) && ruff check --fix . && ruff format .

clean: ## remove what was built; keep the environment
	rm -rf build install log dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find oxygen_ros launch test tools scripts -name __pycache__ -type d -prune -exec rm -rf {} +

clean-all: clean ## remove the environment too
	rm -rf .venv
