"""A model that starts from a run with fewer layers computes the same as that run at first.

The layers that the run does not have come after its own. They are drawn from the seed, but for the
matrix at the end of each sublayer, which is 0, so they add nothing to the states until the first
step has changed it (as Net2DeeperNet's, Chen et al. 2016, "Net2Net"). Few layers learn the most
frequent words and their neighbours at half of the cost (Gong et al. 2019, "Efficient training of
BERT by progressively stacking").
"""

from dataclasses import replace

import torch
from torch import Tensor

from clozeline.model.config import BertConfig
from clozeline.model.heads import BertForPretraining

LAYERS = "encoder.layers."
#: What a sublayer adds to the states ends with these.
ENDS = (".attention.output.", ".feed_forward.down.")


def with_layers(config: BertConfig, layers: int) -> BertConfig:
    """The config with so many layers, and never fewer than it has.

    A norm after the addition changes what a layer that adds nothing hands on, so such a model
    stays as it is.
    """
    if config.norm_position == "post":
        return config
    return replace(config, num_hidden_layers=max(layers, config.num_hidden_layers))


def note_of(there: BertConfig, now: BertConfig) -> str:
    """What changes: "2 layers there, 4 now: ..."."""
    return (
        f"{there.num_hidden_layers} layers there, {now.num_hidden_layers} now: the new ones come "
        "last and add nothing before the first step; the optimizer's moments begin anew"
    )


def deepened_weights(weights: dict[str, Tensor], model: BertForPretraining) -> dict[str, Tensor]:
    """The weights of a run, and those of the layers that only the `model` has."""
    there = {_layer_of(name) for name in weights}
    new = {name: x for name, x in model.state_dict().items() if _layer_of(name) not in there}
    for name, drawn in new.items():
        if any(end in name for end in ENDS):
            new[name] = torch.zeros_like(drawn)
    return weights | new


def _layer_of(name: str) -> str:
    """The number of the layer that a weight belongs to; "" elsewhere."""
    return name.removeprefix(LAYERS).partition(".")[0] if name.startswith(LAYERS) else ""
