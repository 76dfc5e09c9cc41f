# A target for each stage; `make help` lists them. A second `make` redoes only what changed.

# Your own values, kept between calls: SOURCE := "data/*.parquet"
-include clozeline.mk

PYTHON  ?= python3
# On Linux, PyPI's torch is the CUDA build. A smaller one, without a GPU:
# make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
VENV    ?= .venv
MINIMA  ?= .venv-minima
BIN     := $(VENV)/bin
READY   := $(VENV)/ready

# Inputs, folders and sizes; each can be set: make pretrain SOURCE='"data/*.parquet"' PRESET=bert-mini
WORK    ?= work
SOURCE  ?= "sample:articles?size=50MB" "sample:reviews?rows=20000"
TRAIN   ?= "sample:reviews?rows=8000&start=1000000"
TEST    ?= "sample:reviews?rows=2000&start=2000000"
TEXT    ?= --text title --text-pair content --label label
VOCAB   ?= 8192
LENGTH  ?= 64
# Masks alone make better classifiers; `segments` are BERT's next sentence pairs.
PAIRS   ?= none
PRESET  ?= nano
STEPS   ?= 1000
# HOURS=8 trains for that time instead of STEPS.
HOURS   ?=
WORKERS ?= 0
# Options of a Beam runner, such as RUNNER="--runner=FlinkRunner --flink_master=host:8081"
RUNNER  ?=
RUN     ?= $(WORK)/run
# More options of each command, such as PRETRAIN_OPTIONS="--batch-size 256"
SHARDS_OPTIONS   ?=
PRETRAIN_OPTIONS ?=
FINETUNE_OPTIONS ?=
# OVERWRITE=1 replaces a folder that was built from other values.
OVERWRITE ?=

TOKENIZER  := $(WORK)/tokenizer
SHARDS     := $(WORK)/shards
CLASSIFIER := $(RUN)-classifier
EXPORTED   := $(RUN)-huggingface

.DEFAULT_GOAL := help

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# --- set-up ---------------------------------------------------------------------------------------

INSTALL := pip install --quiet --disable-pip-version-check

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Clozeline needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@test -z "$(TORCH_INDEX)" || $(BIN)/$(INSTALL) --retries 1 --index-url "$(TORCH_INDEX)" "$$(grep ^torch== requirements.lock)" \
	    || { echo "No torch from TORCH_INDEX=$(TORCH_INDEX); check the address, or leave it out." >&2; exit 2; }
	$(BIN)/$(INSTALL) -r requirements.lock
	$(BIN)/$(INSTALL) --no-deps -e .
	@touch $@

# W&B, MLflow and Lightning, with which only a few tests run: all others do without.
$(VENV)/extra: requirements-extra.lock $(READY)
	$(BIN)/$(INSTALL) -r requirements-extra.lock
	@touch $@

$(MINIMA)/ready: requirements-min.lock pyproject.toml
	$(PYTHON) -m venv $(MINIMA)
	$(MINIMA)/bin/$(INSTALL) -r requirements-min.lock
	$(MINIMA)/bin/$(INSTALL) --no-deps -e .
	@touch $@

.PHONY: setup
setup: $(READY)  ## install everything pinned in requirements.lock into .venv

# --- the demo -------------------------------------------------------------------------------------

.PHONY: demo
demo: $(READY)  ## train a sentiment classifier from the built-in sample, offline, in a few minutes
	@$(BIN)/python examples/demo.py $(WORK)/demo

# --- one stage each -------------------------------------------------------------------------------

# FOLDER.variables records the variables that FOLDER was built from. When they change the stage runs
# again, and its command says what differs or, with OVERWRITE=1, replaces the folder.
values = $(foreach name,$(1),$(name)=$($(name)))
recorded = $(shell cat $(1).variables 2>/dev/null)
is_same = $(and $(findstring <$(1)>,<$(2)>),$(findstring <$(2)>,<$(1)>))
differs = $(if $(1),$(if $(is_same),,$(3)))
if_changed = $(call differs,$(call recorded,$(1)),$(call values,$(2)),$(1).differs)
record = @printf '%s\n' "$$VALUES" > $(@D).variables && touch -c $@
replace := $(if $(OVERWRITE),--overwrite)

%.differs:
	@echo "the values of $* were $$(cat $*.variables)" >&2
	@echo "now they are $$VALUES$(if $(OVERWRITE),, (OVERWRITE=1 replaces $*))" >&2

