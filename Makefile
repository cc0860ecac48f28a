# Everything runs in an environment that tools/set_up.sh has uv set up: in .venv,
# from what requirements/current.txt lists. A second checkout gets it from uv's
# cache, in seconds. These variables change how:
#:  UV_PYTHON              the Python to take: a version or a path (default:
#:                         the first on the PATH that fits, or one that uv
#:                         fetches)
#:  UV_CACHE_DIR           folder of uv's cache, with the compiled mmcv
#:  UV_TORCH_BACKEND       another build of torch, such as cpu or cu126; uv's
#:                         other variables work as well (docs.astral.sh/uv)
#:  CLUSTR_MM_TORCH        the builds of torch by name, such as
#:                         "torch==2.12.1+cpu torchvision==0.27.1+cpu", from
#:                         where UV_INDEX or UV_FIND_LINKS leads
#:  CLUSTR_MM_MMCV         path or URL of an mmcv wheel built for that torch:
#:                         nothing of mmcv is compiled
#:  CLUSTR_MM_STACK        `upstream` for OpenMMLab's own releases and torch
#:                         2.1, in .venv-upstream, with Python 3.10 or 3.11
#:  CLUSTR_MM_ENV          an interpreter whose environment is used as it is:
#:                         nothing is installed, the other variables are moot
#:  MAX_JOBS               files compiled at a time
#:                         (default: one a core, if the memory is enough)
.DEFAULT_GOAL := help
.PHONY: help env quickstart test test-slow test-upstream fuzz mutants lint \
  format docs study lock print-python clean-env
MAKEFLAGS += --no-print-directory

# The checkout is not installed: the environment does not belong to it.
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

SET_UP = tools/set_up.sh
PYTHON = $(SET_UP) run

help:  ## this text
	@echo 'make TARGET [VARIABLE=value ...]'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1#\2/p' $(MAKEFILE_LIST) \
	  | while IFS='#' read -r a b; do printf '  %-14s %s\n' $$a "$$b"; done
	@echo 'Variables, as arguments of make or in the environment:'
	@sed -n 's/^#://p' $(MAKEFILE_LIST)

env:  ## set up the environment, if it is not there
	@$(SET_UP) env

quickstart: env  ## generate data, train, evaluate and draw pictures
	$(PYTHON) tools/quickstart.py

# Several tests at a time, of one thread each, as most of what they compute is
# small. A process needs some 2 GB. Who is done takes tests from the others.
SUITE = OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m 'not slow' \
  -n logical --maxprocesses 8 --dist worksteal

test: lint  ## lint, then the tests but those marked slow
	$(SUITE)

test-slow: env  ## the tests marked slow
	$(PYTHON) -m pytest -m slow

test-upstream: export CLUSTR_MM_STACK := upstream
test-upstream: env  ## the tests, with OpenMMLab's own releases and torch 2.1
	$(SUITE)

FUZZ_MINUTES ?= 60
fuzz: env  ## look for FUZZ_MINUTES (60) for what breaks a property test
	$(PYTHON) tests/fuzz.py --minutes $(FUZZ_MINUTES)

mutants: env  ## look in MODULE (tokens, ...) for changes that no test notices
	$(PYTHON) tests/mutants.py $(MODULE) $(if $(MUTANTS),--sample $(MUTANTS))

lint: env  ## check style and formatting
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

format: env  ## repair style and formatting where that can be automatic
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

docs: env  ## build the pages of docs/ in build/docs; a broken link is an error
	$(PYTHON) -m mkdocs build --strict --quiet

study: env  ## a small look at the study's cheapest claim, from data/study
	$(PYTHON) tools/study.py run --quick --only pooling --seeds 0
	$(PYTHON) tools/study.py report --results work_dirs/study/quick/results

LOCK = $(SET_UP) uv pip compile --quiet --universal --python-version 3.10 \
  --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' \
  $(if $(UPGRADE),--upgrade-package $(UPGRADE))
lock:  ## list in requirements/ what pyproject.toml asks for (UPGRADE=package)
	$(LOCK) --group pyproject.toml:current -o requirements/current.txt
	$(LOCK) --group pyproject.toml:upstream -o requirements/upstream.txt

print-python:  ## the path of the environment's interpreter, alone with -s
	@$(SET_UP) path

clean-env:  ## remove the environments of this checkout
	rm -rf .venv .venv-upstream .venv.lock .venv-upstream.lock
