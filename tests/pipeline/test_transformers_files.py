"""`AutoTokenizer` opens the tokenizer of every folder that the commands write."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.checksums import check_sums
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import TOKENIZER
from clozeline.pipeline.job.job import JobOptions, build_shards
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer
from clozeline.pipeline.tokenization.transformers_files import SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG
from clozeline.train.export.export import export
from tests.support.small import PUNKT, small_tokenizer
from tests.support.small_classifier import write_small_classifier
from tests.support.small_runs import write_small_run
from tests.support.small_training import TINY

pytestmark = pytest.mark.usefixtures("quiet")

NO_LIMIT = int(1e30)


def of_command(folder: Path) -> tuple[Path, int]:
    small_tokenizer(PUNKT).save(folder)
    return folder, NO_LIMIT


def of_shards(folder: Path) -> tuple[Path, int]:
    text = folder.with_name("text.txt")
    text.write_text("the cat sat. the dog ran.\n\nit slept on mat. some are tall.\n")
    given_tokenizer, _ = of_command(folder.with_name("given"))
    build_shards(
        [str(text)],
        tokenizer=given_tokenizer,
        out=folder,
        config=DataConfig(max_seq_length=24, num_shards=1, min_characters=0),
        options=JobOptions(),
    )
    return folder / TOKENIZER, 24


def of_run(folder: Path) -> tuple[Path, int]:
    model = BertForPretraining(TINY)
    run = write_small_run(folder, model, small_tokenizer(PUNKT), max_seq_length=12)
    return run / TOKENIZER, 12


def of_classifier(folder: Path) -> tuple[Path, int]:
    return write_small_classifier(folder) / TOKENIZER, 16


def of_export(folder: Path) -> tuple[Path, int]:
    tokenizer, limit = of_run(folder.with_name("run"))
    export(tokenizer.parent, out=folder)
    return folder, limit


KINDS = (of_command, of_shards, of_run, of_classifier, of_export)


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_every_tokenizer_folder_opens_in_transformers(
    make: Callable[[Path], tuple[Path, int]], tmp_path: Path
) -> None:
    import transformers

    folder, limit = make(tmp_path / "made")
    check_sums(folder)
    ours = small_tokenizer()
    theirs = transformers.AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
    assert theirs.model_max_length == limit
    for name in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(theirs, f"{name}_token_id") == getattr(ours, f"{name}_id")
    text = "The cats [MASK] éa"
    assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode_batch([text])[0]


def test_a_folder_of_an_earlier_version_loads_and_is_brought_up_to_date(tmp_path: Path) -> None:
    """And its limit is that of the last writer."""
    folder, tokenizer = tmp_path / "old", small_tokenizer(PUNKT)
    tokenizer.save(folder)
    lines = (folder / "SHA256SUMS").read_text().splitlines(keepends=True)
    for name in (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP):
        (folder / name).unlink()
        lines = [line for line in lines if name not in line]
    (folder / "SHA256SUMS").write_text("".join(lines))
    assert load_tokenizer(folder).digest == tokenizer.digest
    for limit in (128, 512):
        tokenizer.save(folder, max_seq_length=limit)
        found = json.loads((folder / TOKENIZER_CONFIG).read_bytes())
        assert found["model_max_length"] == limit
        check_sums(folder)
    assert load_tokenizer(folder).punkt == PUNKT


def test_a_tokenizer_that_keeps_control_characters_opens_as_it_is(tmp_path: Path) -> None:
    from dataclasses import replace

    import transformers

    small = small_tokenizer()
    ours = Tokenizer(small.tokens, replace(small.normalization, clean_text=False))
    ours.save(tmp_path / "made", max_seq_length=8)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "made")
    for text in ("the\x00 cat", "the\u200bcat", "The cats."):
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode_batch([text])[0]
    assert theirs.mask_token_id == ours.mask_id
