"""The tokenizer command: adopted or learned once, and kept whole in its folder."""

import os
from collections import Counter
from itertools import pairwise
from pathlib import Path

import nltk.data
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from tokenizers.normalizers import BertNormalizer

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.sentences.punkt import PunktData
from clozeline.pipeline.sentences.splitter import SentenceSplitter
from clozeline.pipeline.sources.formats import list_blocks
from clozeline.pipeline.tokenization.learn import (
    MAX_WORD,
    MIN_COUNT,
    count_words,
    learn_vocabulary,
    learn_wordpiece,
)
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.pipeline.tokenization.train_tokenizer import Corpus, make_tokenizer
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS
from tests.pipeline.test_encoder import HOSTILE
from tests.pipeline.test_steps import TEXT
from tests.support.command import output_of
from tests.support.files import contents, no_file_longer_than
from tests.support.small import small_tokenizer
from tests.support.small_jobs import articles, clozeline_in_turn, write_texts

DATA = os.environ.get("CLOZELINE_DATA")


@pytest.fixture(autouse=True)
def no_punkt(monkeypatch):
    """A machine on which nltk finds nothing."""
    monkeypatch.setattr(nltk.data, "path", [])


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT)
    return path


def make(out, *sources, **options):
    return make_tokenizer([str(source) for source in sources], out=out, **options)


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(small_tokenizer().tokens) + "\n")
    return path


def test_a_learned_vocabulary_covers_the_text_and_the_splitter_splits_it(tmp_path, corpus):
    tokenizer, where, *_ = make(tmp_path / "out", corpus, vocab_size=200, language="elvish")
    assert where == "trained on the sources"
    assert tokenizer.tokens[:5] == list(SPECIAL_TOKENS)
    assert tokenizer.vocab_size <= 200
    [ids] = tokenizer.encode_batch([TEXT.replace("\n", " ")])
    assert tokenizer.unk_id not in ids
    assert load_tokenizer(tmp_path / "out").digest == tokenizer.digest
    assert tokenizer.punkt["language"] == "elvish"
    splitter = SentenceSplitter(PunktData.from_json(tokenizer.punkt))
    assert splitter.split(b"the cat sat. It slept.")[0].to_list() == ["the cat sat.", "It slept."]


@pytest.mark.parametrize(("character", "files"), [("a", 2.75), ("é", 1.375), ("字", 0.915)])
def test_text_is_limited_in_bytes(character, files, tmp_path):
    for i in range(4):
        (tmp_path / f"{i}.txt").write_text(character * 400)
    corpus = Corpus(list_blocks([str(tmp_path / "*.txt")]))
    texts = list(corpus.texts(1100, reading_for="a test"))
    assert texts == [character * 400] * int(files) + [character * int(files % 1 * 400)]


@pytest.mark.parametrize(
    ("limit", "end"),
    [(1000, "\n23 words of line 49"), (30, "23 words of line 0"), (11, "23 words"), (1, "2")],
)
def test_the_last_document_is_cut_at_a_line_end(limit, end, tmp_path):
    text = "\n".join(f"23 words of line {i}" for i in range(100_000))
    (tmp_path / "a.txt").write_text(text)
    corpus = Corpus(list_blocks([str(tmp_path / "a.txt")]))
    [begin] = corpus.texts(limit, reading_for="a test")
    assert text.startswith(begin)
    assert begin.endswith(end)
    assert len(begin) <= limit


@pytest.mark.skipif(not DATA, reason="CLOZELINE_DATA is not set")
def test_punkt_of_nltk_is_used_if_found(tmp_path, vocabulary, monkeypatch):
    monkeypatch.setattr(nltk.data, "path", [str(Path(DATA, "nltk_data").resolve())])
    tokenizer, where, *_ = make(tmp_path / "out", vocab=vocabulary)
    assert where == "NLTK, English"
    assert "dr" in tokenizer.punkt["abbrev_types"]


def test_a_language_that_nltk_lacks_is_learned_with_a_note(
    tmp_path, corpus, vocabulary, monkeypatch
):
    (tmp_path / "nltk" / "tokenizers" / "punkt_tab" / "danish").mkdir(parents=True)
    learned = {}
    for name, folders in (("one", [str(tmp_path / "nltk")]), ("none", [])):
        monkeypatch.setattr(nltk.data, "path", folders)
        found, learned[name], *_ = make(
            tmp_path / name, corpus, vocab=vocabulary, language="elvish"
        )
        assert found.punkt["language"] == "elvish"
    assert load_tokenizer(tmp_path / "one").digest == load_tokenizer(tmp_path / "none").digest
    assert learned == {
        "one": "trained on the sources (nltk's punkt_tab has danish, not elvish)",
        "none": "trained on the sources",
    }
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "nltk")])
    with pytest.raises(InputError, match=r"no punkt_tab for elvish .but for danish., and there is"):
        make(tmp_path / "out", vocab=vocabulary, language="elvish")


def test_without_punkt_and_sources_the_error_says_what_to_do(tmp_path, vocabulary):
    with pytest.raises(InputError, match=r"no punkt_tab for english.*give sources, or set NLTK"):
        make(tmp_path / "out", vocab=vocabulary)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_left_alone(tmp_path, corpus):
    (tmp_path / "out").mkdir()
    make(tmp_path / "out", corpus, vocab_size=200)  # an empty one is fine
    before = contents(tmp_path / "out")
    with pytest.raises(InputError, match="out exists already; give another --out, or --overwrite"):
        make(tmp_path / "out", corpus, vocab_size=300)
    assert contents(tmp_path / "out") == before


