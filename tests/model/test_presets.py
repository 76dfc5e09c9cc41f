"""Each preset against a reference of its model, written out in plain algebra.

The references do not import `model/`: they read a state dict in float64 and one row without its
padding, and return hidden states [n, H], the pooled state [H], logits of the tokens [n, V] and of
(follows, is random) [2]. The reference of `bert-*` is `transformers`, in test_huggingface.py.
"""

import cmath
import math

import pytest
import torch

from clozeline.model.attention import Packing
from clozeline.model.config import PRESETS
from clozeline.model.heads import masked_lm_loss_sum, next_sentence_loss_sum
from tests.support.small_models import (
    VOCAB,
    answers,
    batch_of,
    gradients,
    inputs_of,
    narrow,
    packed,
    shaken,
)


def normalized(x, eps):
    centred = x - x.sum(1, keepdim=True) / x.shape[1]
    return centred / (centred.pow(2).sum(1, keepdim=True) / x.shape[1] + eps) ** 0.5


def attended(query, key, value, heads, window=None):
    """Attention over a row [n, H], head by head; `window` tokens on either side, None: all."""
    size, row = query.shape[1] // heads, range(len(query))
    outputs = []
    for head in range(heads):
        part = slice(head * size, head * size + size)
        scores = torch.exp(query[:, part] @ key[:, part].T / math.sqrt(size))
        if window is not None:
            scores = scores * torch.tensor([[abs(i - j) <= window for j in row] for i in row])
        outputs.append(scores / scores.sum(1, keepdim=True) @ value[:, part])
    return torch.cat(outputs, 1)


def of_weights(w, eps, *, has_biases=True):
    """Norms and products with the weights and the bias of a name."""

    def bias(name):
        return w[f"{name}.bias"] if has_biases or name == "nsp_head" else 0

    def norm(x, name):
        return normalized(x, eps) * w[f"{name}.weight"] + bias(name)

    def dense(x, name):
        return x @ w[f"{name}.weight"].T + bias(name)

    return norm, dense


def embedded(w, ids, types):
    """Sums of word, segment and learned position embeddings."""
    x = w["encoder.embeddings.word_embeddings.weight"][ids]
    x = x + w["encoder.embeddings.token_type_embeddings.weight"][types]
    return x + w["encoder.embeddings.position_embeddings.weight"][: len(ids)]


def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def nano(w, ids, types):
    """Learned positions; norms after the embeddings, before each sublayer, at the end; 4 heads."""
    norm, dense = of_weights(w, 1e-12)
    x = norm(embedded(w, ids, types), "encoder.embeddings.norm")
    for layer in ("encoder.layers.0", "encoder.layers.1"):
        qkv = dense(norm(x, f"{layer}.attention_norm"), f"{layer}.attention.qkv")
        x = x + dense(attended(*qkv.chunk(3, 1), heads=4), f"{layer}.attention.output")
        inner = dense(norm(x, f"{layer}.feed_forward_norm"), f"{layer}.feed_forward.up")
        x = x + dense(gelu(inner), f"{layer}.feed_forward.down")
    x = norm(x, "encoder.final_norm")
    words = x @ w["encoder.embeddings.word_embeddings.weight"][:VOCAB].T + w["mlm_head.bias"]
    return x, x[0], words, dense(x[0], "nsp_head")


def bert_pytorch(w, ids, types, *, heads):
    """Fixed sinusoids, segments 1 and 2, norms only before sublayers."""
    norm, dense = of_weights(w, 1e-6)
    start = "encoder.embeddings"
    x = w[f"{start}.word_embeddings.weight"][ids]
    x = x + w[f"{start}.token_type_embeddings.weight"][types + 1]
    hidden = x.shape[1]
    for position in range(len(ids)):
        for i in range(0, hidden, 2):
            angle = position / 10_000 ** (i / hidden)
            x[position, i] += 0.02 * math.sqrt(2) * math.sin(angle)
            x[position, i + 1] += 0.02 * math.sqrt(2) * math.cos(angle)
    for layer in ("encoder.layers.0", "encoder.layers.1"):
        qkv = dense(norm(x, f"{layer}.attention_norm"), f"{layer}.attention.qkv")
        x = x + dense(attended(*qkv.chunk(3, 1), heads=heads), f"{layer}.attention.output")
        inner = dense(norm(x, f"{layer}.feed_forward_norm"), f"{layer}.feed_forward.up")
        cubed = math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)
        x = x + dense(inner / 2 * (1 + torch.tanh(cubed)), f"{layer}.feed_forward.down")
    words = x @ w["mlm_head.decoder.weight"][:VOCAB].T + w["mlm_head.bias"]
    return x, x[0], words, dense(x[0], "nsp_head")


def d2l(w, ids, types):
    """Post-norm, ReLU, MLM head with ReLU and norm, NSP head with tanh; 2 attention heads."""
    norm, dense = of_weights(w, 1e-5)
    x = embedded(w, ids, types)
    for layer in ("encoder.layers.0", "encoder.layers.1"):
        outputs = attended(*dense(x, f"{layer}.attention.qkv").chunk(3, 1), heads=2)
        x = norm(x + dense(outputs, f"{layer}.attention.output"), f"{layer}.attention_norm")
        inner = dense(x, f"{layer}.feed_forward.up").clamp(min=0)
        x = norm(x + dense(inner, f"{layer}.feed_forward.down"), f"{layer}.feed_forward_norm")
    words = dense(x, "mlm_head.transform.dense").clamp(min=0)
    words = norm(words, "mlm_head.transform.norm")
    words = words @ w["mlm_head.decoder.weight"][:VOCAB].T + w["mlm_head.bias"]
    pooled = torch.tanh(dense(x[0], "encoder.pooler"))
    return x, pooled, words, dense(pooled, "nsp_head")


