PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test lint bench clean

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

test: install
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install
	$(BIN)/python benchmarks/foundation.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/calibration.py --placement tensorrt
	$(BIN)/pip install --quiet -c constraints.txt -e ".[bench]"
	$(BIN)/python benchmarks/calibration.py --peers 16
	$(BIN)/python benchmarks/norms.py
	$(BIN)/python benchmarks/soak.py
	$(BIN)/python benchmarks/speed.py --page docs/benchmarks.md

clean:
	rm -rf .venv runs
