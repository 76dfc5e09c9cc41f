"""The encoder against `transformers`, and its laws. Small vocabularies and few layers: seconds."""

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from model.bert import BertEncoder, initialize, sinusoids
from model.config import PRESETS, BertConfig, preset
from model.heads import BertForPretraining, masked_lm_loss_sum, next_sentence_loss_sum

os.environ["HF_HUB_OFFLINE"] = "1"

VOCAB = 100
TINY = preset("tiny", vocab_size=VOCAB, max_position_embeddings=32)
NANO = preset("nano", vocab_size=VOCAB, max_position_embeddings=32)


def numbers(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shaken(config: BertConfig) -> BertForPretraining:
    """A model in eval mode of which no weight is left at 0 or 1, where mistakes hide."""
    model, generator = BertForPretraining(config).eval(), numbers(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


def padded_batch(rows: int = 4, length: int = 24) -> dict[str, Tensor]:
    """Rows of 24, 19, 14 and 9 real tokens; the second half of each is sentence B."""
    generator = numbers(2)
    lengths = length - 5 * torch.arange(rows)[:, None]
    place = torch.arange(length)
    mask = place < lengths
    ids = torch.randint(1, VOCAB, (rows, length), generator=generator)
    return {
        "input_ids": ids * mask,
        "token_type_ids": ((place >= lengths // 2) & mask).long(),
        "attention_mask": mask,
    }


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
    keys = transformers.BertConfig().to_dict().keys() & config.to_dict().keys()
    hf_config = transformers.BertConfig(
        **{key: value for key, value in config.to_dict().items() if key in keys},
        attn_implementation="eager",
    )
    theirs = transformers.BertForPreTraining(hf_config).eval()
    theirs.load_state_dict(hugging_face_names(model.state_dict(), config))
    return theirs


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        *(pytest.param(PRESETS[name], id=name) for name in PRESETS if name.startswith("bert-")),
        pytest.param(replace(TINY, hidden_act="relu", type_vocab_size=3), id="relu"),
    ],
)
def test_states_logits_losses_and_gradients_are_those_of_transformers(config):
    config = replace(config, vocab_size=VOCAB, max_position_embeddings=32, num_hidden_layers=2)
    model, batch = shaken(config), padded_batch()
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
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    ours = hugging_face_names(gradients, config)
    for name, parameter in theirs.named_parameters():
        assert_close(ours[name], parameter.grad)


@pytest.mark.parametrize("config", [TINY, NANO], ids=["post", "pre"])
def test_more_padding_and_other_padding_change_nothing(config):
    model, batch = shaken(config), padded_batch()
    hidden, pooled = model.encoder(**batch)
    mask = batch["attention_mask"]

    other_ids = torch.where(mask, batch["input_ids"], 17)
    other_types = torch.where(mask, batch["token_type_ids"], 1)
    changed, changed_pooled = model.encoder(other_ids, other_types, mask)
    longer = {name: torch.nn.functional.pad(column, (0, 6)) for name, column in batch.items()}
    extended, extended_pooled = model.encoder(**longer)

    assert_close(changed[mask], hidden[mask])
    assert_close(changed_pooled, pooled)
    assert_close(extended[:, :24][mask], hidden[mask])
    assert_close(extended_pooled, pooled)


@pytest.mark.parametrize("config", [TINY, NANO], ids=["post", "pre"])
def test_without_padding_no_mask_is_the_full_mask(config):
    model, batch = shaken(config), padded_batch()
    full = torch.ones_like(batch["attention_mask"])
    ids, types = batch["input_ids"], batch["token_type_ids"]
    for masked, unmasked in zip(
        model.encoder(ids, types, full), model.encoder(ids, types, None), strict=True
    ):
        assert_close(masked, unmasked)


@pytest.mark.parametrize("config", [TINY, NANO], ids=["post", "pre"])
def test_every_token_sees_order_segment_and_both_sides(config):
    model, batch = shaken(config), padded_batch(rows=1)
    ids, types = batch["input_ids"], batch["token_type_ids"]
    hidden = model.encoder(ids, types, None)[0]

    swapped = ids.clone()
    swapped[0, [3, 20]] = ids[0, [20, 3]]
    for changed in (model.encoder(swapped, types, None), model.encoder(ids, 1 - types, None)):
        difference = (changed[0] - hidden).abs().amax(-1)[0]
        assert (difference > 1e-4).all()


def test_a_sequence_beyond_the_positions_is_refused():
    encoder = BertEncoder(TINY)
    ids = torch.zeros(1, 33, dtype=torch.long)
    with pytest.raises(ValueError, match="33 tokens, but the model has 32 positions"):
        encoder(ids, ids, None)


def test_dropout_acts_in_training_only():
    model, batch = shaken(TINY), padded_batch()
    assert torch.equal(model.encoder(**batch)[0], model.encoder(**batch)[0])
    model.train()
    assert not torch.equal(model.encoder(**batch)[0], model.encoder(**batch)[0])


def test_the_pre_norm_encoder_is_its_formula():
    """x + f(norm(x)), twice a layer, with one norm at the end: written out for one row."""
    config = replace(NANO, num_hidden_layers=1)
    encoder = shaken(config).encoder
    batch = padded_batch(rows=1)
    weights = dict(encoder.named_parameters())

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + config.layer_norm_eps).sqrt()
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def dense(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    x = weights["embeddings.word_embeddings.weight"][batch["input_ids"][0]]
    x = x + weights["embeddings.token_type_embeddings.weight"][batch["token_type_ids"][0]]
    x = norm(x + weights["embeddings.position_embeddings.weight"][:24], "embeddings.norm")
    qkv = dense(norm(x, "layers.0.attention_norm"), "layers.0.attention.qkv")
    query, key, value = qkv.split(256, dim=-1)
    heads = []
    for head in range(4):
        part = slice(64 * head, 64 * (head + 1))
        scores = query[:, part] @ key[:, part].T / 8
        heads.append(scores.softmax(-1) @ value[:, part])
    x = x + dense(torch.cat(heads, -1), "layers.0.attention.output")
    inner = dense(norm(x, "layers.0.feed_forward_norm"), "layers.0.feed_forward.up")
    inner = inner * (1 + torch.erf(inner / 2**0.5)) / 2
    x = norm(x + dense(inner, "layers.0.feed_forward.down"), "final_norm")

    hidden, pooled = encoder(**batch)
    assert_close(hidden[0], x)
    assert_close(pooled[0], x[0])


def test_sinusoids_are_those_of_the_paper():
    waves = sinusoids(50, 8)
    assert_close(waves[0], torch.tensor([0.0, 1, 0, 1, 0, 1, 0, 1]))
    for i in range(4):
        angle = torch.tensor(7 / 10_000 ** (2 * i / 8))
        assert_close(waves[7, 2 * i : 2 * i + 2], torch.stack([angle.sin(), angle.cos()]))


def test_positions_start_at_sinusoids_as_large_as_the_words():
    config = replace(NANO, positions="learned-from-sinusoids")
    table = BertForPretraining(config).encoder.embeddings.position_embeddings.weight
    assert_close(table, sinusoids(32, 256) * 0.02 * 2**0.5)
    assert table.square().mean().sqrt().item() == pytest.approx(0.02, rel=1e-4)


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


def test_initialize_leaves_a_model_without_memory_alone():
    with torch.device("meta"):
        encoder = BertEncoder(NANO)
    initialize(encoder, NANO, seed=0)
    assert all(parameter.is_meta for parameter in encoder.parameters())


def test_heads_that_start_from_neighbours_look_ahead_and_back_and_the_others_do_not():
    config = preset("nano", vocab_size=200)
    encoder = BertForPretraining(config, seed=0).encoder
    x = torch.nn.functional.layer_norm(encoder.embeddings.position_embeddings.weight, (256,))
    for layer in encoder.layers:
        query, key, _ = layer.attention.qkv(x).unflatten(-1, (3, 4, 64)).permute(1, 2, 0, 3)
        looked_at = (query @ key.transpose(-1, -2)).argmax(-1) - torch.arange(64)  # [N, S]
        hits = [(looked_at == offset).float().mean(1).tolist() for offset in (1, -1)]
        assert min(hits[0][0], hits[1][1]) > 0.9
        assert max(hits[0][1:] + hits[1][2:]) < 0.3
