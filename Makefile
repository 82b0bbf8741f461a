PYTHON ?= python3
BIN := .venv/bin
# Tests that need nothing beside the repository.
ALONE := not needs_network and not needs_shared and not needs_cluster and not needs_browser and not needs_emulator
TESTING := python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder
TESTS := $(BIN)/$(TESTING)
# What depends on versions of other packages.
NEWEST := $(addprefix tests/,graph targets models quantization inference cli)

# `make quick` leaves out files of tests that name what runs a model, starts a process or draws many samples.
SLOWER := RESAMPLES|runner|checkpoint|captured|finished|package|subprocess|import cli|onnx|torch|openvino|float_path|hypothesis|octobert\.page

# What `make test-python` runs.
WITHOUT_TORCH := $(addprefix tests/,config core data report inference evaluation cli)

# `make test-cpus` and `make test-arm`: emulators, what may install them, and a CPU with AVX2 and without AVX-512 and VNNI.
QEMU := qemu-x86_64-static
QEMU_ARM := qemu-aarch64-static
EMULATORS := { apt-get update -qq && apt-get install -qq -y --no-install-recommends qemu-user-static; } > /dev/null 2>&1 || true
AVX2 := Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm

# Versions of sentence-transformers whose answers octobert is compared with.
REFERENCES := 5.7.0 6.2.0

.PHONY: install demo screenshots quick test test-slow test-web test-shared test-cluster test-clients test-newest test-cpus test-arm test-python coverage wheel-test test-reference lint docs clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev,demo]"
	touch $@

demo: install
	$(BIN)/python recipes/stdlib_docs.py runs/stdlib-docs
	$(BIN)/octobert run recipes/demo.yaml --out runs/demo

# Pictures of the demo's report for the documents.
screenshots: demo
	$(BIN)/pip install --quiet -c constraints.txt -e ".[browser]"
	$(BIN)/python docs/screenshots.py runs/demo

# Unit tests, lint and types, in a minute on two cores.
quick: lint
	$(TESTS) tests/config tests/test_architecture.py $$(grep -rLE '$(SLOWER)' tests --include='test_*.py')

test: install
	$(TESTS)

# Whole trainings and searches, kills, and the families of encoders that are not of QUICK_FAMILIES in tests/conftest.py.
test-slow: install
	$(TESTS) -m "slow and $(ALONE)"

# The pages in a real browser: the system's Chromium or Chrome, or what OCTOBERT_BROWSER names; skipped where there is none.
test-web: install
	$(BIN)/pip install --quiet -c constraints.txt -e ".[browser]"
	$(BIN)/python -m pytest -rs -m needs_browser tests/browser

# Accuracy on real data sets and checkpoints, which lie beside the repository; skipped where they are absent.
test-shared: install
	$(TESTS) -m needs_shared

# Several machines on one search or corpus. Java is that of the system (openjdk-17).
test-cluster: install
	$(BIN)/pip install --quiet -c constraints.txt -e ".[ray,spark]"
	$(BIN)/python -m pytest -rs -m needs_cluster tests/pipeline/executors/test_ray.py
	$(BIN)/python -m pytest -rs -m needs_cluster tests/inference/test_engines.py

coverage: install
	$(TESTS) -m "$(ALONE)" --cov --cov-report=term:skip-covered --cov-report=html:runs/coverage

test-clients: install
	$(BIN)/pip install --quiet -c constraints.txt -e ".[genai]"
	$(BIN)/python -m pytest tests/clients -m needs_network

wheel-test: install
	$(BIN)/python -m pytest tests/docs/test_wheel.py -m needs_network

# The newest version of everything but torch, whose newest build brings gigabytes of CUDA, and files of octobert in the oldest
# onnxruntime that this Python installs: environments of their own, in runs/newest and runs/oldest.
test-newest: install
	$(PYTHON) -m venv runs/newest
	runs/newest/bin/pip install --quiet --upgrade pip
	runs/newest/bin/pip install --quiet --upgrade --upgrade-strategy eager $$(grep ^torch== constraints.txt) -e ".[dev,demo]"
	runs/newest/bin/$(TESTING) $(NEWEST)
	$(BIN)/python -m pytest -m needs_network tests/targets/test_oldest_onnxruntime.py

