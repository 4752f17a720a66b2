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

# The long version of the tests of faults, for about an hour: docs/guarantees.md. KILLS=200 for a night.
KILLS ?= 60
CHAOS := tests/test_kill.py tests/test_faults.py tests/test_signals.py tests/test_numbers.py tests/test_many.py \
	tests/test_collapse.py
chaos: $(VENV)/.ready
	BYOL_KILLS=$(KILLS) OMP_NUM_THREADS=1 $(BIN)/python -m pytest --capture=no $(CHAOS)
	OMP_NUM_THREADS=1 BYOL_CHAOS=1 $(BIN)/python -m pytest tests/test_distributed.py tests/test_slurm.py \
		tests/test_fuzz.py tests/test_properties.py tests/test_report.py tests/test_untrusted.py tests/test_zoo.py

# Beside the peers, which get an environment of their own: 40 minutes on two idle cores. ENTRIES names some lines only;
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
