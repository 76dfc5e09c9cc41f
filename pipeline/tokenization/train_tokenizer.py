"""`clozeline tokenizer`: learns or adopts a vocabulary and Punkt's parameters."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clozeline.pipeline.commandline.hub_model import hub_folder, is_hub_name
from clozeline.pipeline.common.config_checks import check_keywords, counted
from clozeline.pipeline.common.counter_rng import permutation, stream_key
from clozeline.pipeline.common.errors import InputError, as_input_error, check_packages
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.pipeline.common.folders import check_kind
from clozeline.pipeline.common.paths import (
    AnyPath,
    GivenPath,
    each_given,
    is_file,
    names_in,
    naming_store,
    path_of,
)
from clozeline.pipeline.common.progress_bar import ProgressBar, print_progress
from clozeline.pipeline.sentences.punkt import (
    PunktData,
    find_punkt,
    installed_languages,
    train_punkt,
)
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.formats import (
    all_rejected,
    check_columns_used,
    list_blocks,
    read_block,
)
from clozeline.pipeline.tokenization.accents import Sample
from clozeline.pipeline.tokenization.learn import MIN_ALPHABET, learn_vocabulary
from clozeline.pipeline.tokenization.options import TokenizerOptions
from clozeline.pipeline.tokenization.read_vocabulary import (
    read_tokenizer_json,
    read_vocab_txt,
    vocab_txt_flags,
)
from clozeline.pipeline.tokenization.tokenizer import (
    TOKENIZER_FILES,
    TOKENIZER_JSON,
    VOCAB_TXT,
    Tokenizer,
    named_tokenizer,
)
from clozeline.pipeline.tokenization.vocabulary import Normalization, TokenizerSpec

# NLTK's trainer takes seconds per megabyte and converges early: 8 MB of Wikipedia came no closer to
# the published English parameters than 1 MB.
PUNKT_TEXT_BYTES = 2_000_000
SAMPLE_BYTES = 2_000_000  # read to decide whether accents are letters, and to count the alphabet
SMALL_BLOCK = 1 << 20
MOST_BYTES = 200_000_000  #: of text that a vocabulary is learned from
LONG_TEXT = 1 << 20  # bytes; with less, the work after reading takes no time


class Made(NamedTuple):
    """A tokenizer and what the user should know about it."""

    tokenizer: Tokenizer
    punkt: str  #: where Punkt's parameters come from
    accents: str  #: whether accents are stripped, and why; or that the vocabulary decides
    warning: str | None
    notes: list[str]  #: of rejected documents, and of what the vocabulary drops


@dataclass(frozen=True)
class Corpus:
    """The blocks to learn from, in random order."""

    blocks: list[Block]
    rejected: dict[str, str] = field(default_factory=dict)  #: where each is, and why

    def texts(self, limit: int, *, reading_for: str) -> Iterator[str]:
        """The documents, up to `limit` bytes; shows the progress, then what they are used for.

        The last one is cut at a line end or, if it has none, at a space.

        Raises InputError where every document is rejected.
        """
        total = min(limit, sum(block.text_bytes for block in self.blocks))
        read, label = 0, f"reading text for {reading_for}"
        with ProgressBar(desc=label, total=total, unit="B", unit_scale=True) as bar:
            for text in self._documents():
                size = len(text.encode())
                yield text if read + size <= limit else _begin(text, limit - read)
                read += size
                bar.update(min(read, total) - bar.n)  # sizes of blocks are estimates
                if read >= limit:
                    break
        if self.rejected and not read:
            raise all_rejected(len(self.rejected), *next(iter(self.rejected.items())))
        read = min(read, limit)
        if read >= LONG_TEXT:
            print_progress(f"computing {reading_for} from {read / 1e6:.1f} MB of text ...")

    def _documents(self) -> Iterator[str]:
        for block in self.blocks:
            for chunk in read_block(block, chunk_bytes=SMALL_BLOCK):
                self.rejected.update((entry.where, entry.reason) for entry in chunk.rejected)
                yield from chunk.texts


def _begin(text: str, size: int) -> str:
    """The first lines of a text, up to `size` bytes; if its first line is longer, the first words.

    "Rome is old.\\nIt is big.", 18  ->  "Rome is old."
    """
    begin = text.encode()[:size].decode(errors="ignore")
    return begin[: max(begin.rfind("\n"), 0) or max(begin.rfind(" "), 0) or None]


def make_tokenizer(
    sources: GivenPath | Iterable[GivenPath] = (),
    *,
    out: GivenPath,
    overwrite: bool = False,
    **fields: Any,
) -> Made:
    """Write a tokenizer folder: learned from `sources` (`vocab_size`) or adopted (`vocab`).

        >>> source = "sample:articles?size=300KB"
        >>> made = make_tokenizer(source, out="work/tokenizer", vocab_size=400)
        >>> made.tokenizer.vocab_size
        400

    Options are fields of TokenizerOptions, as keywords. Raises InputError for a vocabulary that
    cannot be used, for options that do not go together, and if there is no text to learn from.
    """
    check_packages("a tokenizer", "nltk", "regex")
    check_keywords(make_tokenizer, fields, TokenizerOptions)
    with as_input_error():
        options = TokenizerOptions(**fields)
    out, names = path_of(out), list(each_given(sources))
    with naming_store(out):
        _check_out(out, overwrite=overwrite)
        with locked_folder(out):
            made = _learn_or_adopt(names, options)
            made.tokenizer.save(out, overwrite=overwrite)
    return made


def _learn_or_adopt(sources: Sequence[str], options: TokenizerOptions) -> Made:
    adopted = None
    if options.vocab is not None:  # a bad one ends it here
        adopted = adopt_vocabulary(
            options.vocab, cased=options.cased, strip_accents=options.strip_accents
        )
    blocks = _mixed(sources, options.text_columns) if sources else []
    check_columns_used(options.text_columns, blocks)
    corpus = Corpus(blocks)
    punkt, origin = _find_or_train_punkt(corpus, options.language)
    sample = Sample(corpus.texts(SAMPLE_BYTES, reading_for="the alphabet") if blocks else ())
    loss, reason, warning = sample.accents_make(), "", None
    if not (adopted or blocks):
        raise InputError("there is no source to learn from; give at least one, or --vocab FILE.")
    if adopted:
        tokenizer = Tokenizer(adopted.tokens, adopted.normalization, punkt.to_json())
    else:
        assert options.vocab_size is not None
        keep = loss if options.strip_accents is None and not options.cased else None
        reason = f" (stripping them would {keep})" if keep else ""
        tokenizer = learn_vocabulary(
            corpus.texts(MOST_BYTES, reading_for="the vocabulary"),
            model=options.model,
            vocab_size=options.vocab_size,
            cased=bool(options.cased),
            strip_accents=False if keep else options.strip_accents,
            punkt=punkt.to_json(),
            alphabet=max(MIN_ALPHABET, sample.alphabet()),
        )
        if tokenizer.vocab_size < options.vocab_size:
            warning = f"the text gives only {tokenizer.vocab_size:,} tokens; give more of it."
    accents, notes = "with its own normalizer", []
    for where, why in list(corpus.rejected.items())[:1]:
        number = counted(len(corpus.rejected), "document")
        notes.append(f"{number} rejected, the first is {where} ({why}).")
    if isinstance(own := tokenizer.normalization, Normalization):
        accents = f"accents {'stripped' if own.strip_accents else 'kept'}{reason}"
        if adopted and loss and own.strip_accents:
            warning = f"the vocabulary strips accents; in the sources, that will {loss}."
        notes += sample.dropped_by(own)
    return Made(tokenizer, origin, accents, warning, notes)


def adopt_vocabulary(
    path: str | AnyPath, *, cased: bool | None, strip_accents: bool | None = None
) -> Tokenizer:
    """A tokenizer from a vocabulary as it is published.

    That is a vocab.txt (one token per line), a tokenizer.json (named *.json), or a folder or model
    of the Hub that has one. By default case and accents are kept as the tokenizer.json says; for a
    vocab.txt, as the tokenizer_config.json beside it, else an uncased vocabulary strips accents.
    Raises InputError if the file is missing, is not for BERT, or does not agree with the flags.
    """
    path = path_of(path)
    if is_hub_name(path):
        path = hub_folder(str(path), weights=False)
    if path.is_dir():
        path /= TOKENIZER_JSON if is_file(path / TOKENIZER_JSON) else VOCAB_TXT
    if path.suffix != ".json":
        tokens = read_vocab_txt(path)
        flags = vocab_txt_flags(path, tokens, cased=cased, strip_accents=strip_accents)
        return named_tokenizer(path, tokens, flags, None)
    tokens, normalization = read_tokenizer_json(path)
    own = None if isinstance(normalization, TokenizerSpec) else normalization
    is_other = own.lowercase == cased if own else cased
    if is_other or strip_accents not in (None, own and own.strip_accents):
        raise InputError(
            f"{path} has its own normalizer; leave out --[un]cased and --[no-]strip-accents."
        )
    return named_tokenizer(path, tokens, normalization, None)


def _find_or_train_punkt(corpus: Corpus, language: str) -> tuple[PunktData, str]:
    """Punkt's parameters and where they come from."""
    if punkt := find_punkt(language):
        return punkt, f"NLTK, {language.title()}"
    there = ", ".join(installed_languages())
    if not corpus.blocks:
        raise InputError(
            f"nltk has no punkt_tab for {language} (but for {there or 'none'}), and there is no "
            "source to train Punkt on; give sources, or set NLTK_DATA to a folder that contains "
            "tokenizers/punkt_tab."
        )
    note = f" (nltk's punkt_tab has {there}, not {language})" if there else ""
    texts = corpus.texts(PUNKT_TEXT_BYTES, reading_for="Punkt")
    return train_punkt(texts, language), f"trained on the sources{note}"


def _check_out(out: AnyPath, *, overwrite: bool) -> None:
    """Fail before the work, not after it."""
    names = {name for name in names_in(out) if not name.startswith(".")}
    check_kind(out, "a tokenizer", is_own=names <= set(TOKENIZER_FILES))
    if names and not overwrite:
        raise InputError(f"{out} exists already; give another --out, or --overwrite.")


def _mixed(sources: Sequence[str], text_columns: tuple[str, ...]) -> list[Block]:
    """All blocks in random order, so that the first ones are a fair sample.

    The order of the sources makes no difference to it.

    Raises InputError for a source that cannot be read, and for one with a budget: its tokens cannot
    be counted before there is a tokenizer.
    """
    blocks = list_blocks(sources, block_bytes=SMALL_BLOCK, text_columns=text_columns)
    for block in blocks:
        if block.tokens:
            raise InputError(
                f"{block.path}: tokens= is for `clozeline shards` and does nothing here; leave it "
                "out (limit=N takes the first N documents, repeat=N counts them N times)."
            )
    blocks.sort(key=lambda block: (block.path, block.start, block.query))
    blocks = [block for block in blocks for _ in range(block.repeat)]
    return [blocks[index] for index in permutation(stream_key(0, "tokenizer"), len(blocks))]
