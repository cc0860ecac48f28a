# Everything runs in an environment that tools/setup_env.py sets up, once, in a
# cache folder shared between checkouts. These variables change how:
#:  CLUSTR_MM_CACHE        folder of the environments and compiled wheels
#:                         (default: $XDG_CACHE_HOME or ~/.cache, /clustr_mm)
#:  CLUSTR_MM_PYTHON       the Python to build with, 3.10 to 3.12
#:                         (default: the first on the PATH)
#:  CLUSTR_MM_REQUIREMENTS a folder of files that replace their namesakes in
#:                         requirements/, such as requirements/upstream, which
#:                         needs Python 3.10 or 3.11
#:  CLUSTR_MM_TORCH        other builds, as pip is told of them, such as
#:                         "torch==2.12.1+cpu torchvision==0.27.1+cpu"
#:  CLUSTR_MM_TORCH_INDEX  an additional package index to find them
#:  CLUSTR_MM_MMCV         path or URL of an mmcv wheel built for that torch:
#:                         nothing of mmcv is compiled
#:  CLUSTR_MM_ENV          an interpreter whose environment is used as it is:
#:                         nothing is installed, the other variables are moot
#:  MAX_JOBS               files compiled at a time
#:                         (default: one a core, if the memory is enough)
.DEFAULT_GOAL := help
.PHONY: help env quickstart test test-slow test-upstream fuzz lint format docs \
  print-python clean-env
MAKEFLAGS += --no-print-directory

# The checkout is not installed: the environment does not belong to it.
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

# Any Python from 3.6 on can run the set-up. A pyenv shim may not run at all.
ANY_PYTHON := $(shell for python in python3 python3.12 python3.11 python3.10; \
  do $$python -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null \
  && echo $$python && break; done)
SETUP = $(or $(ANY_PYTHON),$(error No Python was found: install Python 3.10, \
  3.11 or 3.12)) tools/setup_env.py
PYTHON = $(SETUP) run

help:  ## this text
	@echo 'make TARGET [VARIABLE=value ...]'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1#\2/p' $(MAKEFILE_LIST) \
	  | while IFS='#' read -r a b; do printf '  %-14s %s\n' $$a "$$b"; done
	@echo 'Variables, as arguments of make or in the environment:'
	@sed -n 's/^#://p' $(MAKEFILE_LIST)

env:  ## set up the environment, if it is not there
	@$(SETUP) env

quickstart: env  ## generate data, train, evaluate and draw pictures
	$(PYTHON) tools/quickstart.py

test: lint  ## lint, then the tests but those marked slow
	$(PYTHON) -m pytest -m 'not slow'

test-slow: env  ## the tests marked slow
	$(PYTHON) -m pytest -m slow

test-upstream: export CLUSTR_MM_REQUIREMENTS := requirements/upstream
test-upstream: env  ## the tests, with OpenMMLab's own releases and torch 2.1
	$(PYTHON) -m pytest -m 'not slow'

FUZZ_MINUTES ?= 60
fuzz: env  ## look for FUZZ_MINUTES (60) for what breaks a property test
	$(PYTHON) tests/fuzz.py --minutes $(FUZZ_MINUTES)

lint: env  ## check style and formatting
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

format: env  ## repair style and formatting where that can be automatic
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

docs: env  ## build the pages of docs/ in build/docs; a broken link is an error
	$(PYTHON) -m mkdocs build --strict --quiet

print-python:  ## the path of the environment's interpreter, alone with -s
	@$(SETUP) path

clean-env:  ## remove the environment of this checkout from the cache
	@$(SETUP) clean