# What depends on the CPU's instructions, as a CPU with AVX2 alone has it: one process for each file, because children would run on the
# real CPU. qemu-user-static is installed where apt can do that; skipped where it is not, and on other CPUs than x86.
test-cpus: install
	@command -v $(QEMU) > /dev/null || $(EMULATORS)
	@if [ "$$(uname -m)" != x86_64 ] || ! command -v $(QEMU) > /dev/null; then \
	  echo "test-cpus: skipped, because $(QEMU) is not here and apt cannot install it, or this CPU is not x86"; \
	else \
	  mkdir -p runs/avx2/proc && \
	  sed 's/^flags.*/flags\t\t: fpu sse sse2 ssse3 sse4_1 sse4_2 avx f16c fma bmi1 bmi2 avx2/' /proc/cpuinfo > runs/avx2/proc/cpuinfo && \
	  grep -rlE 'mark\.kernels' tests --include='test_*.py' | xargs -P 4 -I FILE \
	    $(QEMU) -cpu $(AVX2) -L runs/avx2 $(BIN)/python -m pytest -p no:xdist -p no:cacheprovider -m kernels FILE; \
	fi

# Packages of every head on three processors of aarch64: an emulator and Debian's Python, which apt has, and wheels, which pip has, in
# runs/arm. Skipped where they are not to be had.
test-arm: install
	@command -v $(QEMU_ARM) > /dev/null || $(EMULATORS)
	@if ! command -v $(QEMU_ARM) > /dev/null || ! $(BIN)/python -m tests.arm.emulated; then \
	  echo "test-arm: skipped, because $(QEMU_ARM), or Python and its packages for aarch64, are not here and cannot be installed"; \
	else \
	  $(BIN)/python -m pytest -m needs_emulator tests/arm; \
	fi

# The newest Python of the system or of pyenv, in an environment of its own without torch, whose builds for it may bring gigabytes of
# CUDA: what needs torch is skipped. Where there is none that is newer than $(PYTHON), everything is.
test-python:
	@newest=$$(ls /usr/bin/python3.[0-9]* /usr/local/bin/python3.[0-9]* $$HOME/.pyenv/versions/3.*/bin/python3.[0-9]* 2> /dev/null | \
	  grep -E '/python3\.[0-9]+$$' | awk -F/ '{print $$NF, $$0}' | sort -V | tail -n 1 | cut -d ' ' -f 2); \
	if [ -z "$$newest" ] || ! "$$newest" -c "import subprocess, sys, venv; \
	    own = subprocess.check_output(['$(PYTHON)', '-c', 'import sys; print(sys.version_info[1])']); \
	    sys.exit(sys.version_info[1] <= int(own))"; then \
	  echo "test-python: skipped, because no Python that is newer than $(PYTHON) is installed"; \
	else \
	  "$$newest" -m venv runs/python && \
	  runs/python/bin/pip install --quiet -c constraints.txt -e ".[openvino,tune,metrics,web]" transformers safetensors sentencepiece \
	    fastapi hatchling hypothesis linkify-it-py markdown-it-py pytest pytest-xdist scikit-learn seqeval tritonclient && \
	  runs/python/bin/$(TESTING) -m "not slow and $(ALONE)" $(WITHOUT_TORCH); \
	fi

# Each version in an environment of its own, beside the packages of this one.
test-reference: install
	for version in $(REFERENCES); do \
	  $(BIN)/python -m venv runs/reference/$$version && \
	  $(BIN)/python -c "import site; print(site.getsitepackages()[0])" > $$(runs/reference/$$version/bin/python -c "import site; print(site.getsitepackages()[0])")/parent.pth && \
	  runs/reference/$$version/bin/pip install --quiet --no-deps sentence-transformers==$$version && \
	  PYTHONPATH=src runs/reference/$$version/bin/python -m tests.clients.reference_answers || exit 1; \
	done

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir runs/site

.venv/docs: .venv/installed
	$(BIN)/pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@

clean:
	rm -rf .venv runs

# bench, bench-here, bench-auto, bench-olive, fuzz, soak, soak-kills
include benchmarks/benchmarks.mk
