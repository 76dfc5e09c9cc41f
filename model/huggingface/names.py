"""The names of weights in `transformers`, for the two of its families that are expressible here.

here                                    BERT                                    ModernBERT
encoder.embeddings.norm.weight          bert.embeddings.LayerNorm.weight        model.embeddings.norm.weight
encoder.layers.0.attention.qkv.weight   bert.encoder.layer.0.attention.self.    model.layers.0.attn.Wqkv.weight
                                        query.weight, key.weight, value.weight
mlm_head.transform.dense.weight         cls.predictions.transform.dense.weight  head.dense.weight
nsp_head.weight                         cls.seq_relationship.weight             absent
"""  # noqa: E501

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WeightNames:
    """The names of one family."""

    prefix: str  # of the encoder; a bare encoder is stored without it
    layer: str  # the layers without their number
    in_layer: Mapping[str, tuple[str, ...]]  # module here -> there, several for packed matrices
    outside: Mapping[str, str]  # module here -> there

    def of(self, name: str) -> list[str]:
        """The names of a weight: three for packed queries, keys and values, none if absent."""
        module, _, kind = name.rpartition(".")
        layer = re.fullmatch(r"encoder\.layers\.(\d+)\.(.+)", module)
        if layer is not None:
            return [f"{self.layer}.{layer[1]}.{inner}.{kind}" for inner in self.in_layer[layer[2]]]
        return [f"{self.outside[module]}.{kind}"] if module in self.outside else []


BERT = WeightNames(
    prefix="bert.",
    layer="bert.encoder.layer",
    in_layer={
        "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.output": ("attention.output.dense",),
        "attention_norm": ("attention.output.LayerNorm",),
        "feed_forward.up": ("intermediate.dense",),
        "feed_forward.down": ("output.dense",),
        "feed_forward_norm": ("output.LayerNorm",),
    },
    outside={
        "encoder.embeddings.word_embeddings": "bert.embeddings.word_embeddings",
        "encoder.embeddings.position_embeddings": "bert.embeddings.position_embeddings",
        "encoder.embeddings.token_type_embeddings": "bert.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
        "encoder.pooler": "bert.pooler.dense",
        "mlm_head": "cls.predictions",
        "mlm_head.transform.dense": "cls.predictions.transform.dense",
        "mlm_head.transform.norm": "cls.predictions.transform.LayerNorm",
        "nsp_head": "cls.seq_relationship",
        "classifier": "classifier",
    },
)
MODERN_BERT = WeightNames(
    prefix="model.",
    layer="model.layers",
    in_layer={
        "attention.qkv": ("attn.Wqkv",),
        "attention.output": ("attn.Wo",),
        "attention_norm": ("attn_norm",),
        "feed_forward.up": ("mlp.Wi",),
        "feed_forward.down": ("mlp.Wo",),
        "feed_forward_norm": ("mlp_norm",),
    },
    outside={
        "encoder.embeddings.word_embeddings": "model.embeddings.tok_embeddings",
        "encoder.embeddings.norm": "model.embeddings.norm",
        "encoder.final_norm": "model.final_norm",
        "mlm_head": "decoder",
        "mlm_head.transform.dense": "head.dense",
        "mlm_head.transform.norm": "head.norm",
        "transform.dense": "head.dense",
        "transform.norm": "head.norm",
        "classifier": "classifier",
    },
)
FAMILIES = {"bert": BERT, "modernbert": MODERN_BERT}  # by model_type in config.json
