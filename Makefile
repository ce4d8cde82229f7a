# Two commands are enough: `make site` and `make test`. `make help` lists the others.
#
# TORCH picks another torch, in an environment of its own: a version (TORCH=2.14.1), the path of a
# wheel (TORCH=/path/torch.whl), or TORCH=newest for whatever pip finds.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
TORCH ?= 2.13.0
VENV := $(if $(filter 2.13.0,$(TORCH)),.venv,.venv-$(notdir $(TORCH)))
REQUIREMENT := $(if $(findstring /,$(TORCH)),$(TORCH),torch$(if $(filter-out newest,$(TORCH)),==$(TORCH)))
EXTENSION := build/extension$(VENV)

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1
unexport PYTHONPATH VIRTUAL_ENV

heading = @printf '\n== %s\n' '$(1)'

.PHONY: help site serve test setup tangle chapters pages conformance bench clean

help: ## list the commands
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 18

site: chapters ## run the chapters and build the site into site/
	$(call heading,Site)
	python tools/pages.py
	mkdocs build --strict
	@printf '\nOpen %s\n' '$(CURDIR)/site/index.html'

serve: chapters ## serve the site on this machine; hand-written pages reload when they change
	python tools/pages.py
	mkdocs serve

test: setup ## check everything that continuous integration checks
	$(call heading,Style of the Python)
	ruff check
	ruff format --check
	$(call heading,Style of the C++)
	clang-format --dry-run --Werror csrc/*.cpp csrc/*.h
	$(call heading,Types)
	mypy
	$(call heading,Layers)
	lint-imports
	$(call heading,The package is what the chapters make)
	python tools/tangle.py --check
	$(call heading,The notebooks are complete)
	python tools/lint_notebooks.py
	$(call heading,The site is whole under MkDocs and under Zensical)
	python tools/pages.py
	zensical build --strict --clean
	mkdocs build --strict
	$(call heading,The notebooks show what they show when run again)
	pytest --nbval --nbval-cell-timeout=600 chapters
	$(call heading,Tests)
	pytest tests

setup: $(EXTENSION) ## make the environment and build the extension

tangle: setup ## make the package's files from the chapters
	$(call heading,Package)
	python tools/tangle.py

chapters: tangle ## run the chapters that have changed and write their notebooks
	$(call heading,Chapters)
	python tools/execute.py

bench: setup ## measure ours and theirs side by side, and write the site's page of figures
	python -m benchmarks all --write

conformance: setup ## run PyTorch's operator database on the card and write docs/conformance.json
	python tools/conformance.py --write

clean: ## remove what was built; the environments stay (rm -r .venv*)
	rm -rf build site .cache docs/chapters docs/api docs/operators

# Set-up. The extension lies in the source folder, so that only one environment's build is there
# at a time: the stamp of every other environment goes when one is built.

$(VENV)/torch:
	$(call heading,Environment $(VENV) with $(REQUIREMENT))
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	python -m pip install '$(REQUIREMENT)'
	@touch $@

$(VENV)/requirements: requirements.txt $(VENV)/torch
	$(call heading,Tools)
	python -m pip install --quiet --requirement requirements.txt \
	  "torch==$$(python -c 'import importlib.metadata as m; print(m.version("torch"))')"
	@touch $@

$(EXTENSION): $(VENV)/requirements setup.py pyproject.toml $(wildcard csrc/*)
	$(call heading,Extension)
	@rm -rf build/extension.*
	python -m pip install --quiet --no-build-isolation --no-deps --editable .
	@mkdir -p build && touch $@
