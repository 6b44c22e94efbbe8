# Every target sets up what it needs in .venv, from a machine with Python >= 3.11 and make.
#
#   make demo        train the digits classifier and show what was compiled
#   make test        run the tests            (make test EXTRAS=cuda adds the PTX tests)
#   make lint        format check, lint, types, import contracts, words that were given up
#                    (make lint COMMITS=main..HEAD also checks subjects of commits)
#   make format      rewrite files in the house format
#   make bench       compare with JAX         (make bench ARGS="softmax --json out.json")
#   make docs        build the documentation into site/
#   make notebooks   execute the notebooks    (make notebooks ARGS=--write stores outputs)
#   make array-api-tests CHECKOUT=DIR   run a checkout of data-apis/array-api-tests, with
#                    its submodule array-api, on arrayfn.numpy
#   make mutate      change the source in small ways, and count what the tests notice
#                    (make mutate ARGS="--count 40 --seed 1 --rooms passes numpy")
#   make fuzz        run generated programs (make fuzz ARGS="--device emulator --seed 7")
#   make package     build wheel and sdist, install each in a new environment, test them
#                    (make package ARGS="python3.11 python3.12" for these interpreters)
#   make clean       remove .venv and everything built

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
EXTRAS ?=
ARGS ?=
CHECKOUT ?=
COMMITS ?=

.PHONY: demo test lint format bench docs notebooks array-api-tests mutate fuzz package clean
.DEFAULT_GOAL := test

# A stamp per extra: a second `make test` installs nothing.
installed = $(patsubst %,$(VENV)/.installed-%,$(1))

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'arrayfn needs Python >= 3.11; set PYTHON=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$*]'
	@touch $@

demo: $(call installed,demo)
	$(BIN)/python -m arrayfn demo $(ARGS)

test: $(call installed,test $(EXTRAS))
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

lint: $(call installed,dev)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python -m tests.words $(if $(COMMITS),--commits $(COMMITS))

format: $(call installed,dev)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(call installed,bench)
	$(BIN)/python -m benchmarks $(ARGS)

docs: $(call installed,docs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

notebooks: $(call installed,notebooks)
	$(BIN)/python notebooks/execute.py $(ARGS)

# What fails, and why, stands in tests/numpy/array_api_known_failures.txt.
array-api-tests: $(call installed,test)
	@test -d "$(CHECKOUT)/array_api_tests" || { echo 'make array-api-tests \
	  CHECKOUT=DIR, where DIR is made by git clone --recurse-submodules \
	  https://github.com/data-apis/array-api-tests' >&2; exit 1; }
	$(BIN)/python -m pip install --quiet -r $(CHECKOUT)/requirements.txt
	cd $(CHECKOUT) && ARRAY_API_TESTS_MODULE=arrayfn.numpy \
	  ARRAY_API_TESTS_VERSION=2024.12 $(abspath $(BIN))/python -m pytest \
	  array_api_tests -p no:cacheprovider --disable-deadline \
	  --xfails-file=$(CURDIR)/tests/numpy/array_api_known_failures.txt $(ARGS)

mutate: $(call installed,test)
	$(BIN)/python -m tests.mutate --jobs $(JOBS) $(ARGS)

fuzz: $(call installed,test)
	$(BIN)/python -m tests.fuzz --jobs $(JOBS) $(ARGS)

package:
	$(PYTHON) packaging/check.py $(ARGS)

clean:
	rm -rf $(VENV) site build dist .pytest_cache .ruff_cache .import_linter_cache