def test_overwrite_without_space_leaves_the_old_tokenizer_whole(tmp_path, corpus):
    make(tmp_path / "out", corpus, vocab_size=200)
    before = contents(tmp_path / "out")
    with no_file_longer_than(1024), pytest.raises(OSError, match="File too large"):
        make(tmp_path / "out", corpus, vocab_size=300, model="bpe", overwrite=True)
    assert contents(tmp_path / "out") == before
    made = make(tmp_path / "out", corpus, vocab_size=300, model="bpe", overwrite=True)
    assert load_tokenizer(tmp_path / "out").digest == made.tokenizer.digest
    assert contents(tmp_path / "out").keys() == before.keys() - {"vocab.txt"}


def test_a_learned_bpe_encodes_its_text_with_case_and_accents_and_fills_up_to_64(tmp_path, corpus):
    corpus.write_text(TEXT + "Éa éA eA " * 30)
    made = make(tmp_path / "out", corpus, vocab_size=300, model="bpe")
    tokenizer = made.tokenizer
    assert tokenizer.vocab_size % 64 == 0
    assert tokenizer.tokens[:5] == list(SPECIAL_TOKENS)
    assert tokenizer.spec.mask_strips == (True, False)
    line = TEXT.partition("\n")[0]
    [ids] = tokenizer.encode_batch([f"{line} Éa éA eA [MASK] [unused1]"])
    assert tokenizer.library.decode(ids).startswith(f"{line} Éa éA eA ")
    assert not set(ids) & {tokenizer.mask_id, tokenizer.tokens.index("[unused1]")}
    assert not any(tokenizer.tokens[i].startswith("[unused") for i in tokenizer.replacement_ids)
    assert load_tokenizer(tmp_path / "out").digest == tokenizer.digest


def test_no_learned_piece_has_a_line_end():
    """Each line of a document is encoded by itself, without the whitespace around it."""
    ends = ("\n", "\r\n", " \n\n\t")
    texts = [end.join(text.split(". ")) for text in articles(30) for end in ends]
    tokens = learn_vocabulary(iter(texts), model="bpe", vocab_size=640).tokens
    marks = set("ĊčĉĠ")
    assert [token for token in tokens if len(token) > 1 and marks & set(token[1:])] == []


@pytest.mark.parametrize(("model", "prefix"), [("wordpiece", "##"), ("bpe", "")])
def test_long_words_are_cut_before_training(model, prefix):
    """Their time would be the square of their length; 80,000 letters took 6 s."""
    for length in (MAX_WORD, 20 * MAX_WORD - 1):
        tokens = learn_vocabulary(iter(["x" * length] * 2), model=model, vocab_size=400).tokens
        assert max(len(token.removeprefix(prefix)) for token in tokens) == MAX_WORD
    text = f"the cat{' ' * 3 * MAX_WORD}the cat"
    tokens = learn_vocabulary(iter([text]), model=model, vocab_size=400).tokens
    assert max(map(len, tokens)) <= MAX_WORD


def test_a_small_text_gives_fewer_tokens_with_a_warning(tmp_path, corpus):
    made = make(tmp_path / "out", corpus, vocab_size=100_000)
    assert f"gives only {made.tokenizer.vocab_size:,} tokens" in made.warning


def test_rejected_documents_are_told_with_the_first_one(tmp_path):
    """Each once, though the text is read several times."""
    lines = ['{"text": "The cat sat on the mat."}'] * 9 + ["{"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "b.jsonl").write_text("\n".join(lines[:9]))
    [said] = make(tmp_path / "out", f"{tmp_path}/a.jsonl?repeat=2", vocab_size=200).notes
    first = f"{tmp_path}/a.jsonl: byte {9 * len(lines[0]) + 9} (not JSON: "
    assert said.startswith(f"1 document rejected, the first is {first}")
    assert make(tmp_path / "other", tmp_path / "b.jsonl", vocab_size=200).notes == []


# --- A WordPiece vocabulary follows from the counts of words alone --------------------------------


NUMBERS = st.integers(1, 9) | st.sampled_from((1000, 1001, 2500))
COUNTS = st.dictionaries(st.text("ab", min_size=1, max_size=7), NUMBERS, max_size=12)


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


@given(words=COUNTS, more=st.integers(0, 40), order=st.randoms())
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


def test_another_process_writes_the_same_folders(tmp_path, monkeypatch):
    """With other hash seeds, threads and orders of the sources."""
    write_texts(tmp_path / "a.jsonl", articles(50))
    write_texts(tmp_path / "b.jsonl", articles(100)[50:])
    monkeypatch.chdir(tmp_path)
    options = ("--vocab-size=900", "--language=elvish")
    models = ("wordpiece", "bpe")
    lines = []
    for model in models:
        line = ("tokenizer", *options, f"--model={model}")
        output_of(*line, "a.jsonl", "b.jsonl", f"--out={tmp_path}/one-{model}")
        sources = (tmp_path / "b.jsonl", tmp_path / "a.jsonl")
        lines.append([*line, *sources, f"--out={tmp_path}/other-{model}"])
    done = clozeline_in_turn(*lines, PYTHONHASHSEED="2", RAYON_NUM_THREADS="2", NLTK_DATA="nowhere")
    assert [code for code, _ in done] == [0, 0], done
    for model in models:
        one, other = (contents(tmp_path / f"{name}-{model}") for name in ("one", "other"))
        assert one == other
        assert len(one) >= 5
