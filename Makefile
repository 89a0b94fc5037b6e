# Everything a newcomer needs: make demo, make test. Each installs what it needs into .venv.
PYTHON ?= python3
UV := .uv/bin/uv
UV_VERSION := 0.13.9
RUN := .venv/bin/
# One file an environment; DEV is the one that .venv holds.
DEV := requirements/dev.txt
SOURCES := $(wildcard flows tasks tasks/* engine engine/* engine/atlas/* blocks deployments deployments/*)
# What needs the extra atlas (0.4 GB) is tested in an environment of its own.
ATLAS_TESTS := tests/engine/atlas tests/tasks/atlas tests/integration/test_atlas.py

.PHONY: install demo test test-integration test-rest test-engine test-atlas lint types atlas peers readers locks package clean

install: .venv/.installed

$(UV):
	$(PYTHON) -m venv .uv
	.uv/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

.venv/.installed: $(UV) $(DEV) pyproject.toml $(SOURCES)
	@echo 'Installing what $(DEV) lists into .venv: about 3 GB the first time'
	$(UV) venv --quiet --allow-existing --python 3.12 .venv
	$(UV) pip sync --quiet --compile-bytecode --python .venv --require-hashes $(DEV)
	rm -rf build  # links of modules that are gone
	$(UV) pip install --quiet --python .venv --no-deps -e .
	.venv/bin/python -m compileall -q build  # else each process compiles, where Python must not write
	touch $@

demo: install
	$(RUN)cytopave demo

# Two parts at a time, the longest first: they wait for servers and clusters as much as they compute.
test: install atlas
	$(MAKE) --jobs 2 --keep-going --no-print-directory test-integration test-rest test-engine test-atlas

test-integration test-engine: test-%:
	$(RUN)pytest tests/$*

# Whatever is in no other part.
test-rest:
	$(RUN)pytest --ignore tests/integration --ignore tests/engine

test-atlas:
	.venv-atlas/bin/pytest $(ATLAS_TESTS)

atlas: .venv-atlas/.installed

.venv-atlas/.installed: requirements/atlas.txt .venv/.installed
	$(UV) venv --quiet --allow-existing --python 3.12 .venv-atlas
	$(UV) pip sync --quiet --compile-bytecode --python .venv-atlas --require-hashes requirements/atlas.txt
	$(UV) pip install --quiet --python .venv-atlas --no-deps -e .
	touch $@

lint: install
	$(RUN)ruff check .
	$(RUN)ruff format --check .
	$(RUN)lint-imports

types: install
	$(RUN)mypy
	$(RUN)mypy tests benchmarks

LOCK := $(UV) pip compile --quiet --python-version 3.12 --generate-hashes --no-emit-index-url --no-header
COMPILE := $(LOCK) --constraint requirements/constraints.in pyproject.toml

# The tools that benchmarks run beside ours: GPL-3.0 among them, so in an environment of their own.
peers: $(UV)
	$(UV) venv --quiet --allow-existing --python 3.12 .venv-peers
	$(UV) pip sync --quiet --compile-bytecode --python .venv-peers --require-hashes requirements/peers.txt

# Other projects' readers of the stores that are written: tests/integration/test_readers.py.
readers: .venv-readers/.installed

.venv-readers/.installed: $(UV) requirements/readers.txt
	$(UV) venv --quiet --allow-existing --python 3.12 .venv-readers
	$(UV) pip sync --quiet --python .venv-readers --require-hashes requirements/readers.txt
	touch $@

locks: $(UV)
	$(COMPILE) --universal --extra cellpose --extra convert --extra slurm --extra kubernetes --group dev -o requirements/dev.txt
	$(COMPILE) --universal --extra cellpose3 --group dev -o requirements/cellpose3.txt
	$(COMPILE) --universal --extra atlas --group dev --group atlas-samples -o requirements/atlas.txt
	$(COMPILE) --universal --extra cellpose --extra atlas --extra stardist --extra convert --extra parquet --extra slurm --extra kubernetes --extra s3 -o requirements/cpu.txt
	$(COMPILE) --python-platform x86_64-manylinux_2_28 --extra cellpose --extra cuda13 --extra atlas-cuda13 --extra slurm --extra kubernetes --extra s3 -o requirements/cuda13.txt
	$(COMPILE) --python-platform x86_64-manylinux_2_28 --extra cellpose --extra cuda12 --extra slurm --extra kubernetes --extra s3 -o requirements/cuda12.txt
	$(COMPILE) --universal --group peers -o requirements/peers.txt
	$(LOCK) --universal --group readers -o requirements/readers.txt

clean:
	rm -rf .venv .venv-atlas .venv-peers .venv-readers .uv build *.egg-info
