# `make demo` and `make test` need Python ≥ 3.11 and make; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
# Where this is set, each of the many processes of a test run would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-long test-network lint docs site clean

demo: .venv/.installed ## train EFL on irregular clients and show the result
	$(BIN)/efl run

test: .venv/.installed-dev ## all tests but those that train on real data for minutes
	$(BIN)/pytest -n 3 --dist loadgroup --durations 15

test-long: .venv/.installed-dev ## the others; they skip where ../shared/data is not
	$(BIN)/pytest -n 2 --dist worksteal -m long -rs tests/end_to_end tests/packaging --ignore tests/end_to_end/test_deploy.py

test-network: .venv/.installed-dev ## a network of real processes in which things go wrong; by itself, for it goes by the clock
	$(BIN)/pytest -m long -rs tests/end_to_end/test_deploy.py

lint: .venv/.installed-dev ## style and types
	$(BIN)/ruff check src tests scripts bench
	$(BIN)/ruff format --check src tests scripts bench
	$(BIN)/mypy

docs: .venv/.installed ## make the pictures of docs/ anew, and the table in runs/ablation-full (a quarter of an hour)
	$(BIN)/efl paper ablation --out runs/ablation-full
	cp runs/ablation-full/figure.png docs/ablation.png
	$(BIN)/efl compare --set fleet.stragglers=0.9 --seeds 3 --out runs/compare
	cp runs/compare/curves.png docs/compare.png
	$(BIN)/efl data show mnist --partition dirichlet:0.1 --out docs/holdings.png # needs mnist in the data directory

site: .venv/.installed-dev ## build the documentation into build/site; a broken link or an undocumented public name is an error
	$(BIN)/mkdocs build --strict

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "elastic-fl needs Python 3.11 or newer; say which with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip # that of Python 3.11 takes twice as long for the rest

# Installing builds the C code, too, where there is a compiler; after a change of it, only that.
NEEDED := pyproject.toml constraints.txt cmake/CMakeLists.txt $(wildcard src/efl/native/*.[ch])
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-compile --editable

.venv/.installed: $(NEEDED) | .venv/bin/pip
	@echo 'Setting up .venv; this takes a minute or two the first time.'
	$(INSTALL) .
	touch $@

.venv/.installed-dev: $(NEEDED) | .venv/bin/pip
	@echo 'Setting up .venv; this takes a minute or two the first time.'
	$(INSTALL) '.[dev]'
	touch $@ .venv/.installed

clean:
	rm -rf .venv runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