.PHONY: tokenizer shards pretrain finetune evaluate export wikipedia
tokenizer: $(TOKENIZER)/tokenizer.json  ## learn a vocabulary of VOCAB tokens from SOURCE
$(TOKENIZER)/tokenizer.json: export VALUES = $(call values,SOURCE VOCAB)
$(TOKENIZER)/tokenizer.json: $(call if_changed,$(TOKENIZER),SOURCE VOCAB) | $(READY)
	$(BIN)/clozeline tokenizer $(SOURCE) --vocab-size $(VOCAB) --out $(@D) $(replace)
	$(record)

shards: $(SHARDS)/manifest.json  ## build shards of LENGTH tokens from SOURCE, with WORKERS processes or a Beam RUNNER
OF_SHARDS := SOURCE LENGTH PAIRS SHARDS_OPTIONS
$(SHARDS)/manifest.json: export VALUES = $(call values,$(OF_SHARDS))
$(SHARDS)/manifest.json: $(TOKENIZER)/tokenizer.json $(call if_changed,$(SHARDS),$(OF_SHARDS))
	$(BIN)/clozeline shards $(SOURCE) --tokenizer $(TOKENIZER) --out $(@D) $(replace) \
	    --max-seq-length $(LENGTH) --pairs $(PAIRS) $(SHARDS_OPTIONS) $(if $(RUNNER),-- $(RUNNER),--workers $(WORKERS))
	$(record)

pretrain: $(RUN)/summary.json  ## pretrain PRESET for STEPS steps or HOURS hours into RUN; resumes where it stopped
OF_RUN := PRESET $(if $(HOURS),HOURS,STEPS) PRETRAIN_OPTIONS
$(RUN)/summary.json: export VALUES = $(call values,$(OF_RUN))
$(RUN)/summary.json: $(SHARDS)/manifest.json $(call if_changed,$(RUN),$(OF_RUN))
	$(BIN)/clozeline pretrain $(SHARDS) --out $(RUN) $(if $(OVERWRITE),--overwrite,--resume) \
	    --preset $(PRESET) $(if $(HOURS),--for $(HOURS)h,--max-steps $(STEPS)) $(PRETRAIN_OPTIONS)
	$(record)

finetune: $(CLASSIFIER)/report.json  ## fine-tune RUN on TRAIN into a classifier and score it on TEST
OF_CLASSIFIER := TRAIN TEST TEXT FINETUNE_OPTIONS
$(CLASSIFIER)/report.json: export VALUES = $(call values,$(OF_CLASSIFIER))
$(CLASSIFIER)/report.json: $(RUN)/summary.json $(call if_changed,$(CLASSIFIER),$(OF_CLASSIFIER))
	$(BIN)/clozeline finetune $(RUN) $(TRAIN) --test $(TEST) $(TEXT) --out $(@D) --resume $(replace) \
	    $(FINETUNE_OPTIONS)
	$(record)

evaluate: $(RUN)/summary.json  ## evaluate RUN on the held-out examples
	$(BIN)/clozeline evaluate $(RUN) $(SHARDS)

export: $(EXPORTED)/config.json  ## export RUN for transformers
$(EXPORTED)/config.json: $(RUN)/summary.json
	$(BIN)/clozeline export $(RUN) --out $(@D) $(replace)
	@touch $@

wikipedia: $(READY)  ## download the English Wikipedia and build shards from it
	$(MAKE) shards WORK=$(WORK)/wikipedia VOCAB=30522 LENGTH=128 \
	    SOURCE='"hf://wikimedia/wikipedia?name=20231101.en"'

# --- what pretraining is worth, on real text ------------------------------------------------------

# From $CLOZELINE_DATA, or else from the Hugging Face Hub, whose sources already have a query.
ifdef CLOZELINE_DATA
WIKIPEDIA   := $(CLOZELINE_DATA)/wikipedia/train-*.parquet
AMAZON      := $(CLOZELINE_DATA)/amazon_polarity/train-*.parquet
AMAZON_TEST := $(CLOZELINE_DATA)/amazon_polarity/test-*.parquet
IMDB        := $(CLOZELINE_DATA)/imdb/train-*.parquet
IMDB_TEST   := $(CLOZELINE_DATA)/imdb/test-*.parquet
SST2        := $(CLOZELINE_DATA)/sst2/train-*.parquet
SST2_TEST   := $(CLOZELINE_DATA)/sst2/validation-*.parquet
QUERY       := ?
else
WIKIPEDIA   := hf://wikimedia/wikipedia?name=20231101.en
AMAZON      := hf://fancyzhx/amazon_polarity?split=train
AMAZON_TEST := hf://fancyzhx/amazon_polarity?split=test
IMDB        := hf://stanfordnlp/imdb?split=train
IMDB_TEST   := hf://stanfordnlp/imdb?split=test
SST2        := hf://stanfordnlp/sst2?split=train
SST2_TEST   := hf://stanfordnlp/sst2?split=validation
QUERY       := &
endif
COLUMNS     := text=title,content
REVIEWS     := "$(AMAZON)$(QUERY)$(COLUMNS)" "$(IMDB)"
TWICE       := "$(AMAZON)$(QUERY)$(COLUMNS)&repeat=2" "$(IMDB)$(QUERY)repeat=2"

