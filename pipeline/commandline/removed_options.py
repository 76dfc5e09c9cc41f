"""Options and commands that were removed, and what to use instead.

clozeline evaluate work/run --ngrams 3  ->  Error: --ngrams was removed; compare with ...

A new row is all that a removal needs; `tests/repository/test_errors.py` runs every row.
"""

EVERY = "every command"

#: Options that `finetune` and `benchmark` had.
FINETUNING = {
    "--layer-decay": "all layers have one --learning-rate",
    "--clip": "leave it out; gradients are clipped to a norm of 1",
    "--class-weights": "repeat the rows of rare classes in the training table",
}
#: By command, then by option, both as a user typed them; the text follows "was removed; ".
OPTIONS: dict[str, dict[str, str]] = {
    EVERY: {"--print-config": "give --config the JSON file in which a command records its options"},
    "tokenizer": {
        "--compare": "compare the tokens of data sets that are built with each",
        "--allow-truncated": "get the whole file, or unpack what can be read of it",
        "--max-megabytes": "at most 200 MB are read; for less, limit the sources with ?limit=N",
    },
    "inspect": dict.fromkeys(
        ("--document", "--source"),
        "show the steps of a run with --steps A-B; they name their documents",
    ),
    "view": {"--export": "use `clozeline report --out`"},
    "shards": {
        "--allow-truncated": "get the whole file, or unpack what can be read of it",
        "--mix": "give each source its tokens, as in wiki.parquet?tokens=140M",
        "--tokens": "give each source its tokens, as in wiki.parquet?tokens=140M",
    },
    "pretrain": {
        **dict.fromkeys(("--start-from", "--init"), "use --from"),
        "--cool-down-from": "use --from RUN@STEP --schedule cool-down",
        **dict.fromkeys(
            ("--estimate", "--gpu", "--gpus", "--price-per-hour"), "use `clozeline estimate`"
        ),
        "--batch-ramp": "leave it out; the batch has one size",
        "--bf16-residual": "leave it out; sums between layers are float32, or bfloat16 with FSDP",
        "--muon-warmup": "leave it out; Muon's momentum is 0.95",
        "--profile": "torch.profiler around clozeline.pretrain shows each operation",
        "--track": "use examples/track_run.py",
        "--no-remask": "leave it out; masks are drawn anew from the second epoch on",
        "--remask": "leave it out; masks are drawn anew from the second epoch on",
        "--activation-checkpointing": "give a smaller --micro-batch-size",
        "--check-shards": "checksums are always compared; `clozeline verify` compares sha256s",
        "--skip-bad-shards": "build the shards again with `clozeline shards --overwrite`",
        "--shard-cache": "copy the shards to a local disk before training, and give that folder",
        "--shard-cache-limit": "copy the shards to a local disk before training",
        "--skip-spikes": "if a run diverges, --resume with a smaller --learning-rate",
    },
    "verify": {"--loader": "the order of the loader is tested, not checked on each data set"},
    "evaluate": {"--ngrams": "compare with the unigram entropy that is printed"},
    "finetune": {
        **FINETUNING,
        "--test-share": "leave it out, and a tenth is held out; or give --test",
    },
    "baseline": dict.fromkeys(
        ("--max-tokens", "--tokenizer", "--truncate"),
        "`clozeline finetune` scores bag-of-words on what the model reads",
    ),
    "benchmark": FINETUNING,
    "predict": {
        "--out": "use --json > FILE",
        "--engine": "run model.onnx in onnxruntime, as docs/manual/huggingface.md shows",
    },
    "export": {
        "--test": "run model.onnx in onnxruntime, as docs/manual/huggingface.md shows",
        "--int8": "onnxruntime.quantization.quantize_dynamic makes such a graph",
    },
}
#: By name of the command.
COMMANDS: dict[str, str] = {
    "average": "use examples/average_checkpoints.py",
    "completion": "set _CLOZELINE_COMPLETE=bash_source, as docs/manual/commands.md shows",
    "serve": "use examples/serve.py",
}


def removed_option(command: str, option: str) -> str | None:
    """ "--ngrams was removed; compare with ..."; None for an option that no version had."""
    instead = (OPTIONS[EVERY] | OPTIONS.get(command, {})).get(option)
    return instead and f"{option} was removed; {instead}."


def removed_command(command: str) -> str | None:
    """As `removed_option`, for a command."""
    instead = COMMANDS.get(command)
    return instead and f"`clozeline {command}` was removed; {instead}."
