# Each target sets up what it needs; nothing has to be done before.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo setup test lint chaos bench docs clean

demo: $(VENV)/.ready
	$(BIN)/byol demo

# The environment alone, for those who begin with images of their own.
setup: $(VENV)/.ready
	@echo 'Now: . $(BIN)/activate && byol'

# A process a core with one thread each: two threads in each of two processes would wait for one another. Files go to
# processes in the order of tests/conftest.py. Ends with what was skipped, and how many guarantees were exercised.
test: $(VENV)/.dev lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs --numprocesses auto --maxprocesses 4 --dist loadfile \
		--no-loadscope-reorder

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The long versions of the tests behind docs/guarantees.md: two hours, with KILLS=200 a night.
KILLS ?= 60
CHAOS := tests/chaos tests/parallel tests/run/test_signals.py tests/run/test_streams.py tests/run/test_collapse.py \
	tests/test_properties.py tests/report tests/weights/test_untrusted.py tests/data/test_zoo.py
chaos: $(VENV)/.dev
	BYOL_CHAOS=$(KILLS) OMP_NUM_THREADS=1 $(BIN)/python -m pytest --capture=no $(CHAOS)

# Beside the peers, which get an environment of their own: over an hour on two idle cores. ENTRIES names some lines only;
# CIFAR and PHOTOS are folders of JPEG files, without which scenes are drawn.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/speed.py $(ENTRIES) $(if $(CIFAR),--cifar $(CIFAR)) $(if $(PHOTOS),--photos $(PHOTOS))
	$(BIN)/python benchmarks/render.py

# The documentation as a site that needs no server: build/docs/site/index.html.
docs: $(VENV)/.docs
	$(BIN)/python docs/build.py

# What the README's tasks need. torch and torchvision must match each other: a pair found in the surrounding environment
# is used as it is, otherwise the newest pair is installed.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable
$(VENV)/.ready: pyproject.toml
	@echo "Setting up $(VENV); where torch has to be downloaded, that is gigabytes and minutes."
	@if $(PYTHON) -c "import torch, torchvision" 2>/dev/null; then \
		$(PYTHON) -m venv --system-site-packages $(VENV); \
	else \
		$(PYTHON) -m venv $(VENV); \
	fi
	@$(PIP) '.[eval,plots,formats,notebook]'
	@touch $@

# What the extra of this name adds: dev for tests and types, docs for the site.
$(VENV)/.%: $(VENV)/.ready
	@$(PIP) '.[$*]'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info
