# Short targets, the same for people and for CI. ARGS is passed on: make serve ARGS="--no-mdns --host 127.0.0.1"
# llama.cpp is compiled with the flags that suit this processor (tools/build_flags.py) unless CMAKE_ARGS says otherwise. A
# wheel that pip has kept from an earlier build is used as it is; `pocketserver tune` tells when another build would pay.
# Its BLAS backend is compiled beside it in some seconds; without it prompts are read more slowly, and a line says so.
PYTHON ?= python3
VENV   := .venv
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
ARGS   ?=
# Ray and vLLM bring some hundred packages each: they have environments of their own.
RAY    := .venv-ray
VLLM   := .venv-vllm

.PHONY: serve setup test test-apps test-fuzz test-ray test-vllm lint format bench bench-sim bench-room bench-ray dist clean

serve: $(VENV)/.product
	$(VENV)/bin/pocketserver serve $(ARGS)

setup: $(VENV)/.development

test: $(VENV)/.development
	$(VENV)/bin/python -m pytest $(ARGS)

# Applications as clients of the server, each in an environment of its own that the first run installs.
test-apps: $(VENV)/.development
	$(VENV)/bin/python -m pytest tests/apps/test_*.py $(ARGS)

# Generated requests by each profile's API document, some two minutes.
test-fuzz: $(VENV)/.development
	$(VENV)/bin/python -m pytest tests/apps/fuzz/fuzzing.py $(ARGS)

# Ray Serve, really started on this machine with two replicas.
test-ray: $(RAY)/.installed
	$(RAY)/bin/python -m pytest -W default tests/apps/ray $(ARGS)

# A genuine vLLM on the processor as an upstream. It takes 3.5 GB of disk, and some minutes.
test-vllm: $(VENV)/.development $(VLLM)/.installed
	POCKETSERVER_VLLM_PYTHON=$(CURDIR)/$(VLLM)/bin/python $(VENV)/bin/python -m pytest tests/apps/vllm $(ARGS)

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

bench-ray: $(RAY)/.installed
	$(RAY)/bin/python tools/bench_ray.py $(ARGS)

dist: $(VENV)/.development
	$(VENV)/bin/python -m build

clean:
	rm -rf $(VENV) $(RAY) $(VLLM) dist build

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "pocketserver needs Python 3.11 or newer; set PYTHON=/path/to/it")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install "pip>=25.1" -c constraints.txt
	touch $@

$(VENV)/.product: $(VENV)/.created pyproject.toml constraints.txt
	@echo "Installing pocketserver; llama.cpp is compiled once, which takes some minutes."
	CMAKE_ARGS="$${CMAKE_ARGS-$$(PYTHONPATH=. $(PYTHON) tools/build_flags.py)}" $(PIP) install -c constraints.txt -e '.[llama]'
	$(VENV)/bin/python -m pocketserver.engines.llama.blas_library
	touch $@

$(VENV)/.development: $(VENV)/.product
	$(PIP) install -c constraints.txt --group dev
	touch $@

$(RAY)/.installed: $(VENV)/.product tests/apps/ray/constraints.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip --disable-pip-version-check --quiet install "pip>=25.1" -c constraints.txt
	$(RAY)/bin/python -m pip --disable-pip-version-check --quiet install -c tests/apps/ray/constraints.txt -e '.[llama,ray]' --group test
	touch $@

$(VLLM)/.installed: tests/apps/vllm/requirements.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	$(VLLM)/bin/python -m pip --quiet uninstall -y torchvision torchaudio torchcodec
	$(VLLM)/bin/python tests/apps/vllm/stub_metadata.py
	touch $@