# Each rung is a command that continues where it stopped or has nothing left to do. Pretraining reads
# Wikipedia and the training reviews without their labels, and without documents that share text with
# a test set, for HOURS, then the reviews alone for half as long. Then come a classifier for each data
# set, with and without pretraining and beside bag-of-words, at these numbers of labels.
LABELS ?= 100,1000,10000,all
SEEDS  ?= 3
LADDER := $(WORK)/ladder
ladder: HOURS := $(or $(HOURS),8)
READ    = $(BIN)/clozeline shards --tokenizer $(LADDER)/tokenizer --max-seq-length 64 --pairs none \
    --exclude "$(AMAZON_TEST)$(QUERY)$(COLUMNS)" --exclude "$(IMDB_TEST)" \
    --exclude "$(SST2_TEST)$(QUERY)text=sentence"
LEARN   = $(BIN)/clozeline finetune $(LADDER)/run-$(HOURS)h-reviews --from-scratch --resume \
    --label-efficiency $(LABELS) --seeds $(SEEDS)

.PHONY: ladder
ladder: $(READY)  ## pretrain for HOURS (8) on real text, then fine-tune with and without pretraining
	test -e $(LADDER)/tokenizer || $(BIN)/clozeline tokenizer "$(WIKIPEDIA)" $(REVIEWS) \
	    --vocab-size 16384 --out $(LADDER)/tokenizer
	$(READ) "$(WIKIPEDIA)" $(TWICE) --out $(LADDER)/mixed
	$(READ) $(REVIEWS) --out $(LADDER)/reviews --masked-lm-prob 0.3 --max-predictions-per-seq 20
	$(BIN)/clozeline pretrain $(LADDER)/mixed --out $(LADDER)/run-$(HOURS)h \
	    --preset nano --dropout 0 --for $(HOURS)h --resume
	$(BIN)/clozeline pretrain $(LADDER)/reviews --out $(LADDER)/run-$(HOURS)h-reviews \
	    --from $(LADDER)/run-$(HOURS)h --dropout 0 --for $$(( $(HOURS) * 30 ))m \
	    --resume
	$(LEARN) "$(AMAZON)" --test "$(AMAZON_TEST)" --text title,content --out $(LADDER)/amazon-$(HOURS)h
	$(LEARN) "$(IMDB)" --test "$(IMDB_TEST)" --out $(LADDER)/imdb-$(HOURS)h
	$(LEARN) "$(SST2)" --test "$(SST2_TEST)" --text sentence --out $(LADDER)/sst2-$(HOURS)h

# --- development ----------------------------------------------------------------------------------

# Two at a time: many tests wait for processes that they started. Tests of one file share their set-up.
PYTEST := -m pytest -q -n 2 --dist loadfile
# Also where the environment says otherwise: compiled files save each process of the tests half a second.
test test-all: export PYTHONDONTWRITEBYTECODE :=

.PHONY: test test-all test-installed test-minima lint types docs check gpu bench speedrun torture kills hosts slurm engines engine-kills fuzz stores clean distclean
test: $(READY)  ## run the tests, without the slow ones
	$(BIN)/python $(PYTEST) -m "not slow and not gpu"

test-all: $(VENV)/extra  ## run all tests, with W&B, MLflow and Lightning installed
	$(BIN)/python $(PYTEST)

test-installed: $(READY)  ## install the wheel and the sdist in empty environments, and run the notebook; slow
	$(BIN)/python -m pytest -q -m slow tests/repository/test_distribution.py tests/repository/test_example_scripts.py -k "sdist or notebook"

test-minima: $(MINIMA)/ready  ## run the tests with the oldest dependencies that pyproject.toml allows; slow
	$(MINIMA)/bin/python $(PYTEST) -m "not slow and not gpu"

