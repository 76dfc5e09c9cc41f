"""The encoder against `transformers`, and its laws. Small vocabularies and few layers: seconds."""

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from model.bert import BertEncoder, initialize
from model.config import BertConfig, preset
from model.heads import BertForPretraining, masked_lm_loss_sum, next_sentence_loss_sum
from tests.small_models import SMALL, VOCAB, gradients, inputs_of, narrow, numbers, shaken

os.environ["HF_HUB_OFFLINE"] = "1"

TINY = preset("tiny", **SMALL)
NANO = preset("nano", **SMALL)
# Norms after and before; positions from a table, from waves, and by turning.
KINDS = pytest.mark.parametrize("name", ["bert-tiny", "nano", "bert-pytorch-base", "modern-nano"])


def hugging_face_names(ours: dict[str, Tensor], config: BertConfig) -> dict[str, Tensor]:
    """Weights or gradients by our names -> by the names of `transformers`, unpadded."""
    theirs = {}
    for name, tensor in ours.items():
        parts = name.split(".")
        match parts:
            case ["encoder", "embeddings", "norm", kind]:
                theirs[f"bert.embeddings.LayerNorm.{kind}"] = tensor
            case ["encoder", "embeddings", "word_embeddings", _]:
                table = tensor[: config.vocab_size]
                theirs["bert.embeddings.word_embeddings.weight"] = table
                theirs["cls.predictions.decoder.weight"] = table
            case ["encoder", "embeddings", table_name, _]:
                theirs[f"bert.embeddings.{table_name}.weight"] = tensor
            case ["encoder", "layers", number, *rest, kind]:
                layer = f"bert.encoder.layer.{number}"
                if rest == ["attention", "qkv"]:
                    blocks = zip(("query", "key", "value"), tensor.chunk(3), strict=True)
                    for role, block in blocks:
                        theirs[f"{layer}.attention.self.{role}.{kind}"] = block
                else:
                    theirs[f"{layer}.{LAYER_NAMES['.'.join(rest)]}.{kind}"] = tensor
            case ["encoder", "pooler", kind]:
                theirs[f"bert.pooler.dense.{kind}"] = tensor
            case ["mlm_head", "bias"]:
                theirs["cls.predictions.bias"] = tensor
                theirs["cls.predictions.decoder.bias"] = tensor
            case ["mlm_head", "transform", part, kind]:
                part = {"dense": "dense", "norm": "LayerNorm"}[part]
                theirs[f"cls.predictions.transform.{part}.{kind}"] = tensor
            case ["nsp_head", kind]:
                theirs[f"cls.seq_relationship.{kind}"] = tensor
            case _:
                raise AssertionError(name)
    return theirs


LAYER_NAMES = {
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}


def reference(model: BertForPretraining):
    """The same weights in `transformers.BertForPreTraining`, with its plain eager attention."""
    import transformers

    config = model.config
    acts = {"gelu-tanh": "gelu_new"}
    keys = transformers.BertConfig().to_dict().keys() & config.to_dict().keys()
    hf_config = transformers.BertConfig(
        **{key: value for key, value in config.to_dict().items() if key in keys},
        attn_implementation="eager",
    )
    hf_config.hidden_act = acts.get(config.hidden_act, config.hidden_act)
    theirs = transformers.BertForPreTraining(hf_config).eval()
    theirs.load_state_dict(hugging_face_names(model.state_dict(), config))
    return theirs


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        *(
            pytest.param(narrow(f"bert-{size}"), id=size)
            for size in ("tiny", "mini", "small", "medium", "base", "large")
        ),
        pytest.param(replace(TINY, hidden_act="relu", type_vocab_size=3), id="relu"),
        pytest.param(replace(TINY, hidden_act="gelu-tanh"), id="gelu-tanh"),
    ],
)
def test_states_logits_losses_and_gradients_are_those_of_transformers(config):
    model, batch = shaken(config), inputs_of()
    theirs = reference(model)

    positions = torch.tensor([[3, 7, 11], [2, 5, 0], [1, 0, 0], [4, 6, 8]])
    weights = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]])
    labels = torch.randint(0, VOCAB, positions.shape, generator=numbers(3))
    nsp_labels = torch.tensor([0, 1, 0, 1])
    dense_labels = torch.full(batch["input_ids"].shape, -100)
    rows, slots = weights.nonzero(as_tuple=True)
    dense_labels[rows, positions[rows, slots]] = labels[rows, slots]

    expected = theirs(
        **batch, labels=dense_labels, next_sentence_label=nsp_labels, output_hidden_states=True
    )
    hidden, pooled = model.encoder(**batch)
    mlm_logits, nsp_logits = model(**batch, masked_lm_positions=positions)
    loss = masked_lm_loss_sum(mlm_logits, labels, weights) / weights.sum()
    loss = loss + next_sentence_loss_sum(nsp_logits, nsp_labels) / len(nsp_labels)

    assert_close(hidden, expected.hidden_states[-1])
    assert_close(pooled, theirs.bert(**batch).pooler_output)
    assert_close(nsp_logits, expected.seq_relationship_logits)
    their_logits = expected.prediction_logits[torch.arange(4)[:, None], positions]
    assert_close(mlm_logits[..., :VOCAB], their_logits)
    assert_close(loss, expected.loss)

    loss.backward()
    expected.loss.backward()
    ours = hugging_face_names(gradients(model), model.config)
    for name, parameter in theirs.named_parameters():
        assert_close(ours[name], parameter.grad)


