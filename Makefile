# Each target sets up what it needs; nothing has to be done before.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint chaos clean

demo: $(VENV)/.ready
	$(BIN)/byol demo

# A process a core with one thread each: two threads in each of two processes would wait for one another.
test: $(VENV)/.ready lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Twenty kills and more, for minutes.
chaos: $(VENV)/.ready
	BYOL_KILLS=20 $(BIN)/python -m pytest tests/test_kill.py
	BYOL_CHAOS=1 $(BIN)/python -m pytest tests/test_fuzz.py tests/test_properties.py tests/test_report.py tests/test_untrusted.py tests/test_zoo.py

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
