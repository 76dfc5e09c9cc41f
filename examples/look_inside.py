"""A pair of sentences on its way through a model, and one word in several contexts.

python examples/look_inside.py work/run "The lid of my kettle is [MASK]." "It falls apart."
    --picture attention.png --word lid "The lid is red." "A lid for my kettle."
"""

import argparse

import torch
from torch import Tensor, nn

from clozeline import BertForPretraining, load_pretrained
from clozeline.model.positions import rotate


class Inside:
    """A run's model and tokenizer; keeps what each layer computes of the last pair.

    states     one [S, H] for the embeddings and for each layer
    attention  one [N, S, S] for each layer: how much each token (row) takes from each other one
    """

    def __init__(self, run: str) -> None:
        pretrained = load_pretrained(run)
        self.model, self.tokenizer = BertForPretraining(pretrained.model), pretrained.tokenizer
        self.model.load_state_dict(pretrained.weights)
        self.model.eval()
        self.states: list[Tensor] = []
        self.attention: list[Tensor] = []
        self.model.encoder.embeddings.register_forward_hook(self._keep)
        for layer in self.model.encoder.layers:
            layer.register_forward_hook(self._keep)
            layer.attention.register_forward_pre_hook(self._weigh)

    def _keep(self, module: nn.Module, given: tuple, state: Tensor) -> None:
        self.states.append(state[0])

    def _weigh(self, module: nn.Module, given: tuple) -> None:
        """softmax(Q K^T / sqrt(D)), of what the attention of a layer is given."""
        state, _, rotation, _ = given
        qkv = module.qkv(state).unflatten(-1, (3, module.heads, -1))  # [1, S, 3, N, D]
        qkv = qkv if rotation is None else rotate(qkv, rotation)
        query, key, _ = qkv[0].permute(1, 2, 0, 3)  # each [N, S, D]
        scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
        self.attention.append(scores.softmax(-1))

    def ids_of(self, text: str) -> list[int]:
        """The ids of a text, in which the user's [MASK] is the token."""
        parts = [self.tokenizer.encode(part)[1:-1] for part in text.split("[MASK]")]
        return [*parts[0], *(i for part in parts[1:] for i in (self.tokenizer.mask_id, *part))]

    @torch.no_grad()
    def read(self, text: str, second: str = "") -> tuple[Tensor, Tensor, Tensor]:
        """Ids and segments of the pair, [S], and its encoder's last states [S, H]."""
        a, b = self.ids_of(text), self.ids_of(second)
        cls, sep = self.tokenizer.cls_id, self.tokenizer.sep_id
        ids = torch.tensor([[cls, *a, sep, *b, *([sep] if b else [])]])
        segments = (torch.arange(ids.shape[1]) >= len(a) + 2).long()[None]
        self.states, self.attention = [], []
        hidden, _ = self.model.encoder(ids, segments, None)
        return ids[0], segments[0], hidden[0]

    def tokens(self, ids: Tensor) -> list[str]:
        return [self.tokenizer.tokens[number] for number in ids.tolist()]

    @torch.no_grad()
    def heads(self, ids: Tensor, segments: Tensor) -> tuple[list[str], float]:
        """The five likeliest words for each mask, as text, and how likely B is a random one."""
        masks = (ids == self.tokenizer.mask_id).nonzero().T
        words, order = self.model(ids[None], segments[None], None, masks)
        best = words[0].softmax(-1).topk(5)
        lines = [
            "  ".join(f"{self.tokenizer.tokens[i]} {p:.1%}" for p, i in zip(*row, strict=True))
            for row in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
        return lines, order.softmax(-1)[0, 1].item()


def walk(inside: Inside, text: str, second: str) -> None:
    """Print what becomes of the pair, step by step."""
    ids, segments, hidden = inside.read(text, second)
    tokens = inside.tokens(ids)
    print("tokens    ", *tokens)
    print("ids       ", *ids.tolist())
    print("segments  ", *segments.tolist())
    vector = ", ".join(f"{value:.2f}" for value in inside.states[0][1, :4].tolist())
    print(f'embedding  "{tokens[1]}": {vector}, ...: {hidden.shape[1]} numbers a token')
    for place in (ids == inside.tokenizer.mask_id).nonzero().flatten().tolist():
        for number, heads in enumerate(inside.attention, start=1):
            weights = heads[:, place].mean(0).topk(3)
            shown = zip(weights.values.tolist(), weights.indices.tolist(), strict=True)
            print(f"layer {number}    [MASK] takes", *(f"{p:.0%} of {tokens[i]}" for p, i in shown))
    words, is_random = inside.heads(ids, segments)
    for line in words:
        print("words     ", line)
    if second:
        print(f"order      the second sentence is a random one: {is_random:.1%}")


def compare(inside: Inside, word: str, contexts: list[str]) -> None:
    """Print how alike the word's vectors are in two contexts: cosines, by layer."""
    [number] = inside.ids_of(word)
    layers = []
    for context in contexts:
        place = inside.read(context)[0].tolist().index(number)
        layers.append([state[place] for state in inside.states])
    for other, vectors in zip(contexts[1:], layers[1:], strict=True):
        cosines = [
            torch.cosine_similarity(a, b, 0) for a, b in zip(layers[0], vectors, strict=True)
        ]
        print(f'"{word}" in "{contexts[0]}" and "{other}":', *(f"{c:.2f}" for c in cosines))


def draw(inside: Inside, text: str, second: str, picture: str) -> None:
    """Draw the attention of each layer, averaged over its heads."""
    import matplotlib.pyplot as plt

    tokens = inside.tokens(inside.read(text, second)[0])
    figure, axes = plt.subplots(
        1, len(inside.attention), figsize=(4.6 * len(inside.attention), 4.4), squeeze=False
    )
    for number, (axis, heads) in enumerate(zip(axes[0], inside.attention, strict=True), start=1):
        axis.imshow(heads.mean(0).numpy(), cmap="Blues")
        axis.set_xticks(range(len(tokens)), tokens, rotation=90)
        axis.set_yticks(range(len(tokens)), tokens)
        axis.set_title(f"layer {number}: a row takes from the columns")
    figure.tight_layout()
    figure.savefig(picture, dpi=100)


def main() -> None:
    """Parse the arguments, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="of pretrain, or a Hugging Face folder")
    parser.add_argument("text")
    parser.add_argument("second", nargs="?", default="")
    parser.add_argument("--picture", help="draw the attention into this file")
    parser.add_argument("--word", nargs="+", metavar=("WORD", "CONTEXT"), default=())
    given = parser.parse_args()
    inside = Inside(given.run)
    walk(inside, given.text, given.second)
    if given.word:
        compare(inside, given.word[0], given.word[1:])
    if given.picture:
        draw(inside, given.text, given.second, given.picture)


if __name__ == "__main__":
    main()
