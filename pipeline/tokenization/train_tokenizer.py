"""`clozeline tokenizer`: learns or adopts a vocabulary and Punkt's parameters."""

from collections.abc import Iterator, Sequence

from tqdm import tqdm

from pipeline.common.counter_rng import permutation, stream_key
from pipeline.common.errors import InputError
from pipeline.common.folder_lock import locked_folder
from pipeline.common.folder_owner import check_kind, remove_files
from pipeline.common.paths import AnyPath, names_in
from pipeline.sources.block import Block
from pipeline.sources.formats import list_blocks, read_block
from pipeline.tokenization.punkt import PunktData, find_punkt, train_punkt
from pipeline.tokenization.tokenizer import (
    TOKENIZER_FILES,
    Tokenizer,
    adopt_vocabulary,
    learn_vocabulary,
)

# NLTK's trainer takes seconds per megabyte and converges early: 8 MB of Wikipedia came no closer to
# the published English parameters than 1 MB.
PUNKT_TEXT_BYTES = 2_000_000
SMALL_BLOCK = 1 << 20


def make_tokenizer(
    sources: Sequence[str],
    *,
    out: AnyPath,
    vocab: AnyPath | None,
    vocab_size: int | None,
    cased: bool,
    language: str,
    text_columns: tuple[str, ...],
    max_megabytes: int,
    overwrite: bool = False,
) -> tuple[Tokenizer, str]:
    """Write the tokenizer folder; returns also where Punkt's parameters come from.

    Raises InputError for a vocabulary that is not BERT's, and if there is no text to learn from.
    """
    _check_out(out, overwrite=overwrite)
    with locked_folder(out):
        limit = max_megabytes * 1_000_000
        tokenizer, origin = _learn_or_adopt(
            sources, vocab, vocab_size, cased, language, text_columns, limit
        )
        if overwrite:
            remove_files(out, TOKENIZER_FILES)
        tokenizer.save(out)
    return tokenizer, origin


def _learn_or_adopt(
    sources: Sequence[str],
    vocab: AnyPath | None,
    vocab_size: int | None,
    cased: bool,
    language: str,
    text_columns: tuple[str, ...],
    limit: int,
) -> tuple[Tokenizer, str]:
    """The tokenizer, and where Punkt's parameters come from; reads up to `limit` bytes of text."""
    if vocab is not None:
        adopt_vocabulary(vocab, cased=cased, punkt=None)  # reports a bad one before the long work
    blocks = _mixed(sources, text_columns) if sources else []
    punkt = find_punkt(language)
    origin = f"from nltk ({language})"
    if punkt is None:
        punkt = _train_punkt(blocks, language)
        origin = "trained on the sources"
    if vocab is not None:
        tokenizer = adopt_vocabulary(vocab, cased=cased, punkt=punkt.to_json())
    else:
        assert vocab_size is not None
        if not blocks:
            raise InputError(
                "there is no source to learn from; give at least one, or --vocab FILE."
            )
        texts = _texts(blocks, limit, label="learning WordPiece")
        tokenizer = learn_vocabulary(
            texts, vocab_size=vocab_size, cased=cased, punkt=punkt.to_json()
        )
    return tokenizer, origin


def _check_out(out: AnyPath, *, overwrite: bool) -> None:
    """Fail before the work, not after it."""
    names = {name for name in names_in(out) if not name.startswith(".")} if out.is_dir() else set()
    check_kind(out, "a tokenizer", is_own=names <= set(TOKENIZER_FILES))
    if names and not overwrite:
        raise InputError(f"{out} exists already; give another --out, or --overwrite.")


def _train_punkt(blocks: list[Block], language: str) -> PunktData:
    if not blocks:
        raise InputError(
            f"nltk has no punkt_tab for {language}, and there is no source to train Punkt on; give "
            "sources, or set NLTK_DATA to a folder that contains tokenizers/punkt_tab."
        )
    texts = _texts(blocks, PUNKT_TEXT_BYTES, label="training Punkt")
    return train_punkt(texts, language)


def _mixed(sources: Sequence[str], text_columns: tuple[str, ...]) -> list[Block]:
    """All blocks in random order, so that the first ones are a fair sample."""
    blocks = list_blocks(sources, block_bytes=SMALL_BLOCK, text_columns=text_columns)
    blocks = [block for block in blocks for _ in range(block.repeat)]
    return [blocks[index] for index in permutation(stream_key(0, "tokenizer"), len(blocks))]


def _texts(blocks: list[Block], limit: int, *, label: str) -> Iterator[str]:
    """The documents of the blocks, up to about `limit` characters."""
    total = min(limit, sum(block.text_bytes for block in blocks))
    with tqdm(desc=label, total=total, unit="B", unit_scale=True) as bar:
        for block in blocks:
            for chunk in read_block(block, chunk_bytes=SMALL_BLOCK):
                yield from chunk.texts
                bar.update(sum(map(len, chunk.texts)))
                if bar.n >= limit:
                    return
