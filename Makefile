# The whole project from a bare machine: `make book`, `make test`.
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/.ready
BUILT := _build/.built
BENCHED := _build/bench/.ready

# What `make bench` measures against, in a virtual environment of its own.
PEERS := sched-sim==0.2.1 ciw==3.2.7 simpy==4.1.2

# What the book is made of: its sources and the two files that configure them.
SOURCES := _config.yml _toc.yml $(shell find book -type f -not -path '*/.ipynb_checkpoints/*' -not -name '*.pyc')

# The evidence page reads the outputs of the other chapters, so it runs last.
CHAPTERS = $(filter-out book/evidence.ipynb,$(wildcard book/*.ipynb)) $(wildcard book/evidence.ipynb)

# A stored notebook holds what a reader needs and nothing that differs from run to run.
P := nbconvert.preprocessors
TIDY := --Exporter.default_preprocessors='["$P.ExecutePreprocessor", "$P.CoalesceStreamsPreprocessor", "$P.ClearMetadataPreprocessor"]' \
	--ExecutePreprocessor.record_timing=False --CoalesceStreamsPreprocessor.enabled=True \
	--ClearMetadataPreprocessor.enabled=True \
	--ClearMetadataPreprocessor.preserve_cell_metadata_mask='{"tags", "mystnb"}' \
	--ClearMetadataPreprocessor.preserve_nb_metadata_mask='{"kernelspec", ("language_info", "name")}'

.DEFAULT_GOAL := help
.PHONY: help book test bench lab notebooks lock clean distclean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## /\1 /p' $(MAKEFILE_LIST) | while read -r name text; do \
		printf '  make %-10s %s\n' "$$name" "$$text"; done

book: $(BUILT) ## Build the book into _build/html
	@echo 'The book: _build/html/index.html'

test: $(BUILT) ## Lint, type-check and run every test and every notebook
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(PY) -m pytest

bench: $(BENCHED) ## Measure speed and memory beside other simulators
	PYTHONPATH=. _build/bench/bin/python tests/bench.py $(BENCH)

lab: $(READY) ## Open the chapters in JupyterLab
	$(PY) -m jupyterlab $(LAB) book

notebooks: $(READY) ## Run the chapters and store their new outputs
	$(PY) -m nbconvert --execute --inplace $(TIDY) $(CHAPTERS)

lock: ## Write requirements.lock anew from pyproject.toml
	$(PYTHON) -m venv _build/uv
	_build/uv/bin/python -m pip install --quiet uv
	_build/uv/bin/uv pip compile --quiet --upgrade --universal --fork-strategy fewest --all-extras \
		--python-version 3.11 --no-annotate --custom-compile-command 'make lock' \
		--output-file requirements.lock pyproject.toml

clean: ## Remove the built book and all caches
	rm -rf _build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find book lib tests \( -name __pycache__ -o -name .ruff_cache -o -name .ipynb_checkpoints \) \
		-prune -exec rm -rf {} +

distclean: clean ## Remove the virtual environment too
	rm -rf .venv

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
		echo 'The course needs Python 3.11, 3.12 or 3.13: make PYTHON=python3.12 ...' >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv .venv || { rm -rf .venv; \
		echo 'Python has no venv module: on Debian, apt-get install python3-venv.' >&2; exit 1; }
	$(PY) -m pip install --quiet --requirement requirements.lock
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(BENCHED): $(READY) Makefile
	rm -rf _build/bench
	$(PY) -m venv _build/bench
	_build/bench/bin/python -m pip install --quiet --constraint requirements.lock numpy $(PEERS)
	touch $@

# A build over an old one can hide warnings, so every build starts from nothing.
$(BUILT): $(READY) $(SOURCES)
	rm -rf _build/html _build/.doctrees $@
	.venv/bin/jupyter-book build --all -W -n --keep-going . || { \
		find _build/html/reports -name '*.log' -exec tail -n +1 {} + 2>/dev/null; exit 1; }
	touch $@