@KINDS
def test_without_padding_no_mask_is_the_full_mask(name):
    model, batch = shaken(narrow(name)), inputs_of()
    full = torch.ones_like(batch["attention_mask"])
    ids, types = batch["input_ids"], batch["token_type_ids"]
    for masked, unmasked in zip(
        model.encoder(ids, types, full), model.encoder(ids, types, None), strict=True
    ):
        assert_close(masked, unmasked)


@KINDS
def test_every_token_sees_order_segment_and_both_sides(name):
    model, batch = shaken(narrow(name)), inputs_of(rows=1)
    ids, types = batch["input_ids"], batch["token_type_ids"]
    hidden = model.encoder(ids, types, None)[0]

    swapped = ids.clone()
    swapped[0, [3, 20]] = ids[0, [20, 3]]
    for changed in (model.encoder(swapped, types, None), model.encoder(ids, 1 - types, None)):
        difference = (changed[0] - hidden).abs().amax(-1)[0]
        assert (difference > 1e-4).all()


@KINDS
def test_a_sequence_beyond_the_positions_is_refused(name):
    encoder = BertEncoder(narrow(name))
    ids = torch.zeros(1, 33, dtype=torch.long)
    with pytest.raises(ValueError, match="33 tokens, but the model has 32 positions"):
        encoder(ids, ids, None)


def test_dropout_acts_in_training_only():
    model, batch = shaken(replace(TINY, hidden_dropout_prob=0.1)).eval(), inputs_of()
    assert torch.equal(model.encoder(**batch)[0], model.encoder(**batch)[0])
    model.train()
    assert not torch.equal(model.encoder(**batch)[0], model.encoder(**batch)[0])


def test_the_same_seed_gives_the_same_weights_whoever_drew_before():
    first = BertForPretraining(NANO, seed=5).state_dict()
    torch.rand(3)
    second = BertForPretraining(NANO, seed=5).state_dict()
    other = BertForPretraining(NANO, seed=6).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    drawn = [name for name in first if first[name].std() > 0 and "position" not in name]
    assert len(drawn) == 12  # two tables, four matrices in each of two layers, two heads
    assert not any(torch.equal(first[name], other[name]) for name in drawn)


def test_normal_weights_are_cut_at_two_standard_deviations():
    model = BertForPretraining(replace(TINY, initializer_range=0.1))
    matrix = model.encoder.layers[0].get_parameter("feed_forward.up.weight")
    assert 0.19 < matrix.abs().max().item() <= 0.2
    assert matrix.std().item() == pytest.approx(0.088, rel=0.02)  # 0.1 after the cut
    assert not model.encoder.layers[0].get_parameter("feed_forward.up.bias").any()


def test_xavier_treats_packed_queries_keys_and_values_as_three_matrices():
    config = replace(NANO, init="xavier", positions="learned")
    layer = BertForPretraining(config).encoder.layers[0]
    for block in layer.get_parameter("attention.qkv.weight").chunk(3):
        assert block.abs().max().item() == pytest.approx((6 / 512) ** 0.5, rel=1e-3)
    up = layer.get_parameter("feed_forward.up.weight")
    assert up.abs().max().item() == pytest.approx((6 / 1280) ** 0.5, rel=1e-3)


def test_what_ends_a_sublayer_starts_smaller_the_more_there_are():
    """By the root of 2 * layers: what they all add up to then has the size of one."""
    config = replace(TINY, init="normal-residual", num_hidden_layers=8)
    layer = BertForPretraining(config).encoder.layers[7]
    spread = {name: p.std().item() for name, p in layer.named_parameters() if p.dim() == 2}
    plain = 0.02 * 0.88  # after the cut
    assert spread == {
        "attention.qkv.weight": pytest.approx(plain, rel=0.02),
        "attention.output.weight": pytest.approx(plain / 4, rel=0.02),
        "feed_forward.up.weight": pytest.approx(plain, rel=0.02),
        "feed_forward.down.weight": pytest.approx(plain / 4, rel=0.02),
    }


def test_xavier_treats_a_gate_and_what_it_is_on_as_two_matrices():
    config = replace(NANO, init="xavier", positions="learned", gated=True)
    up = BertForPretraining(config).encoder.layers[0].get_parameter("feed_forward.up.weight")
    assert up.shape == (2048, 256)
    for block in up.chunk(2):
        assert block.abs().max().item() == pytest.approx((6 / 1280) ** 0.5, rel=1e-3)


def test_initialize_leaves_a_model_without_memory_alone():
    with torch.device("meta"):
        encoder = BertEncoder(NANO)
    initialize(encoder, NANO, seed=0)
    assert all(parameter.is_meta for parameter in encoder.parameters())
