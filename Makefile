# Each target sets up what it needs; nothing has to be done before.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint chaos bench clean

demo: $(VENV)/.ready
	$(BIN)/byol demo

# A process a core with one thread each: two threads in each of two processes would wait for one another.
test: $(VENV)/.ready lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The long version of the tests of faults, for two hours: docs/guarantees.md. KILLS=200 for a night.
KILLS ?= 60
CHAOS := $(addprefix tests/test_,$(addsuffix .py,kill faults signals numbers many collapse distributed slurm fuzz \
	properties report page untrusted zoo))
chaos: $(VENV)/.ready
	BYOL_CHAOS=$(KILLS) OMP_NUM_THREADS=1 $(BIN)/python -m pytest --capture=no $(CHAOS)

# Beside the peers, which get an environment of their own: over an hour on two idle cores. ENTRIES names some lines only;
# CIFAR and PHOTOS are folders of JPEG files, without which scenes are drawn.
bench: $(VENV)/.ready
	$(BIN)/python benchmarks/speed.py $(ENTRIES) $(if $(CIFAR),--cifar $(CIFAR)) $(if $(PHOTOS),--photos $(PHOTOS))
	$(BIN)/python benchmarks/render.py

# torch and torchvision must match each other: a pair found in the surrounding environment is used as it is,
# otherwise the newest pair is installed.
$(VENV)/.ready: pyproject.toml
	@if $(PYTHON) -c "import torch, torchvision" 2>/dev/null; then \
		$(PYTHON) -m venv --system-site-packages $(VENV); \
	else \
		$(PYTHON) -m venv $(VENV); \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info