def modern(w, ids, types, *, heads):
    """ModernBERT: no segments and no biases, gated GELU; layer 0 is global, layer 1 is local.

    Queries and keys are rotated as complex numbers.
    """
    norm, dense = of_weights(w, 1e-5, has_biases=False)

    def rotated(x, base):
        size = x.shape[1] // heads
        x = x.clone()
        for head in range(0, x.shape[1], size):
            for i in range(size // 2):
                left, right = head + i, head + i + size // 2
                frequency = base ** (-2 * i / size)
                rotations = [cmath.exp(1j * position * frequency) for position in range(len(x))]
                pair = torch.complex(x[:, left], x[:, right])
                pair = pair * torch.tensor(rotations, dtype=torch.complex128)
                x[:, left], x[:, right] = pair.real, pair.imag
        return x

    table = w["encoder.embeddings.word_embeddings.weight"]
    x = norm(table[ids], "encoder.embeddings.norm")
    for layer, base, window in (("encoder.layers.0", 1e4, None), ("encoder.layers.1", 100, 4)):
        before = norm(x, f"{layer}.attention_norm") if layer.endswith("1") else x
        query, key, value = dense(before, f"{layer}.attention.qkv").chunk(3, 1)
        outputs = attended(rotated(query, base), rotated(key, base), value, heads, window)
        x = x + dense(outputs, f"{layer}.attention.output")
        inner = dense(norm(x, f"{layer}.feed_forward_norm"), f"{layer}.feed_forward.up")
        width = inner.shape[1] // 2
        inner = gelu(inner[:, :width]) * inner[:, width:]
        x = x + dense(inner, f"{layer}.feed_forward.down")
    x = norm(x, "encoder.final_norm")
    words = norm(gelu(dense(x, "mlm_head.transform.dense")), "mlm_head.transform.norm")
    return x, x[0], words @ table[:VOCAB].T + w["mlm_head.bias"], dense(x[0], "nsp_head")


REFERENCES = {
    "nano": (nano, {}),
    "micro": (nano, {}),
    "bert-pytorch-base": (bert_pytorch, {"heads": 12}),
    "bert-pytorch-large": (bert_pytorch, {"heads": 16}),
    "d2l": (d2l, {}),
    "modern-nano": (modern, {"heads": 5}),
    "modern-mini": (modern, {"heads": 4}),
    "modern-small": (modern, {"heads": 8}),
    "modern-medium": (modern, {"heads": 8}),
    "modern-base": (modern, {"heads": 12}),
}
OF_GOOGLE = {f"bert-{size}" for size in ("tiny", "mini", "small", "medium", "base", "large")}


def test_every_preset_has_a_reference():
    assert set(PRESETS) == {*REFERENCES, *OF_GOOGLE}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_preset_equals_its_reference(name):
    reference, options = REFERENCES[name]
    model, batch = shaken(narrow(name)), inputs_of()
    everywhere = torch.arange(24).expand(4, -1)
    with torch.no_grad():
        hidden, pooled = model.encoder(**batch)
        words, pairs = model(**batch, masked_lm_positions=everywhere)
    weights = {key: value.double() for key, value in model.state_dict().items()}
    for row, length in enumerate((24, 19, 14, 9)):
        ids, types = batch["input_ids"][row, :length], batch["token_type_ids"][row, :length]
        wanted = reference(weights, ids, types, **options)
        found = (hidden[row, :length], pooled[row], words[row, :length, :VOCAB], pairs[row])
        for output, reference_output in zip(found, wanted, strict=True):
            torch.testing.assert_close(output.double(), reference_output, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", PRESETS)
def test_every_weight_has_a_gradient_and_unpadded_rows_give_the_same(name):
    padded, unpadded = shaken(narrow(name)), shaken(narrow(name))
    batch, (labels, weights, follows) = batch_of(), answers()
    words, pairs = padded(**batch)
    packed_words, packed_pairs = unpadded(**packed(batch, weights))
    torch.testing.assert_close(packed_words, words[weights > 0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed_pairs, pairs, atol=1e-5, rtol=1e-5)

    (masked_lm_loss_sum(words, labels, weights) + next_sentence_loss_sum(pairs, follows)).backward()
    used = weights > 0
    loss = masked_lm_loss_sum(packed_words, labels[used], weights[used])
    (loss + next_sentence_loss_sum(packed_pairs, follows)).backward()
    found = gradients(padded)
    torch.testing.assert_close(gradients(unpadded), found, atol=1e-5, rtol=1e-4)
    assert set(found) == {key for key, _ in padded.named_parameters()}
    assert all(gradient.isfinite().all() and gradient.any() for gradient in found.values())


def test_padding_segments_are_0_and_a_and_b_are_1_and_2():
    config, batch = narrow("bert-pytorch-base"), inputs_of()
    embeddings = shaken(config).encoder.embeddings
    with torch.no_grad():
        embeddings.token_type_embeddings.weight.copy_(torch.eye(3, 192) * 100)
    ids, types, mask = batch.values()
    wanted = torch.where(mask, types + 1, 0)
    assert torch.equal(embeddings(ids, types, mask)[..., :3].argmax(-1), wanted)
    assert torch.equal(embeddings(ids, types, None)[..., :3].argmax(-1), types + 1)
    rows = Packing(mask.nonzero()[:, 1], torch.tensor([0, 24, 43, 57, 66]).int(), 24)
    assert torch.equal(embeddings(ids[mask], types[mask], rows)[:, :3].argmax(-1), wanted[mask])
