# Short targets, the same for people and for CI. ARGS is passed on: make serve ARGS="--no-mdns --host 127.0.0.1"
# llama.cpp is compiled with the flags that suit this processor (tools/build_flags.py) unless CMAKE_ARGS says otherwise. A
# wheel that pip has kept from an earlier build is used as it is; `pocketserver tune` tells when another build would pay.
PYTHON ?= python3
VENV   := .venv
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
ARGS   ?=

.PHONY: serve setup test test-apps test-fuzz lint format bench bench-sim bench-room dist clean

serve: $(VENV)/.product
	$(VENV)/bin/pocketserver serve $(ARGS)

setup: $(VENV)/.development

test: $(VENV)/.development
	$(VENV)/bin/python -m pytest $(ARGS)

# Applications as clients of the server, each in an environment of its own that the first run installs.
test-apps: $(VENV)/.development
	$(VENV)/bin/python -m pytest tests/apps $(ARGS)

# Generated requests by each profile's API document, some two minutes.
test-fuzz: $(VENV)/.development
	$(VENV)/bin/python -m pytest tests/apps/fuzz/fuzzing.py $(ARGS)

lint: $(VENV)/.development
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/.development
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(VENV)/.development
	$(VENV)/bin/python tools/bench.py $(ARGS)

bench-sim: $(VENV)/.development
	$(VENV)/bin/python tools/bench_sim.py $(ARGS)

bench-room: $(VENV)/.development
	$(VENV)/bin/python tools/bench_room.py $(ARGS)

dist: $(VENV)/.development
	$(PIP) install build -c constraints.txt
	$(VENV)/bin/python -m build

clean:
	rm -rf $(VENV) dist build

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "pocketserver needs Python 3.11 or newer; set PYTHON=/path/to/it")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install "pip>=25.1" -c constraints.txt
	touch $@

$(VENV)/.product: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing pocketserver; llama.cpp is compiled once, which takes some minutes."
	CMAKE_ARGS="$${CMAKE_ARGS-$$(PYTHONPATH=. $(PYTHON) tools/build_flags.py)}" $(PIP) install -c constraints.txt -e '.[llama]'
	touch $@

$(VENV)/.development: $(VENV)/.product
	$(PIP) install -c constraints.txt --group dev
	touch $@
