# A fresh clone needs Python 3.11+ with pip, and make. Nothing else has to be typed to set up:
#
#     make demo     the first page of a recorded training run, and its HTML report
#     make test     every test
#     make test-lowest   the core with the lowest declared versions, and the same answers with all Pythons here
#     make test-slurm    recording on a Slurm of four virtual nodes, started for it
#     make fuzz     break recordings for an hour on every core: refused in words, or the ledger adds up?
#     make acceptance    plant causes of slowness in made-up and in real jobs: does the first page name them, and
#                        is the gain of the fix what it predicts?
#     make simulated     simulate jobs with every fault and strategy: is the page right, to the nanosecond?
#     make mutants  plant slips in the core, an hour long: do the tests notice them? (benchmarks/README.md)
#     make check    formatting, lint, types, layers
#     make bench    speed and memory against the targets, written to benchmarks/README.md
#     make docs     regenerate docs/ and the README's output from the code
#     make site     the documentation as a site in build/site, every link checked
#     make record-examples    record examples/runs again (installs torch)
#     make clean    remove what these made

PYTHON ?= python3
PIP = $(PYTHON) -m pip --disable-pip-version-check --python
INSTALL = install --quiet --constraint constraints.txt
DEV = .venv/.installed
DEMO_RUN = examples/runs/ddp

# The demo needs the core alone, so it does not wait for the development tools where those are not there yet.
DEMO = $(if $(wildcard $(DEV)),.venv,.venv-demo)

.PHONY: demo test fuzz test-lowest test-slurm acceptance simulated mutants check bench docs site record-examples clean

demo: $(DEMO)/.installed
	@$(DEMO)/bin/python -m lostflops why $(DEMO_RUN) --html demo-report.html
	@echo
	@echo "The same with plots and tables, to open in a browser: $(CURDIR)/demo-report.html"
	@echo "What was recorded, and with what fault: examples/README.md"

# Tests start Python many times, and each start would compile lostflops again where bytecode is not kept.
test mutants: export PYTHONDONTWRITEBYTECODE =
# Workers fill the cores: a thread more in each only waits for one, at a fifth more processor time.
test: export POLARS_MAX_THREADS = 1
test: $(DEV)
	.venv/bin/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

test-slurm: $(DEV)
	tests/capture/slurm/install
	LOSTFLOPS_TEST_SLURM=1 .venv/bin/python -m pytest tests/capture/slurm/test_slurm_cluster.py -rs

test-lowest:
	$(PYTHON) tests/versions/environments.py
fuzz: $(DEV)
	cd tests && ../.venv/bin/python -m fuzz.run $(FUZZ)

acceptance: $(DEV)
	cd tests && ../.venv/bin/python -m acceptance.run $(ACCEPTANCE)
	cd tests && ../.venv/bin/python -m acceptance.proved $(PROVED)
	cd tests && ../.venv/bin/python -m acceptance.tuned --output ../build/tuned $(TUNED)

simulated: $(DEV)
	cd tests && ../.venv/bin/python -m lab.run $(SIMULATED)

mutants: $(DEV)
	cd tests && PYTHONPATH=versions ../.venv/bin/python -m mutants.run $(MUTANTS)

check: $(DEV)
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/basedpyright
	.venv/bin/lint-imports --no-cache

bench: $(DEV) .venv-hta/.installed
	.venv/bin/python benchmarks/run.py
	cd tests && ../.venv/bin/python -m lab.gains --write
	cd tests && ../.venv/bin/python -m acceptance.gains --write

docs: $(DEV)
	.venv/bin/python docs/generate.py

site: .venv-site/.installed
	.venv-site/bin/python docs/site_pages.py

record-examples: .venv-torch/.installed
	.venv-torch/bin/python examples/record.py

clean:
	rm -rf .venv .venv-lowest .venv-demo .venv-hta .venv-torch .venv-site demo-report.html
	rm -rf .hypothesis .ruff_cache .lostflops build dist

# `venv --without-pip` because Debian ships Python without ensurepip; the caller's pip fills the environment.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --without-pip .venv
	$(PIP) .venv/bin/python $(INSTALL) --editable '.[dev]'
	@touch $@

.venv-demo/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --without-pip .venv-demo
	$(PIP) .venv-demo/bin/python $(INSTALL) --editable .
	@touch $@

# The peer that bench measures. With pandas 3 it fails on some traces.
.venv-hta/.installed:
	$(PYTHON) -m venv --without-pip .venv-hta
	$(PIP) .venv-hta/bin/python install --quiet traceinsight==0.6.1 pandas==2.3.3
	@touch $@

# What builds the site. It is no part of what is developed or tested with.
.venv-site/.installed: mkdocs.yml
	$(PYTHON) -m venv --without-pip .venv-site
	$(PIP) .venv-site/bin/python install --quiet mkdocs==1.6.1 mkdocs-material==9.6.14
	@touch $@

.venv-torch/.installed: constraints.txt
	$(PYTHON) -m venv --without-pip .venv-torch
	$(PIP) .venv-torch/bin/python $(INSTALL) torch==2.13.0 numpy
	@touch $@
