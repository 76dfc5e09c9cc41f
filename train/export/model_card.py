"""README.md of an exported model: training, evaluation, usage.

The card states only what the exported folder records; the licence is left to the owner.
"""

from typing import Any

from clozeline.pipeline.common.errors import own_version
from clozeline.train.artifacts.checkpoint import TrainState
from clozeline.train.artifacts.run import RunConfig
from clozeline.train.data.phases import data_sets_of, states_of
from clozeline.train.finetuning.finetune import rows_per_step

HEAD = """\
---
library_name: transformers
pipeline_tag: {task}
tags:
- bert
- clozeline
---

# {title}

Made with Clozeline {version}.
"""
FILL = """\
fill = pipeline("fill-mask", model="{folder}")
print(fill("The {mask} of the town."))
"""
CLASSIFY = """\
classify = pipeline("text-classification", model="{folder}", truncation=True)
print(classify({example}))
"""
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
    scores: Values = {
        f"held-out {name.replace('_', ' ')}": value for name, value in (heldout or {}).items()
    }
    title = f"BERT, {config.model.num_hidden_layers} layers of {config.model.hidden_size}"
    usage = FILL.format(folder=folder, mask=mask)
    return _card("fill-mask", title, trained, scores, usage)


def classifier_card(metadata: Values, report: Values, *, folder: str) -> str:
    """The card of a classifier, from the contents of classifier.json and report.json."""
    job, plan, finetuned = metadata["job"], report["plan"], report["finetuned"]
    trained: Values = {
        "classes": ", ".join(metadata["names"]),
        "text column": metadata["text"],
        "second text column": metadata["text_pair"] or "none",
        "maximum sequence length": metadata["max_seq_length"],
        "longer texts": f"lose their {metadata['truncate']}",
        "training examples": report["examples"],
        "epochs": plan["epochs"],
        "batch size": rows_per_step(report["examples"], job["batch_size"]),
        "learning rate": plan["learning_rate"],
        "seed": report["seed"],
        "pretrained weights digest": job["pretrained"],
    }
    scores: Values = {"test examples": finetuned["examples"], "accuracy": finetuned["accuracy"]}
    scores |= {f"F1 of {name}": value for name, value in finetuned["f1"].items()}
    is_pair = metadata["text_pair"] is not None
    example = '{"text": "one text", "text_pair": "another"}' if is_pair else '"a text"'
    usage = CLASSIFY.format(folder=folder, example=example)
    title = f"BERT for {len(metadata['names'])} classes"
    return _card("text-classification", title, trained, scores, usage)


def _card(task: str, title: str, trained: Values, scores: Values, usage: str) -> str:
    sections = {
        "Training": _table(trained),
        "Evaluation": _table(scores) if scores else "Not evaluated.\n",
        "Usage": f"```python\nfrom transformers import pipeline\n\n{usage}```\n",
    }
    text = HEAD.format(task=task, title=title, version=own_version())
    return text + "".join(f"\n## {name}\n\n{part}" for name, part in sections.items())


def _table(values: Values) -> str:
    rows = "".join(f"| {_cell(name)} | {_cell(value)} |\n" for name, value in values.items())
    return f"| | |\n|---|---|\n{rows}"


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.replace("|", "\\|").splitlines())
