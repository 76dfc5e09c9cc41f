"""The heads: masked positions only, padded vocabularies, losses, and parameter counts."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from clozeline.model.bert import BertEncoder
from clozeline.model.config import PRESETS, preset
from clozeline.model.cpu_kernels import LOGIT_ROWS
from clozeline.model.heads import (
    BertForClassification,
    BertForPretraining,
    Targets,
    count_parameters,
    load_encoder,
    masked_lm_loss_sum,
    mean_of_tokens,
    next_sentence_loss_sum,
    start_decoder_at_unigram,
)
from tests.support.small_models import (
    SMALL,
    VOCAB,
    answers,
    batch_of,
    gradients,
    inputs_of,
    loss_of,
    narrow,
    numbers,
    shaken,
)

BOTH = pytest.mark.parametrize("name", ["bert-tiny", "d2l"])


# Every variant of the masked-LM head: whose table it uses, and whether it has a transform.
FORMS = {
    "tied": preset("bert-tiny", **SMALL),
    "own": preset("d2l", **SMALL),
    "tied, bare": preset("nano", **SMALL),
    "own, bare": preset("nano", **SMALL, tie_word_embeddings=False),
    "tied, no bias": preset("bert-tiny", **SMALL, bias=False, head_bias=False),
}


@pytest.mark.parametrize("config", FORMS.values(), ids=FORMS)
def test_the_masked_only_head_gives_the_loss_and_gradients_of_the_dense_head(config):
    model = shaken(config)
    loss, _ = loss_of(model)
    loss.backward()
    sparse = gradients(model)

    model.zero_grad(set_to_none=True)
    batch, (labels, weights, _) = batch_of(), answers()
    everywhere = torch.arange(24).expand(4, -1)
    logits, _ = model(**batch | {"masked_lm_positions": everywhere})
    dense_labels = torch.full((4, 24), -100)
    rows, slots = weights.nonzero(as_tuple=True)
    dense_labels[rows, batch["masked_lm_positions"][rows, slots]] = labels[rows, slots]
    dense_loss = F.cross_entropy(logits.flatten(0, 1), dense_labels.flatten())
    dense_loss.backward()

    torch.testing.assert_close(loss, dense_loss, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(sparse, gradients(model), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"head_bias": False}], ids=["bias", "no bias"])
@BOTH
def test_padding_of_the_vocabulary_has_probability_0_and_stays_0(name, changes):
    """Also in half precision; its rows in the tables are 0 before and after an update."""
    model = BertForPretraining(preset(name, **SMALL, **changes))
    tables = [model.encoder.embeddings.word_embeddings, model.mlm_head.decoder]
    tables = [table.weight for table in tables if table is not None]
    assert all(table[:VOCAB].any(dim=1).all() for table in tables)
    assert not any(table[VOCAB:].any() for table in tables)
    for is_half in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            logits, _ = model(**batch_of())
        assert (logits.shape, logits.dtype == torch.bfloat16) == ((4, 3, 128), is_half)
        assert torch.isneginf(logits[..., VOCAB:]).all()
        assert logits[..., :VOCAB].isfinite().all()
        assert not logits.softmax(-1)[..., VOCAB:].any()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    sum(loss_of(model)).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    optimizer.step()
    assert not any(table[VOCAB:].any() for table in tables)


@pytest.mark.parametrize("rows", [1, LOGIT_ROWS, 2 * LOGIT_ROWS + 5])
def test_the_loss_and_its_gradient_are_those_of_torch_for_any_number_of_rows(rows):
    """A sum over tokens with weight 1."""
    logits = 3 * torch.randn(1, rows, 50, generator=numbers(0))
    logits[..., 48:] = float("-inf")  # the padding of the vocabulary
    labels = torch.randint(0, 48, (1, rows), generator=numbers(1))
    logits[0, 0, labels[0, 0]] = 30.0  # one with probability near 1
    weights = (torch.arange(rows) % 3 != 1).float()[None]

    found, wanted = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    unused = torch.tensor([10**6, -5])[torch.arange(rows) % 2]  # may be anything
    loss = masked_lm_loss_sum(found, labels.where(weights > 0, unused), weights)
    reference = F.cross_entropy(wanted[weights > 0], labels[weights > 0], reduction="sum")
    torch.testing.assert_close(loss, reference)
    (loss / 7).backward()
    (reference / 7).backward()
    torch.testing.assert_close(found.grad, wanted.grad, atol=1e-8, rtol=1e-5)


def test_the_gradient_of_logits_in_half_precision_is_rounded_once():
    logits = (3 * torch.randn(1, 20, 50, generator=numbers(0))).bfloat16()
    labels, weights = torch.randint(0, 50, (1, 20), generator=numbers(1)), torch.ones(1, 20)
    half, exact = logits.clone().requires_grad_(), logits.float().requires_grad_()
    (masked_lm_loss_sum(half, labels, weights) / 7).backward()
    (masked_lm_loss_sum(exact, labels, weights) / 7).backward()
    assert half.grad.dtype == torch.bfloat16
    torch.testing.assert_close(half.grad.float(), exact.grad, atol=0, rtol=2**-8)


@pytest.mark.parametrize("name", ["bert-tiny", "nano"])
def test_with_targets_a_model_returns_its_losses_and_hits(name):
    """Those of its logits, with the same gradients."""
    config = preset(name, **SMALL)
    plain, whole = shaken(config), shaken(config)
    labels, weights, follows = answers()
    words, pairs = plain(**batch_of())
    labels = torch.where(torch.arange(3) == 0, words.argmax(-1), labels)  # some are right
    mlm = masked_lm_loss_sum(words, labels, weights)
    nsp = next_sentence_loss_sum(pairs, follows)
    (mlm / 3 + nsp).backward()
    targets = Targets(labels, weights, follows)
    losses, hits = whole(**batch_of(), targets=targets, count_hits=True)
    (losses[0] / 3 + losses[1]).backward()
    assert losses.tolist() == [mlm.item(), nsp.item()]
    is_right = (words.argmax(-1) == labels) * weights
    assert hits.tolist() == [is_right.sum(), (pairs.argmax(-1) == follows).sum()]
    assert hits[0] >= 4
    torch.testing.assert_close(gradients(whole), gradients(plain), atol=0, rtol=0)
    assert whole(**batch_of(), targets=targets)[1].tolist() == [0, 0]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_no_float32_copy_of_the_logits_is_kept_for_the_backward_pass(device):
    """On meta tensors, whose path is that of a GPU, without their values."""
    with torch.device(device):
        model = BertForPretraining(preset("bert-tiny", **SMALL)).bfloat16()
    inputs = {key: value.to(device) for key, value in batch_of().items()}
    targets = Targets(*(value.to(device) for value in answers()))
    kept = []
    keep = torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x)
    with keep:
        losses, _ = model(**inputs, targets=targets, count_hits=True)
    losses.sum().backward()
    floats = [x for x in kept if x.is_floating_point()]
    of_logits = [x for x in floats if x.numel() == 4 * 3 * 128 and x.shape[-1] == 128]
    assert {x.dtype for x in of_logits} == {torch.bfloat16}
    assert {p.grad.device.type for p in model.parameters()} == {device}


def test_a_new_model_started_at_the_unigram_has_its_cross_entropy():
    counts = torch.randint(0, 1000, (VOCAB,), generator=numbers(4))
    frequencies = (counts + 1) / (counts + 1).sum()
    model = BertForPretraining(preset("tiny", **SMALL))
    start_decoder_at_unigram(model, frequencies.log())
    bias = model.mlm_head.bias
    torch.testing.assert_close(bias.exp(), frequencies)

    logits, _ = model(**batch_of())
    probabilities = logits.softmax(-1)[..., :VOCAB].mean((0, 1))
    entropy = -(frequencies * frequencies.log()).sum()
    cross_entropy = -(frequencies * probabilities.log()).sum()
    assert abs(cross_entropy - entropy) < 0.05 < torch.tensor(VOCAB).log() - entropy


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("name", ["bert-tiny", "d2l", "modern-nano"])
def test_a_classifier_loads_the_encoder_and_the_transform_and_nothing_else(name, pooling):
    """Of ModernBERT the transform of the masked-LM head; with mean pooling no pooler."""
    config, inputs = narrow(name), inputs_of()
    pretrained = shaken(config)
    model = BertForClassification(config, num_labels=3, pooling=pooling, seed=7)
    fresh = {key: value.clone() for key, value in model.classifier.state_dict().items()}
    load_encoder(model, pretrained.state_dict())
    hidden, pooled = pretrained.encoder(**inputs)
    if pooling == "mean":
        pooled = mean_of_tokens(hidden, inputs["attention_mask"])
        assert not any("pooler" in key for key in model.state_dict())
    if config.classifier_transform:
        pooled = pretrained.mlm_head.transform(pooled)
    torch.testing.assert_close(model(**inputs), pooled @ fresh["weight"].T + fresh["bias"])
    assert BertForClassification(model.config, 3, pooling=pooling).config == model.config


def test_a_new_classifier_has_the_encoder_of_a_new_pretraining_model():
    config = preset("nano", **SMALL)
    pretraining, classifier = BertForPretraining(config), BertForClassification(config, 2)
    first, second = pretraining.encoder.state_dict(), classifier.encoder.state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)  # the same seed


def test_the_mean_is_over_real_tokens_only():
    hidden = torch.tensor([[[1.0], [2.0], [6.0]], [[4.0], [9.0], [9.0]]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert mean_of_tokens(hidden, mask).tolist() == [[3.0], [4.0]]
    assert mean_of_tokens(3 * hidden, None).tolist() == [[9.0], [22.0]]
    assert mean_of_tokens(hidden.bfloat16(), mask).dtype == torch.float32


def test_an_encoder_of_another_shape_is_refused_by_name():
    pretrained = BertForPretraining(preset("nano", **SMALL)).state_dict()
    larger = BertForClassification(preset("nano", **SMALL | {"num_hidden_layers": 3}), 2)
    with pytest.raises(ValueError, match=r"does not fit this model(.|\n)*layers\.2\.attention"):
        load_encoder(larger, pretrained)
    with pytest.raises(ValueError, match="num_labels is 0"):
        BertForClassification(preset("nano", **SMALL), 0)
    with pytest.raises(ValueError, match="pooling is 'max'; known: mean, cls"):
        BertForClassification(preset("nano", **SMALL), 2, pooling="max")


@pytest.mark.parametrize(
    ("name", "encoder", "whole"),
    [
        ("bert-tiny", 4_385_920, 4_433_468),
        ("bert-mini", 11_170_560, 11_267_900),
        ("bert-small", 28_763_648, 29_058_876),
        ("bert-medium", 41_373_184, 41_668_412),
        ("bert-base", 109_482_240, 110_106_428),
        ("bert-large", 335_141_888, 336_226_108),
        ("nano", 9_411_072, 9_442_108),
        ("micro", 10_990_592, 11_021_628),  # two more layers of 789,760
        # Embeddings 30,522 + 1000 + 2 rows of 128; a layer is attention 4 * 128 * 129, feed-forward
        # 256 * 129 + 128 * 257, norms 4 * 128: 132,480; two of them, and a pooler of 128 * 129.
        # Then a transform of 128 * 129 + 256, a decoder of 129 * 30,522, and 2 * 129 for pairs.
        ("d2l", 4_316_544, 8_270_908),
        # Of H hidden and F feed-forward: embeddings of 30,522 rows and a norm of H; a layer is
        # 4 H H + 3 H F + 2 H, the first one H less; then a norm of H. The heads: a transform of
        # H H + H, a bias for 30,522 tokens, and 2 H + 2 for pairs.
        ("modern-nano", 17_389_760, 17_523_644),  # F 896, six layers of 1,270,400
        ("modern-mini", 11_027_200, 11_124_028),  # F 704, four layers of 803,328
        ("modern-small", 28_476_928, 28_771_132),  # F 1408, four layers of 3,212,288
        ("modern-medium", 54_175_232, 54_469_436),  # twelve of these layers
        ("modern-base", 133_772_544, 134_395_196),  # F 1152, 22 layers of 5,015,040
    ],
)
def test_parameter_counts_are_the_published_ones(name, encoder, whole):
    with torch.device("meta"):
        assert count_parameters(BertEncoder(preset(name))) == encoder
        assert count_parameters(BertForPretraining(preset(name))) == whole
    assert count_parameters(preset(name)) == whole


@pytest.mark.parametrize(("name", "encoder"), [("base", 108_096_768), ("large", 333_032_448)])
def test_the_encoders_of_bert_pytorch_add_up(name, encoder):
    """With a vocabulary of 30,000, as published, without positions and heads."""
    with torch.device("meta"):
        found = BertEncoder(preset(f"bert-pytorch-{name}", vocab_size=30_000))
    assert count_parameters(found) == encoder


def test_the_notebook_adds_up():
    """nano with a decoder of its own, without its added norms and biases, is the notebook's."""
    bare = preset("nano", embedding_norm=False, final_norm=False, head_bias=False)
    bare = replace(bare, type_vocab_size=3, tie_word_embeddings=False)
    assert count_parameters(bare) == 17_224_448
    sizes = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
    large = replace(bare, num_hidden_layers=24, max_position_embeddings=512, **sizes)
    assert count_parameters(large) == 365_347_840


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.*:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_compiles_to_one_graph_with_the_same_loss_and_gradients(name):
    torch.compiler.reset()  # it stops recompiling a function after eight models
    model = shaken(narrow(name))
    sum(loss_of(model)).backward()
    eager = gradients(model)
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    sum(loss_of(compiled)).backward()
    torch.testing.assert_close(gradients(model), eager, atol=1e-5, rtol=1e-4)


