# make digits: train on real images and see the result.
# make lint: format, lint and types.  make check: lint, and all tests that compile nothing, in minutes.
# make test: lint, these tests, and one short test of each compiled part.
# make test-long: all other tests and short campaigns.
# make compare: three compact models, few-shot probes and fine-tuning.
# make transfer: features learned with labels, by masked patches, MAE, DINO and DINOv2, probed by k-NN and linearly.
# make bench: compares a train step with PyTorch's and measures the loading of weights.
# make docs: builds the documentation as a website in site/.  make docs-serve: shows it at http://localhost:8000.
# SEED=1 and WORKDIR=... select another run. ROUNDS=2 and MODEL=ViT-Ti/16 make the benchmarks shorter.

PYTHON ?= python3
VENV ?= .venv
SEED ?= 0
ROUNDS ?= 20
MODEL ?= ViT-B/16
WORKDIR ?= runs/digits$(if $(filter-out 0,$(SEED)),-seed$(SEED))
BIN := $(VENV)/bin

.PHONY: digits compare transfer lint check test test-long bench docs docs-serve clean

digits: $(VENV)/installed
	$(BIN)/python -m vit_jax.prepare digits
	$(BIN)/python -m vit_jax.train --config=configs/digits.py --workdir=$(WORKDIR) --config.seed=$(SEED)

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
	$(BIN)/python -m pytest -n 2 --dist=worksteal --durations=15 -q -m "not long"

test-long: $(VENV)/installed-test
	$(BIN)/python -m pytest -n 2 --dist=worksteal --durations=15 -v -m long

bench: $(VENV)/installed-bench
	$(BIN)/python -m benchmarks.digits_step --rounds=$(ROUNDS)
	$(BIN)/python -m benchmarks.weights --model=$(MODEL)

docs: $(VENV)/installed-docs
	$(BIN)/python -m mkdocs build

docs-serve: $(VENV)/installed-docs
	$(BIN)/python -m mkdocs serve

# pip's time stamp: an extra is installed again when setup.py changes.
$(VENV)/installed: setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar=on --editable .
	touch $@

$(VENV)/installed-%: setup.py $(VENV)/installed
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar=on --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) *.egg-info site
