"""The page on a language of one's own: from real dumps to a folder that `transformers` opens."""

import os
import re
import subprocess
import sys

import pytest
import torch

from clozeline.model.heads import BertForPretraining
from clozeline.train.artifacts.pretrained import load_pretrained
from tests.repository.test_printed_commands import words_of
from tests.support.printed_commands import ROOT, commands
from tests.support.small_huggingface import quiet_transformers

PAGE = (ROOT / "docs" / "manual" / "languages.md").read_text()
STEPS = [line for line in commands(PAGE) if "--compare" not in line]
LATGALIAN = "smallwiki-latest-pages-articles.xml.bz2"
#: The page's dump, and one of two pages in UTF-16; a text of each language.
DUMPS = {
    LATGALIAN: "Latgola irā skaista, i myusu volūda dzeivoj.",
    "bgwiki-latest-pages-articles-shortened.xml.bz2": "България е държава, на 111 000 km².",
}


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("CLOZELINE_DATA"), reason="CLOZELINE_DATA is not set")
@pytest.mark.parametrize("dump", DUMPS)
@pytest.mark.parametrize("model", ["bpe", "unigram", "wordpiece"])
def test_transformers_gives_the_same_ids_and_logits(model, dump, tmp_path):
    import transformers

    assert len(STEPS) == 4
    for line in STEPS:
        smaller = re.sub("--max-steps 2000 --batch-size 32", "--max-steps 2 --batch-size 4", line)
        smaller = smaller.replace("--model bpe", f"--model {model}").replace(LATGALIAN, dump)
        words = words_of(smaller)
        command = [sys.executable, "-m", "clozeline", *words]
        subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True
        )
    folder = tmp_path / "work" / "huggingface"
    with quiet_transformers():
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        published = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    ours = load_pretrained(folder)
    ids = theirs(DUMPS[dump])["input_ids"]
    [inside] = ours.tokenizer.encode_batch([DUMPS[dump]])
    assert ids == [ours.tokenizer.cls_id, *inside, ours.tokenizer.sep_id]
    assert theirs.mask_token_id == ours.tokenizer.mask_id
    mine = BertForPretraining(ours.model)
    mine.load_state_dict(ours.weights)
    rows, every = torch.tensor([ids]), torch.arange(len(ids))[None]
    with torch.no_grad():
        logits = mine.eval()(rows, torch.zeros_like(rows), None, every)[0]
        assert torch.allclose(published(rows).logits, logits[..., : len(theirs)], atol=1e-5)
