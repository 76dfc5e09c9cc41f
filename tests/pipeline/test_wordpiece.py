"""A WordPiece vocabulary follows from the counts of words alone."""

import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from tokenizers.normalizers import BertNormalizer

from clozeline.pipeline.tokenization.learn import MIN_COUNT, count_words, learn_wordpiece
from tests.pipeline.test_encoder import HOSTILE
from tests.support.files import contents
from tests.support.small_jobs import articles, write_texts

WORDS = st.dictionaries(st.text("ab", min_size=1, max_size=7), st.integers(1, 9), max_size=12)


def test_the_most_frequent_pair_is_merged_first():
    words = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}
    learned = learn_wordpiece(words, vocab_size=100, alphabet=9)
    assert learned[:5] == ["b", "g", "h", "n", "p"]
    assert learned[5:11] == ["s", "u", "##g", "##n", "##s", "##u"]
    assert learned[11:] == ["##ug", "##un", "hug", "pun", "pug", "hugs", "bun"]
    assert learn_wordpiece(words, vocab_size=13, alphabet=9) == learned[:13]
    assert learn_wordpiece(words, vocab_size=5, alphabet=9) == learned[:11]


def test_words_with_rare_characters_teach_nothing():
    words = {"aab": 5, "aaé": 4}
    assert learn_wordpiece(words, vocab_size=9, alphabet=2) == ["a", "b", "##a", "##b", "aa", "aab"]


def merged_slowly(words, vocab_size):
    """The same by counting all pairs again after each merge."""
    texts = [([word[0], *(f"##{c}" for c in word[1:])], n) for word, n in words.items()]
    characters = sorted({c for word in words for c in word})
    tokens = characters + sorted({f"##{c}" for word in words for c in word[1:]})
    while len(tokens) < vocab_size:
        counts = Counter()
        for text, number in texts:
            for pair in pairwise(text):
                counts[pair] += number
        order = {token: i for i, token in enumerate(tokens)}
        ranked = sorted((-n, order[a], order[b], a, b) for (a, b), n in counts.items())
        if not ranked or -ranked[0][0] < MIN_COUNT:
            return tokens
        left, right = ranked[0][3:]
        merged = left + right.removeprefix("##")
        for text, _ in texts:
            at = 0
            while at < len(text) - 1:
                if (text[at], text[at + 1]) == (left, right):
                    text[at : at + 2] = [merged]
                at += 1
        if merged not in tokens:
            tokens.append(merged)
    return tokens


@given(words=WORDS, more=st.integers(0, 40), order=st.randoms())
def test_merges_are_those_of_counting_anew_in_any_order_of_words(words, more, order):
    shuffled = list(words.items())
    order.shuffle(shuffled)
    size = 4 + more
    found = learn_wordpiece(dict(shuffled), vocab_size=size, alphabet=9)
    assert found == merged_slowly(words, size)


@given(
    texts=st.lists(st.lists(st.sampled_from([*HOSTILE, " ", " "])).map("".join), max_size=9),
    lowercase=st.booleans(),
)
def test_words_are_those_of_the_library(texts, lowercase):
    normalizer = BertNormalizer(lowercase=lowercase)
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    expected = Counter(word for text in texts for word, _ in split(normalizer.normalize_str(text)))
    assert count_words([texts], normalizer) == expected


#: Makes a folder with each model.
BOTH = """
import sys
from clozeline.train.cli import main
for model in ("wordpiece", "bpe"):
    main([*sys.argv[2:], "--model", model, "--out", sys.argv[1] + model], standalone_mode=False)
"""


def test_two_processes_write_the_same_folders(tmp_path):
    """With other hash seeds, threads and orders of the sources."""
    write_texts(tmp_path / "a.jsonl", articles(50))
    write_texts(tmp_path / "b.jsonl", articles(100)[50:])
    for seed, names in ((1, ("a.jsonl", "b.jsonl")), (2, ("b.jsonl", "a.jsonl"))):
        options = ["tokenizer", *names, "--vocab-size", "900", "--language", "elvish"]
        variables = {"PYTHONHASHSEED": str(seed), "RAYON_NUM_THREADS": str(seed)}
        subprocess.run(
            [sys.executable, "-c", BOTH, f"out-{seed}-", *options],
            cwd=tmp_path,
            env=os.environ | variables | {"PYTHONPATH": str(Path.cwd())},
            check=True,
            capture_output=True,
        )
    for model in ("wordpiece", "bpe"):
        one, other = (contents(tmp_path / f"out-{seed}-{model}") for seed in (1, 2))
        assert one == other
        assert len(one) >= 5