lint: $(READY)  ## check the code style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/shellcheck deploy/*.sh .ci/run
	$(BIN)/hadolint deploy/*.Dockerfile

types: $(READY)  ## check the types
	$(BIN)/mypy

docs: $(READY)  ## build the manual as a site in build/docs; warnings are errors
	$(BIN)/mkdocs build --quiet --config-file docs/mkdocs.yml

check: lint types docs test  ## run lint, types, docs and test, as CI does
	@echo "lint, types, manual and tests passed"

# GPU_PYTHON=python3 uses an environment that is already there.
ON_GPU = $(or $(GPU_PYTHON),$(BIN)/python)
gpu: $(if $(GPU_PYTHON),,$(READY))  ## on a machine with a GPU: run the tests that need it, then measure its speed: a table in $(WORK)/gpu.md; DRY=--dry-run tries it without one
	$(ON_GPU) tests/benchmarks/gpu_report.py $(WORK)/gpu.md $(DRY)

# Without what they share, and the report of `make gpu`.
NOT_BENCH  := measuring datatrove_minhash gpu_report reference_chain reference_text
BENCHMARKS := $(filter-out $(NOT_BENCH:%=tests/benchmarks/%.py),$(wildcard tests/benchmarks/*.py))
bench: $(READY)  ## measure speed, as ratios to the usual libraries
	@for file in $(BENCHMARKS); do echo "== $$file"; PYTHONPATH=. $(BIN)/python $$file || exit 1; done

# RECIPE=my.toml, and OPTIONS such as "--save-every 100"
RECIPE  ?= examples/speedrun/nano.toml
OPTIONS ?=
speedrun: $(READY)  ## train a recipe and print when it reaches which held-out loss
	$(BIN)/python examples/speedrun/speedrun.py $(RECIPE) --folder $(WORK)/speedrun $(OPTIONS)

# TRIALS and ROUNDS of them, drawn from SEED; a stopped call continues. FUZZ_RUNS inputs for each parser,
# or for those in TARGETS.
SEED      ?= 0
TRIALS    ?= 10000
ROUNDS    ?= 100
FUZZ_RUNS ?= 1000000
TARGETS   ?= $$(PYTHONPATH=. $(BIN)/python -m tests.fuzz)

torture: $(READY)  ## damage files of every kind at random; every command must notice, or answer as before
	PYTHONPATH=. $(BIN)/python -m tests.faults.torture --trials $(TRIALS) --seed $(SEED) --out $(WORK)/torture

kills: $(READY)  ## kill commands at random moments, run them again, and compare what they wrote
	PYTHONPATH=. $(BIN)/python -m tests.faults.kills --rounds $(ROUNDS) --seed $(SEED) --out $(WORK)/kills

hosts: $(READY)  ## train on two hosts (Linux namespaces) while one dies, is cut off, or has a full disk; needs root
	PYTHONPATH=. $(BIN)/python -m tests.faults.hosts --out $(WORK)/hosts

slurm: $(READY)  ## run the recipes of deploy/ on a Slurm of two hosts while it stops, requeues and loses jobs; needs root
	PYTHONPATH=. $(BIN)/python -m tests.faults.slurm --out $(WORK)/slurm

# MAVEN="mvn -s mirror.xml" and pip's PIP_INDEX_URL name mirrors.
MAVEN ?= mvn
engines: $(READY)  ## build shards on Flink and on Spark, each a cluster on this machine, and on Prism; needs Java and Maven, fetches 4 GB
	PYTHONPATH=. $(BIN)/python -m tests.faults.engines --cache $(WORK)/engines --maven "$(MAVEN)"

engine-kills: $(READY)  ## kill each process of those clusters in the middle of a job, and compare what is written
	PYTHONPATH=. $(BIN)/python -m tests.faults.engine_kills --cache $(WORK)/engines --maven "$(MAVEN)"

fuzz: $(READY)  ## fuzz every parser with FUZZ_RUNS inputs; installs atheris (Linux, Python up to 3.13)
	$(BIN)/$(INSTALL) atheris==3.0.0
	@for target in $(TARGETS); do echo "== $$target"; \
	    PYTHONPATH=. FUZZ_FOLDER=$(WORK)/fuzz $(BIN)/python -m tests.fuzz $$target -runs=$(FUZZ_RUNS) || exit 1; done

stores: $(READY)  ## jobs from and to an S3 server that fails, and what they fetch; installs s3fs and moto
	$(BIN)/$(INSTALL) "s3fs==$$($(BIN)/python -c 'import fsspec; print(fsspec.__version__)')" "moto[server]==5.2.5"
	PYTHONPATH=. $(BIN)/python -m tests.faults.stores

clean:  ## remove caches; shards, runs and models stay
	rm -rf build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find pipeline model train tests -name __pycache__ -prune -exec rm -rf {} +

distclean: clean  ## remove the virtual environments, too
	rm -rf $(VENV) $(MINIMA)
