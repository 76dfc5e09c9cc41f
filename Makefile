# One target a stage. `make help` lists them; a second `make` redoes only what changed.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/ready

# Where things go, and from what; each can be given: make pretrain SOURCE="data/*.parquet"
WORK    ?= work
SOURCE  ?= "sample:articles?size=50MB" "sample:reviews?rows=20000"
TRAIN   ?= "sample:reviews?rows=8000&start=1000000"
TEST    ?= "sample:reviews?rows=2000&start=2000000"
TEXT    ?= --text title --text-pair content --label label
VOCAB   ?= 8192
LENGTH  ?= 64
PRESET  ?= nano
STEPS   ?= 1000
WORKERS ?= 0
# Options of a Beam runner, as in RUNNER="--runner=FlinkRunner --flink_master=host:8081"
RUNNER  ?=
RUN     ?= $(WORK)/run

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

.PHONY: help
help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# --- setting up -----------------------------------------------------------------------------------

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Clozeline needs Python 3.11 or newer; give one: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

.PHONY: setup
setup: $(READY)  ## a virtual environment in .venv with all that is pinned in requirements.lock

# --- the whole road -------------------------------------------------------------------------------

.PHONY: demo
demo: $(READY)  ## text to a sentiment classifier on the built-in sample, offline, a few minutes
	@$(BIN)/python -m train.demo $(WORK)/demo

# --- one stage each -------------------------------------------------------------------------------

.PHONY: tokenizer shards pretrain finetune evaluate export wikipedia
tokenizer: $(WORK)/tokenizer/tokenizer.json  ## learn a vocabulary of VOCAB pieces from SOURCE
$(WORK)/tokenizer/tokenizer.json: | $(READY)
	$(BIN)/clozeline tokenizer $(SOURCE) --vocab-size $(VOCAB) --out $(@D)

shards: $(WORK)/shards/manifest.json  ## SOURCE to shards of LENGTH tokens, on WORKERS or RUNNER
$(WORK)/shards/manifest.json: $(WORK)/tokenizer/tokenizer.json
	$(BIN)/clozeline shards $(SOURCE) --tokenizer $(WORK)/tokenizer --out $(@D) \
	    --max-seq-length $(LENGTH) --workers $(WORKERS) $(if $(RUNNER),-- $(RUNNER))

pretrain: $(RUN)/summary.json  ## PRESET for STEPS steps; goes on where it was stopped
$(RUN)/summary.json: $(WORK)/shards/manifest.json
	$(BIN)/clozeline pretrain $(WORK)/shards --out $(RUN) --preset $(PRESET) --max-steps $(STEPS) --resume

finetune: $(WORK)/classifier/report.json  ## RUN to a classifier of the texts in TRAIN
$(WORK)/classifier/report.json: $(RUN)/summary.json
	$(BIN)/clozeline finetune $(RUN) $(TRAIN) --test $(TEST) $(TEXT) --out $(@D)

evaluate: $(RUN)/summary.json  ## RUN on the held-out examples
	$(BIN)/clozeline evaluate $(RUN) $(WORK)/shards

export: $(WORK)/huggingface/config.json  ## RUN to a folder that transformers reads (PRESET bert-*)
$(WORK)/huggingface/config.json: $(RUN)/summary.json
	$(BIN)/clozeline export $(RUN) --out $(@D)

wikipedia: $(READY)  ## shards of the English Wikipedia (downloads it)
	$(MAKE) shards WORK=$(WORK)/wikipedia VOCAB=30522 LENGTH=128 \
	    SOURCE='"hf://wikimedia/wikipedia?name=20231101.en"'

# --- development ----------------------------------------------------------------------------------

# Two at a time: many tests wait for processes that they started. Those of a file share what they set up.
PARALLEL := -n 2 --dist loadfile

.PHONY: test test-all lint types check bench clean
test: $(READY)  ## the tests, without the slow ones
	$(BIN)/python -m pytest -q -m "not slow and not gpu" $(PARALLEL)

test-all: $(READY)  ## all tests
	$(BIN)/python -m pytest -q $(PARALLEL)

lint: $(READY)  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## types
	$(BIN)/mypy

check: lint types test  ## what CI runs

bench: $(READY)  ## speed, as ratios to the usual libraries
	@for file in tests/benchmarks/*.py; do echo "== $$file"; PYTHONPATH=. $(BIN)/python $$file || exit 1; done

clean:  ## remove the virtual environment and everything that was made
	rm -rf $(VENV) $(WORK) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
