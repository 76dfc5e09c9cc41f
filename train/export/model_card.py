"""README.md of an exported model: architecture, training, evaluation, usage.

The card states only what the exported folder records; the licence is left to the owner. Its head is
the metadata from which the Hugging Face Hub shows task and scores.
"""

from typing import Any

from clozeline.model.config import BertConfig
from clozeline.pipeline.common.packages import own_version
from clozeline.train.artifacts.checkpoint import TrainState
from clozeline.train.artifacts.run import RunConfig
from clozeline.train.data.phases import data_sets_of, states_of
from clozeline.train.finetuning.training_loop import rows_per_step

HEAD = """\
---
{metadata}
---

# {title}

Made with Clozeline {version}.
"""
FILL = """\
from transformers import pipeline

fill = pipeline("fill-mask", model="{folder}")
print(fill("The {mask} of the town."))
"""
CLASSIFY = """\
from transformers import pipeline

classify = pipeline("text-classification", model="{folder}", truncation=True)
print(classify({example}))
"""
# Labels for the entries of summary.json; losses are in nats.
EVALUATION = {
    "examples": "held-out examples",
    "mlm_loss": "masked-LM loss",
    "unigram_loss": "masked-LM loss of the training unigram",
    "mlm_accuracy": "masked-LM accuracy",
    "most_frequent_share": "masked-LM accuracy of the most frequent token",
    "nsp_loss": "NSP loss",
    "nsp_accuracy": "NSP accuracy",
}
# The entries that the Hub lists, with the Hub's name for each metric.
RESULTS = {"mlm_loss": "loss", "mlm_accuracy": "accuracy", "nsp_accuracy": "accuracy"}

Values = dict[str, Any]


def run_card(
    config: RunConfig,
    state: TrainState,
    heldout: dict[str, float] | None,
    *,
    folder: str,
    mask: str,
) -> str:
    """The card of a run; `heldout` is that of summary.json, `mask` the tokenizer's "[MASK]"."""
    training, data = config.training, config.data
    trained: Values = {
        "steps": state.step,
        "examples read": sum(data_state["next_position"] for data_state in states_of(state.loader)),
        "maximum sequence length": data.max_seq_length,
        "pairs": data.pairs,
        "masking rate": training.masked_lm_prob or data.masked_lm_prob,
        "masking": data.masking,
        "batch size": training.batch_size,
        "optimizer": training.optimizer,
        "peak learning rate": training.learning_rate,
        "data set digest": ", ".join(data_sets_of(config.phases)),
        "tokenizer digest": config.tokenizer_digest,
        "initial weights (sha256)": config.started_from or "random",
    }
    measured = heldout or {}
    scores: Values = {EVALUATION[key]: measured[key] for key in EVALUATION if key in measured}
    results = {
        (kind, EVALUATION[key]): measured[key] for key, kind in RESULTS.items() if key in measured
    }
    test_set = f"held-out examples of data set {config.dataset_digest[:12]}"
    title = f"BERT, {config.model.num_hidden_layers} layers of {config.model.hidden_size}"
    head = _head("fill-mask", title, test_set, results)
    return head + _sections(config.model, trained, scores, FILL.format(folder=folder, mask=mask))


def classifier_card(metadata: Values, report: Values, *, folder: str) -> str:
    """The card of a classifier, from the contents of classifier.json and report.json."""
    job, plan, finetuned = metadata["job"], report["plan"], report["finetuned"]
    lost = metadata["truncate"]
    trained: Values = {
        "classes": ", ".join(metadata["names"]),
        "text column": metadata["text"],
        "second text column": metadata["text_pair"] or "none",
        "maximum sequence length": metadata["max_seq_length"],
        "longer texts": "are read in parts" if lost == "nothing" else f"lose their {lost}",
        "training examples": report["examples"],
        "epochs": plan["epochs"],
        "batch size": rows_per_step(report["examples"], job["batch_size"]),
        "learning rate": plan["learning_rate"],
        "seed": report["seed"],
        "pretrained weights digest": job["pretrained"],
    }
    scores: Values = {"test examples": finetuned["examples"], "accuracy": finetuned["accuracy"]}
    texts = report["excluded"]["test"]
    known = "not checked" if texts is None else f"{texts:,}, excluded from it"
    scores["test examples found in the pretraining corpus"] = known
    scores |= {f"F1 of {name}": value for name, value in finetuned["f1"].items()}
    results = {("accuracy", "accuracy"): finetuned["accuracy"]}
    results |= {("f1", f"F1 of {name}"): value for name, value in finetuned["f1"].items()}
    is_pair = metadata["text_pair"] is not None
    example = '{"text": "one text", "text_pair": "another"}' if is_pair else '"a text"'
    usage = CLASSIFY.format(folder=folder, example=example)
    title = f"BERT for {len(metadata['names'])} classes"
    head = _head("text-classification", title, "test rows", results)
    return head + _sections(BertConfig.from_dict(metadata["model"]), trained, scores, usage)


def _head(task: str, title: str, test_set: str, results: dict[tuple[str, str], float]) -> str:
    """Metadata and title; `results` by the Hub's name of the metric and ours."""
    from huggingface_hub import EvalResult, ModelCardData  # slow to import

    measured = [
        EvalResult(
            task_type=task,
            dataset_type="custom",  # not a data set of the Hub
            dataset_name=test_set,
            metric_type=kind,
            metric_name=name,
            metric_value=value,
        )
        for (kind, name), value in results.items()
    ]
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=task,
        license="unknown",
        tags=["bert", "clozeline"],
        model_name=title if measured else None,
        eval_results=measured or None,
    )
    return HEAD.format(metadata=data.to_yaml(), title=title, version=own_version())


def _sections(model: BertConfig, trained: Values, scores: Values, usage: str) -> str:
    sizes = {
        "layers": model.num_hidden_layers,
        "hidden size": model.hidden_size,
        "attention heads": model.num_attention_heads,
        "feed-forward size": model.intermediate_size,
        "vocabulary": model.vocab_size,
        "positions": model.max_position_embeddings,
    }
    sections = {
        "Architecture": _table(sizes),
        "Training": _table(trained),
        "Evaluation": _table(scores) if scores else "Not evaluated.\n",
        "Usage": f"```python\n{usage}```\n",
    }
    return "".join(f"\n## {name}\n\n{text}" for name, text in sections.items())


def _table(values: Values) -> str:
    rows = "".join(f"| {_shown(name)} | {_shown(value)} |\n" for name, value in values.items())
    return f"| | |\n|---|---|\n{rows}"


def _shown(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.replace("|", "\\|").splitlines())
