"""README.md of an exported model: what it is, what it was made of, what it reached, how to load it.

Facts out of the folder that is exported, and nothing else; a licence is its owner's to choose.
"""

from importlib.metadata import version
from typing import Any

from model.config import BertConfig
from train.artifacts.checkpoint import TrainState
from train.artifacts.run import RunConfig

HEAD = """\
---
library_name: transformers
pipeline_tag: {task}
license: unknown
tags:
- bert
- clozeline
---

# {title}

Made with Clozeline {version}.
"""
FILL = """\
from transformers import pipeline

fill = pipeline("fill-mask", model="{folder}")
print(fill("The [MASK] of the town."))
"""
CLASSIFY = """\
from transformers import pipeline

classify = pipeline("text-classification", model="{folder}", truncation=True)
print(classify({example}))
"""
# The names in summary.json, as a person reads them; losses are in nats.
REACHED = {
    "examples": "held-out examples",
    "mlm_loss": "masked-LM loss",
    "unigram_loss": "the same of the training unigram",
    "mlm_accuracy": "masked-LM accuracy",
    "most_frequent_share": "the same of the most frequent token",
    "nsp_loss": "NSP loss",
    "nsp_accuracy": "NSP accuracy",
}

Facts = dict[str, Any]


def run_card(
    config: RunConfig, state: TrainState, heldout: dict[str, float] | None, *, folder: str
) -> str:
    """Of a pretrained model; `heldout` as in summary.json, None where nothing was measured."""
    training, data = config.training, config.data
    made_of: Facts = {
        "steps": state.step,
        "examples read": state.next_position,
        "tokens of an example at most": data.max_seq_length,
        "pairs": data.pairs,
        "share of tokens that is masked": data.masked_lm_prob,
        "whole words are masked": data.whole_word,
        "batch": training.batch_size,
        "optimizer": training.optimizer,
        "highest learning rate": training.learning_rate,
        "digest of the data set": config.dataset_digest,
        "digest of the tokenizer": config.tokenizer_digest,
        "began with the weights of sha256": config.started_from or "none",
    }
    measured = heldout or {}
    reached: Facts = {REACHED[name]: measured[name] for name in REACHED if name in measured}
    title = f"BERT, {config.model.num_hidden_layers} layers of {config.model.hidden_size}"
    return _card(
        ("fill-mask", title),
        ("What it is", _table(_sizes(config.model))),
        ("What it was made of", _table(made_of)),
        ("What it reached", _table(reached) if reached else "Nothing was measured.\n"),
        ("How to load it", _code(FILL.format(folder=folder))),
    )


def classifier_card(facts: Facts, report: Facts, *, folder: str) -> str:
    """Of a fine-tuned model: `facts` as in classifier.json, `report` as in report.json."""
    job, scores = facts["job"], report["finetuned"]
    made_of: Facts = {
        "classes": ", ".join(facts["names"]),
        "column of the text": facts["text"],
        "column of the second text": facts["text_pair"] or "none",
        "tokens of a text at most": facts["max_seq_length"],
        "training examples": report["examples"],
        **{name: job[name] for name in ("epochs", "batch_size", "learning_rate", "seed")},
        "digest of the weights before": job["pretrained"],
    }
    reached: Facts = {"test examples": scores["examples"], "accuracy": scores["accuracy"]}
    reached |= {f"F1 of {name}": value for name, value in scores["f1"].items()}
    example = '{"text": "one text", "text_pair": "another"}' if facts["text_pair"] else '"a text"'
    return _card(
        ("text-classification", f"BERT for {len(facts['names'])} classes"),
        ("What it is", _table(_sizes(BertConfig.from_dict(facts["model"])))),
        ("What it was made of", _table(made_of)),
        ("What it reached", _table(reached)),
        ("How to load it", _code(CLASSIFY.format(folder=folder, example=example))),
    )


def _sizes(model: BertConfig) -> Facts:
    return {
        "layers": model.num_hidden_layers,
        "hidden size": model.hidden_size,
        "attention heads": model.num_attention_heads,
        "feed-forward size": model.intermediate_size,
        "vocabulary": model.vocab_size,
        "positions": model.max_position_embeddings,
    }


def _card(what: tuple[str, str], *sections: tuple[str, str]) -> str:
    task, title = what
    head = HEAD.format(task=task, title=title, version=version("clozeline"))
    return head + "".join(f"\n## {name}\n\n{text}" for name, text in sections)


def _table(facts: Facts) -> str:
    rows = "".join(f"| {name} | {_shown(value)} |\n" for name, value in facts.items())
    return f"| | |\n|---|---|\n{rows}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _code(text: str) -> str:
    return f"```python\n{text}```\n"