EMBEDDINGS = "encoder.embeddings.word_embeddings", "encoder.embeddings.token_type_embeddings"
TRANSFORM = "mlm_head.transform.dense", "mlm_head.transform.norm"
LAYERS = [
    f"encoder.layers.{i}.{part}"
    for i in range(2)
    for part in (
        *("attention.qkv", "attention.output", "attention_norm"),
        *("feed_forward.up", "feed_forward.down", "feed_forward_norm"),
    )
]


def weights_of(*modules):
    return [f"{module}.weight" for module in modules]


def both_of(*modules):
    return [f"{module}.{kind}" for module in modules for kind in ("weight", "bias")]


#: Computed positions have no weights.
NAMES = {
    "bert-tiny": [
        *weights_of(EMBEDDINGS[0], "encoder.embeddings.position_embeddings", EMBEDDINGS[1]),
        *both_of("encoder.embeddings.norm", *LAYERS, "encoder.pooler"),
        *("mlm_head.bias", *both_of(*TRANSFORM, "nsp_head")),
    ],
    "modern-nano": [
        *weights_of(EMBEDDINGS[0], "encoder.embeddings.norm"),
        *weights_of(*(x for x in LAYERS if x != "encoder.layers.0.attention_norm")),
        *("encoder.final_norm.weight", "mlm_head.bias"),
        *(*weights_of(*TRANSFORM), *both_of("nsp_head")),
    ],
    "bert-pytorch-base": [
        *(*weights_of(*EMBEDDINGS), *both_of(*LAYERS)),
        *("mlm_head.bias", "mlm_head.decoder.weight", *both_of("nsp_head")),
    ],
}


@pytest.mark.parametrize("name", NAMES)
def test_the_names_of_the_weights_do_not_change(name):
    """They are the keys of every checkpoint."""
    assert list(BertForPretraining(narrow(name)).state_dict()) == NAMES[name]
