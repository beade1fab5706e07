# bgmiv: everything a developer runs. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow quick fuzz lint ruff format mypy layers docs dist browser adapters lowest results robustness clean

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS  ?= auto

# Packages come without bytecode (below). Where Python is told to write none, every process would compile all its imports,
# which takes 10 seconds; the suite starts dozens.
export PYTHONDONTWRITEBYTECODE :=
export MYPY_NUM_WORKERS ?= auto

# The first interpreter that runs and is new enough; a shim may exist and still not work.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
    if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$p; break; fi; done)

# Install $(2) into the environment $(1). uv takes a third of pip's time; pip does it where uv cannot, as with a mirror
# that pip alone knows. Python compiles what is imported; compiling all modules of all packages takes as long as their
# download.
install = $(1)/bin/python -m pip install --quiet --disable-pip-version-check uv \
    && $(1)/bin/uv pip install --quiet --python $(1)/bin/python $(2) 2>/dev/null \
    || $(1)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check $(2)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install the package with its dev extras (nothing to do when up to date)

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "bgmiv needs Python 3.11 or newer; none found. Try: make setup PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call install,$(VENV),-e '.[dev]')
	@touch $@

demo: $(STAMP) ## simulate confounded airline demand, fit it and write its pages into out/demo
	$(BIN)/bgmiv demo --out out/demo

lint: $(STAMP) ## style, types and layers, all at the same time
	@$(MAKE) --no-print-directory --jobs 4 ruff format mypy layers

ruff: $(STAMP)
	$(BIN)/ruff check --quiet .

format: $(STAMP)
	$(BIN)/ruff format --quiet --check .

mypy: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

browser: ## install Debian's chromium (as root, by apt-get) for the tests of the report page; never fails
	@if [ -n "$$BGMIV_CHROMIUM" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null; then \
	    echo "browser: chromium is there"; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	    echo "browser: installing chromium by apt-get"; \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } \
	        >/dev/null 2>&1 && echo "browser: installed" || echo "browser: apt-get failed; tests in a browser will be skipped"; \
	else echo "browser: no chromium; tests in a browser will be skipped (name one in BGMIV_CHROMIUM)"; fi

# Every test is in `test` or in `test-slow`; the marker `slow` decides.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

test: lint ## lint, the tests that are not slow, and every docstring example: before every commit
	$(PYTEST) --durations=30 -m "not slow"

test-slow: $(STAMP) ## the slow tests: simulations, tutorials, kills, Ray, a browser (make browser): before every merge
	$(PYTEST) --durations=30 -m slow

quick: lint ## lint, and the tests that take no fit: for every save of a file
	$(PYTEST) -m quick tests

fuzz: $(STAMP) ## the tests of properties with 2,000 random examples each, new ones every time
	$(BIN)/python -m pytest -n $(JOBS) --hypothesis-profile=fuzz -m hypothesis tests

# Their pins and ours need not agree: each has an environment of its own, and `make test` needs neither.
adapters: .venv-dowhy/.installed .venv-econml/.installed ## the adapters against the real DoWhy and EconML
	.venv-dowhy/bin/python -m pytest tests/adapters/isolated/test_dowhy_itself.py
	.venv-econml/bin/python -m pytest tests/adapters/isolated/test_econml_itself.py

.venv-%/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "bgmiv needs Python 3.11 or newer; none found. Try: make adapters PYTHON=/path/to/python3.11"; exit 1; }
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -e '.[$*]' 'pytest>=8.3,<10'
	@touch $@

# What they warn of has been mended in later versions.
lowest: .venv-lowest/.installed ## a round through the package with the lowest versions it allows, in an environment of its own
	.venv-lowest/bin/python -m pytest -W default tests/lowest_versions.py

.venv-lowest/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "bgmiv needs Python 3.11 or newer; none found. Try: make lowest PYTHON=/path/to/python3.11"; exit 1; }
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct -e . 'pytest>=8.3,<10'
	@touch $@

# Tutorials that have run are kept in out/docs-cache until their code changes; after a change of the package, remove it.
docs: $(VENV)/.installed-docs ## the documentation site, tutorials run, links checked, into out/docs (open out/docs/index.html)
	NPROC=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m sphinx -n -W --keep-going -c docs . out/docs

$(VENV)/.installed-docs: $(STAMP)
	$(call install,$(VENV),-e '.[docs]')
	@touch $@

dist: $(STAMP) ## build sdist and wheel into dist, install each in a clean environment and try it there
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist .
	sh tests/packaging_round.sh $(BIN)/uv $(BIN)/python dist/*.whl dist/*.tar.gz

results: $(STAMP) ## write RESULTS.md, tables of docs/reproduction.md and out/results/DETAILS.md from the measured rows
	$(BIN)/python benchmarks/make_results.py

robustness: $(STAMP) ## kill, damage and fill the bench and fits in full numbers; writes benchmarks/robustness.md
	$(BIN)/python benchmarks/robustness.py

clean: ## remove the environment and everything generated
	rm -rf $(VENV) .venv-dowhy .venv-econml .venv-lowest out build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
