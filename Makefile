# Everything sets itself up in .venv from constraints.txt; run any target twice, it installs once.
PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/.core
READY := .venv/.ready
PEERS := .venv-peers/.ready
FLOWER := .venv-flower/.ready
ONLY ?=
# Where this is set, each of the many processes of the tests compiles every library again.
unexport PYTHONDONTWRITEBYTECODE
# uv is several times as fast as pip; where it cannot reach what pip can, pip does it.
define install
UV_HTTP_TIMEOUT=180 $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e $(1) \
	|| $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e $(1)
endef

.PHONY: demo test test-all slow check lint types quick bench docs flower setup clean

setup: $(READY)

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "privrec needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(call install,.)
	@touch $(CORE)

$(READY): $(CORE)
	$(call install,'.[dev]')
	@touch $(READY)

demo: $(CORE)
	@rm -rf runs/demo
	$(BIN)/privrec train privrec-plus --data synthetic --out runs/demo
	$(BIN)/privrec evaluate runs/demo
	$(BIN)/privrec recommend runs/demo --like 'The Silent Harbour' --like 'The Golden Garden' \
		--like 'The Broken Letter' --feature age=18-29
	$(BIN)/privrec export runs/demo --web runs/demo-page

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

check: lint types

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell src docs bench README.md CONTRIBUTING.md CHANGELOG.md

types: $(READY)
	$(BIN)/mypy

quick: $(READY)
	$(BIN)/pytest -m 'not slow' -n 3 --dist loadfile

# mypy has one thread: the tests run beside it.
test: lint
	$(MAKE) -j2 types quick

# Real federations, kills, browsers, the notebook, whole pages, the wheel in empty environments; and
# more random examples for every test that has them.
test-all: test slow

slow: $(READY)
	PRIVREC_EXAMPLES=many $(BIN)/pytest --ignore tests/transport/test_flower.py -m 'slow or hypothesis' -n 3 --dist loadfile

bench: $(READY) $(PEERS)
	$(BIN)/python bench/run.py $(ONLY)

$(PEERS): bench/peers/requirements.txt bench/peers/constraints.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check \
		-c bench/peers/constraints.txt -r bench/peers/requirements.txt
	@touch $(PEERS)

# Whole trainings on stock Flower: some minutes, in which each message starts a process.
flower: $(READY) $(FLOWER)
	$(BIN)/pytest tests/transport/test_flower.py

# Flower has strict requirements, so its tests have an environment of their own.
$(FLOWER): $(READY) pyproject.toml tests/transport/flower-constraints.txt
	$(PYTHON) -m venv .venv-flower
	UV_HTTP_TIMEOUT=180 $(BIN)/uv pip install --quiet --compile-bytecode \
		--python .venv-flower/bin/python \
		-c tests/transport/flower-constraints.txt -e '.[flower]' 'flwr[simulation]'
	@touch $(FLOWER)

clean:
	rm -rf .venv .venv-peers .venv-flower runs site .mypy_cache .ruff_cache .pytest_cache .hypothesis bench.json
