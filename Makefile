# make digits: train on real images and see the result.
# make lint: format, lint and types.  make check: lint, and all tests that compile nothing, in minutes.
# make test: lint, and all short tests, those that compile with one set of parameters.
# make test-long: slow tests: training runs, whole processes and short campaigns.
# make test-full: the longest tests, and the other tests with all other parameters.
# make golden-check: compares the compiled step of each recipe with stored figures.  make golden: stores new figures.
# make notebook: executes examples/quickstart.ipynb and stores its outputs.
# make compare: three compact models, few-shot probes and fine-tuning.
# make transfer: features learned with labels, by masked patches, MAE, DINO and DINOv2, probed by k-NN and linearly.
# make bench: compares a train step with PyTorch's and measures the loading of weights.
# make docs: builds the documentation as a website in site/.  make docs-serve: shows it at http://localhost:8000.
# make lock: writes requirements/*.txt for the present setup.py.  make lock UPGRADE=--upgrade: with the newest packages.
# make sbom: lists all packages of the environment in sbom.json, in the format CycloneDX.
# SEED=1 and WORKDIR=... select another run. ROUNDS=2 and MODEL=ViT-Ti/16 make the benchmarks shorter.
# GOLDEN="golden and not full" compares fewer recipes.
# LOCK=requirements/gpu.txt installs for NVIDIA GPUs, tpu.txt for TPUs. LOCK= installs the newest packages that setup.py
# allows, without hashes.

PYTHON ?= python3
VENV ?= .venv
SEED ?= 0
LOCK ?= requirements/cpu.txt
UPGRADE ?=
ROUNDS ?= 20
MODEL ?= ViT-B/16
GOLDEN ?= golden
WORKDIR ?= runs/digits$(if $(filter-out 0,$(SEED)),-seed$(SEED))
BIN := $(VENV)/bin
# Quotes a value for the shell.
quote = '$(subst ','\'',$(1))'
$(if $(word 2,$(LOCK)),$(error LOCK: expected one file, got '$(LOCK)'. Use a value such as LOCK=requirements/gpu.txt))
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar=on
NEWEST = $(if $(LOCK),,--upgrade --upgrade-strategy=eager)
COMPILE = $(BIN)/python -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
  --no-annotate $(UPGRADE)

.PHONY: digits compare transfer lint check test test-long test-full golden golden-check notebook bench docs docs-serve lock sbom clean

digits: $(VENV)/installed
	$(BIN)/python -m vit_jax.prepare digits
	$(BIN)/python -m vit_jax.train --config=configs/digits.py --workdir=$(call quote,$(WORKDIR)) --config.seed=$(call quote,$(SEED))

compare: $(VENV)/installed
	$(BIN)/python -m benchmarks.compare --workdir=runs/compare

transfer: $(VENV)/installed
	$(BIN)/python -m benchmarks.transfer --workdir=runs/transfer

lint: $(VENV)/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy vit_jax configs benchmarks docs/generate.py docs/generated
	$(BIN)/mypy --python-version=3.10 launch

check: lint
	$(BIN)/python -m pytest -n 2 --dist=worksteal -q -m "not heavy"

test: lint
	$(BIN)/python -m pytest -n 2 --dist=worksteal --durations=15 -q -m "not long and not full and not golden"

test-long: $(VENV)/installed-test
	$(BIN)/python -m pytest -n 2 --dist=worksteal --durations=15 -v -m "long and not full"

test-full: $(VENV)/installed-test
	$(BIN)/python -m pytest -n 2 --dist=worksteal --durations=15 -q -m "full and not golden"

golden: $(VENV)/installed-test
	$(BIN)/python -m tests.planning.golden

golden-check: $(VENV)/installed-test
	$(BIN)/python -m pytest tests/planning -n 2 --dist=worksteal --durations=5 -q -m $(call quote,$(GOLDEN))

notebook: $(VENV)/installed-test
	$(BIN)/python -m tests.notebook

bench: $(VENV)/installed-bench
	$(BIN)/python -m benchmarks.digits_step --rounds=$(call quote,$(ROUNDS))
	$(BIN)/python -m benchmarks.weights --model=$(call quote,$(MODEL))

docs: $(VENV)/installed-docs
	$(BIN)/python -m mkdocs build

docs-serve: $(VENV)/installed-docs
	$(BIN)/python -m mkdocs serve

# sed replaces the path of this clone by `.`.
sbom: $(VENV)/installed-sbom
	$(BIN)/cyclonedx-py environment --output-reproducible --output-file sbom.json $(BIN)/python
	sed 's|"file://[^"]*"|"."|' sbom.json > sbom.json.new
	mv sbom.json.new sbom.json

# A lock is valid on all systems and Python versions, because its lines have conditions.
lock:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) 'uv>=0.13,<0.14'
	$(COMPILE) setup.py --output-file requirements/cpu.txt
	$(COMPILE) setup.py --output-file requirements/gcs.txt --extra gcs
	$(COMPILE) setup.py --output-file requirements/tpu.txt --extra tpu --extra gcs
	$(COMPILE) setup.py --output-file requirements/gpu.txt --extra gpu

# A file with the name of the lock, which changes only if another lock is selected.
$(VENV)/lock: FORCE
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo $(call quote,$(LOCK)) | cmp -s - $@ || echo $(call quote,$(LOCK)) > $@
FORCE:

# Packages are installed again when a file with requirements changes. The second pip adds what the lock lacks.
$(VENV)/installed: setup.py pyproject.toml $(LOCK) $(VENV)/lock
	$(if $(LOCK),$(PIP) --require-hashes --requirement $(call quote,$(LOCK)))
	$(PIP) $(NEWEST) --editable .
	touch $@

$(VENV)/installed-%: setup.py $(VENV)/installed
	$(PIP) --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-* *.egg-info build site
