# Everything a newcomer needs: `make demo`, `make test`.
# A virtual environment is made on the first call; nothing is installed outside it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := demo-out
# A bare machine may lack the venv module's pip; say what to do instead of failing obscurely.
CHECK_VENV = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "Fourfold needs Python 3.11 or later; set PYTHON=/path/to/python3.11"; exit 1; }

.PHONY: install demo test test-full test-all lint bench docs figures validate-testbed clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(CHECK_VENV)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "python3 -m venv failed; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[runtime,dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/fourfold simulate examples/gpt-320b-frontier-32768.yaml --out $(DEMO)/gpt-320b --force
	$(BIN)/fourfold train examples/tiny-gpt.yaml --ranks 4 --out $(DEMO)/tiny-gpt --force \
		--trace $(DEMO)/tiny-gpt-measured --trace-steps 110-111
	$(BIN)/fourfold simulate examples/tiny-gpt.yaml --out $(DEMO)/tiny-gpt-predicted --force
	@echo "Open $(DEMO)/*/timeline.html in a browser: tiny-gpt-measured beside tiny-gpt-predicted,"
	@echo "and GPT-320B on 32,768 GCDs of Frontier."

test: $(STAMP)
	$(BIN)/python tools/run_tests.py quick

test-full: $(STAMP)
	$(BIN)/python tools/run_tests.py full

test-all: $(STAMP)
	$(BIN)/python tools/run_tests.py all

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m tests.benchmarks.simulate
	$(BIN)/python -m tests.benchmarks.scale
	$(BIN)/python -m tests.benchmarks.chance
	$(BIN)/python -m tests.benchmarks.train

# The site, in docs/_build: open docs/_build/index.html. A warning is an error.
docs: $(STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build

# Figures in the documents that commands print; ten minutes, most of them trainings of the page on memorization.
# DATA=DIR: where tables that are not in the repository are.
figures: $(STAMP)
	$(BIN)/python -m tools.figures $(if $(DATA),--data $(DATA))

# Needs root and iproute2; about 25 minutes on two idle cores.
validate-testbed: $(STAMP)
	$(BIN)/python -m tests.testbed.validate --out testbed-out
	$(BIN)/python -m tests.testbed.validate --out testbed-out/loopback --loopback

clean:
	rm -rf $(VENV) $(DEMO) testbed-out docs/_build build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
