"""Models exported to `transformers` and imported from it, by whole commands."""

import json
import shutil
from dataclasses import asdict

import pytest
import torch
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.model.config import BertConfig, preset
from clozeline.model.heads import BertForPretraining
from clozeline.model.huggingface.convert import load_huggingface, save_huggingface
from clozeline.model.huggingface.weight_files import weights_sha256
from clozeline.pipeline.common.json_files import sealed, write_json
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS, Normalization
from clozeline.train.artifacts.checkpoint import latest_checkpoint, load_weights
from clozeline.train.artifacts.huggingface import read_tokenizer, side_cut
from clozeline.train.export.model_card import classifier_card
from clozeline.train.finetuning.finetune import rows_per_step
from clozeline.train.inference.predict import predict
from tests.support.command import output_of, refused
from tests.support.files import contents, no_file_longer_than
from tests.support.small import small_tokenizer
from tests.support.small_classifier import report
from tests.support.small_runs import write_small_run
from tests.support.small_training import TINY

pytestmark = pytest.mark.usefixtures("quiet")

TOKENIZER = small_tokenizer()
HOSTILE = st.text(
    st.sampled_from("the cat sats Ünï çß İı中文字𝔘 \t\n\x00\u00ad\u200b\ufffd.,!?##[]'é́e")
    | st.characters(exclude_categories=["Cs"])
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    return write_small_run(folder, BertForPretraining(TINY, seed=7), TOKENIZER, max_seq_length=12)


@pytest.fixture(scope="module")
def exported(run):
    out = run.parent / "exported"
    said = output_of("export", run, "--format", "pretraining", "--out", out)
    assert said.startswith("BertForPreTraining of ")
    return out


@pytest.mark.parametrize("pairs", ["segments", "order", "sentences", "none", "packed"])
def test_a_run_is_a_masked_lm_without_a_report_of_keys(pairs, tmp_path, caplog):
    model = BertForPretraining(preset("bert-mini", vocab_size=TOKENIZER.vocab_size), seed=7)
    run = write_small_run(tmp_path / "run", model, TOKENIZER, max_seq_length=12, pairs=pairs)
    out, whole = tmp_path / "out", tmp_path / "whole"
    said = output_of("export", run, "--out", out)
    assert said.startswith("BertForMaskedLM of ")
    found, tokenizer = in_transformers(out, "AutoModelForMaskedLM")
    assert tokenizer.model_max_length == 12
    batch = tokenizer("the cat [MASK]", "on mat", return_tensors="pt")
    ids, every = batch["input_ids"], torch.arange(8)[None]
    tokens = " ".join(TOKENIZER.tokens[i] for i in ids[0])
    assert tokens == "[CLS] the cat [MASK] [SEP] on mat [SEP]"
    assert batch["token_type_ids"][0].tolist() == [0] * 5 + [1] * 3
    assert TOKENIZER.mask_id not in TOKENIZER.encode_batch(["the [MASK]"])[0]  # here it is text
    logits, scores = model.eval()(ids, batch["token_type_ids"], None, every)
    logits = logits[..., : TOKENIZER.vocab_size]
    torch.testing.assert_close(found(**batch).logits, logits, atol=1e-5, rtol=1e-5)
    left = "without the next-sentence head and the pooler"
    as_pretraining = ("export", run, "--format", "pretraining", "--out", whole)
    if pairs in ("none", "packed"):
        assert f"{left}: {out}" in said
        assert "has no trained next-sentence head" in refused(*as_pretraining)
        return
    assert f"{left} (--format pretraining keeps them): {out}" in said
    output_of(*as_pretraining)
    found, _ = in_transformers(whole, "AutoModelForPreTraining")
    assert type(found).__name__ == "BertForPreTraining"
    theirs, ours = found(**batch), model.encoder(ids, batch["token_type_ids"], None)
    for one, other in (
        (theirs.prediction_logits, logits),
        (theirs.seq_relationship_logits, scores),
        (found.bert(**batch).pooler_output, ours[1]),
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert warned(caplog) == []


def test_other_classes_of_transformers_miss_their_own_head_alone(run, bert, tmp_path):
    """What no folder of a BERT has for another task; nothing of the encoder is missing."""
    output_of("export", run, "--out", tmp_path / "out")
    masked, whole = tmp_path / "out", tmp_path / "whole"
    classifying = "AutoModelForSequenceClassification"
    output_of("export", run, "--format", "pretraining", "--out", whole)
    wanted = (
        (masked, "AutoModel", {"pooler"}, {"cls.predictions"}),
        (masked, classifying, {"bert.pooler", "classifier"}, {"cls.predictions"}),
        (whole, "AutoModel", set(), {"cls.predictions", "cls.seq_relationship"}),
        (bert, "AutoModel", set(), {"classifier"}),
        (bert, classifying, set(), set()),
    )
    for folder, kind, missing, unexpected in wanted:
        _, info = loaded_by_transformers(folder, kind)
        for names, parts in (
            (info["missing_keys"], missing),
            (info["unexpected_keys"], unexpected),
        ):
            assert {next((p for p in parts if n.startswith(p)), n) for n in names} == parts


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    lines = (f"the {animal} sat {i},{animal}" for i in range(20) for animal in ("cat", "dog"))
    path.write_text("\n".join(["text,label", *lines]) + "\n")
    return path


def finetuned(start, rows, out, *options):
    fixed = ("--no-baseline", "--learning-rate=3e-3", "--epochs=1")  # a search takes many trainings
    return output_of("finetune", start, rows, "--out", out, *fixed, *options)


@pytest.fixture(scope="module")
def classifier(run, rows):
    finetuned(run, rows, run.parent / "classifier", "--pooling", "cls")
    return run.parent / "classifier"


def exported_classifier(folder, out, kind="Bert"):
    printed = output_of("export", folder, "--out", out)
    assert printed.startswith(f"{kind}ForSequenceClassification of ")
    return out


@pytest.fixture(scope="module")
def bert(classifier):
    """The classifier, exported."""
    return exported_classifier(classifier, classifier.with_name("bert"))


def loaded_by_transformers(folder, model):
    import transformers

    return getattr(transformers, model).from_pretrained(folder, output_loading_info=True)


def in_transformers(folder, model="AutoModelForPreTraining"):
    """The model and the tokenizer, if no weight is missing and none is left over."""
    import transformers

    found, info = loaded_by_transformers(folder, model)
    assert not any(info.values()), info
    return found.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def warned(caplog):
    return [record.message for record in caplog.records if record.levelname != "INFO"]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """Our tokenizers, each with what `transformers` loads: with and without tokenizer.json."""
    import transformers

    pairs = []
    words = "the The cat e é ü u ß i ı 中 ##é ##e ##s [ ] # ! . mask"
    vocabulary = [*SPECIAL_TOKENS, *words.split()]
    for cased, strip in ((False, True), (True, False), (False, False), (True, True)):
        ours = Tokenizer(vocabulary, Normalization(lowercase=not cased, strip_accents=strip))
        folder = tmp_path_factory.mktemp("tokenizer") / "all"
        ours.save(folder, max_seq_length=12)
        assert read_tokenizer(folder).digest == ours.digest
        (folder / "config.json").write_text('{"model_type": "bert"}')
        fewer = shutil.copytree(folder, folder.parent / "fewer")
        (fewer / "tokenizer.json").unlink()
        assert read_tokenizer(fewer).digest == ours.digest
        loaded = [
            transformers.AutoTokenizer.from_pretrained(folder, split_special_tokens=True),
            transformers.BertTokenizerFast.from_pretrained(fewer, split_special_tokens=True),
        ]
        pairs.append((ours, loaded))
    return pairs


@settings(max_examples=60)
@given(text=HOSTILE)
def test_an_exported_tokenizer_gives_the_same_ids(tokenizers, text):
    for ours, loaded in tokenizers:
        (expected,) = ours.encode_batch([text])
        for tokenizer in loaded:
            assert tokenizer(text, add_special_tokens=False)["input_ids"] == expected


@pytest.mark.parametrize(
    ("kind", "pooling", "truncate"),
    [("Bert", "cls", "end"), ("ModernBert", "mean", "start"), ("ModernBert", "cls", "end")],
)
def test_an_exported_classifier_predicts_the_same_in_transformers(
    kind, pooling, truncate, classifier, bert, modern, rows, tmp_path
):
    folder, out = classifier, bert
    if kind == "ModernBert":
        folder = tmp_path / "classifier"
        finetuned(modern, rows, folder, "--pooling", pooling, "--truncate", truncate)
        out = exported_classifier(folder, tmp_path / "out", kind)
    texts = ["the cat sat", "dog", "it ran to the river", "the cat sat " * 9 + "dog " * 9]
    predictions = output_of("predict", folder, *texts)
    assert output_of("predict", out, *texts) == predictions
    model, tokenizer = in_transformers(out, "AutoModelForSequenceClassification")
    batch = tokenizer(texts, truncation=True, padding=True, return_tensors="pt")
    for row, line in zip(model(**batch).logits.softmax(-1), predictions.splitlines(), strict=True):
        label, shown, _ = line.split("\t")
        assert model.config.id2label[row.argmax().item()] == label
        assert float(shown) == pytest.approx(row.max().item(), abs=1e-4)


def test_a_classifier_that_no_tokenizer_there_reads_for_is_not_exported(modern, rows, tmp_path):
    finetuned(modern, rows, tmp_path / "it", "--truncate", "middle")
    said = refused("export", tmp_path / "it", "--out", tmp_path / "out")
    assert "reads long texts without their middle, as no tokenizer of transformers does" in said
    assert "--truncate start, or export it with --format onnx" in said
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def modern(tmp_path_factory):
    small = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")
    sizes = {name: getattr(TINY, name) for name in (*small, "max_position_embeddings")}
    config = preset("modern-mini", **sizes)
    folder = tmp_path_factory.mktemp("modern") / "run"
    model = BertForPretraining(config, seed=7)
    return write_small_run(folder, model, TOKENIZER, max_seq_length=12)


def test_a_modern_run_leaves_without_its_next_sentence_head(modern, tmp_path, caplog):
    out = tmp_path / "out"
    line = output_of("export", modern, "--out", out)
    model, tokenizer = in_transformers(out, "AutoModelForMaskedLM")
    count = sum(p.numel() for p in model.parameters())
    of = f"ModernBertForMaskedLM of {count:,} parameters without the next-sentence head"
    assert line == f"{of}: {out}\n"
    batch = tokenizer("the cat sat", "on mat", return_tensors="pt")
    assert set(batch) == {"input_ids", "attention_mask"}  # what the model takes
    assert model(**batch).logits.shape == (1, 8, TINY.vocab_size)
    assert warned(caplog) == []

    text = "the [MASK] sat"
    assert output_of("fill", out, text) == output_of("fill", modern, text)


def test_the_card_states_what_the_run_recorded(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    heldout = {"examples": 23, "mlm_loss": 3.21987, "mlm_accuracy": 0.25}
    write_json(copy / "summary.json", {"step": 1, "heldout": heldout}, seal=True)
    output_of("export", copy, "--out", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    rows = ["| steps | 1 |", "| held-out examples | 23 |", "| held-out mlm loss | 3.22 |"]
    usage = ('pipeline("fill-mask", model="out")', "The [MASK] of the town.")
    for line in (*rows, "| held-out mlm accuracy | 0.25 |", *usage):
        assert line in card
    assert str(tmp_path) not in card
    data = ModelCard.load(tmp_path / "out" / "README.md").data
    assert (data.library_name, data.pipeline_tag) == ("transformers", "fill-mask")
    # An evaluation at another step does not describe these weights.
    write_json(copy / "summary.json", {"step": 2, "heldout": heldout}, seal=True)
    output_of("export", copy, "--out", tmp_path / "out", "--overwrite")
    assert "Not evaluated." in (tmp_path / "out" / "README.md").read_text()


def test_the_card_of_a_classifier_shows_names_with_bars_in_one_cell():
    found = report().values
    found["finetuned"]["f1"] = {"a|b": 0.5}
    metadata = {"names": ["a|b"], "text": "t", "text_pair": None, "max_seq_length": 8}
    metadata |= {"model": asdict(TINY), "job": {"batch_size": "auto", "pretrained": "5f"}}
    metadata["truncate"] = "end"
    card = classifier_card(metadata, found, folder="out")
    assert "| F1 of a\\|b | 0.5 |" in card
    assert f"| batch size | {rows_per_step(found['examples'], 'auto')} |" in card  # not "auto"


def test_an_identical_export_is_kept_and_nothing_else_is_replaced(run, exported, tmp_path):
    out = shutil.copytree(exported, tmp_path / "out")
    (out / "README.md").write_text("edited")
    again = ("export", run, "--format", "pretraining", "--out", out)
    assert output_of(*again).startswith("already complete: ")
    assert (out / "README.md").read_text() == "edited"
    model = BertForPretraining(TINY, seed=8)
    other = write_small_run(tmp_path / "other", model, TOKENIZER, max_seq_length=12)
    said = refused("export", other, "--out", out)
    assert "holds a different export; choose another --out, or add --overwrite" in said
    assert weights_sha256(out) == weights_sha256(exported)
    output_of("export", other, "--out", out, "--overwrite")
    assert (out / "README.md").read_text() != "edited"
    assert weights_sha256(out) != weights_sha256(exported)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def test_a_model_that_is_no_export_is_never_replaced(run, tmp_path):
    folder = write_folder(tmp_path / "bert", architecture="BertForMaskedLM")
    before = contents(folder)
    for options in ((), ("--overwrite",)):
        said = refused("export", run, "--out", folder, *options)
        assert said.startswith(f"{folder} is not empty and not an export (")
    assert contents(folder) == before


def test_a_full_disk_leaves_no_partial_export(run, tmp_path):
    with no_file_longer_than(20_000):
        line = refused("export", run, "--out", tmp_path / "out", code=1)
    assert "out cannot be written (" in line
    assert list(tmp_path.iterdir()) == []


PRETRAIN = ("--batch-size=8", "--log-every=1", "--eval-every=0", "--save-every=2")


def test_pretraining_starts_from_the_weights_of_a_folder_and_resumes_from_its_own(
    small_folder, exported, tmp_path
):
    # The learning rate hardly changes a weight.
    line = ("pretrain", small_folder, "--from", exported, "--learning-rate=1e-9", *PRETRAIN)
    whole, run = tmp_path / "whole", tmp_path / "run"
    output_of(*line, "--max-steps=4", "--out", whole)
    weights = load_weights(latest_checkpoint(whole))
    given = load_huggingface(exported).weights
    assert weights.keys() == given.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, given[name], msg=name)
    facts = json.loads((whole / "run.json").read_bytes())
    assert facts["started_from"] == weights_sha256(exported)

    shutil.copytree(whole, run)
    (run / "summary.json").unlink()
    shutil.rmtree(latest_checkpoint(run))
    line = (*line, "--max-steps=4", "--out", run, "--resume")
    assert output_of(*line).endswith(f"step 4 of 4: {run}\n")
    newest = [latest_checkpoint(folder) / "model.safetensors" for folder in (whole, run)]
    assert newest[0].read_bytes() == newest[1].read_bytes()
    assert weights_sha256(latest_checkpoint(run)) != weights_sha256(exported)
    found = json.loads((run / "run.json").read_bytes())
    assert found == sealed(facts | {"options": found["options"]})
    assert "already complete" in output_of(*line)


def write_folder(folder, *, architecture, tokenizer=TOKENIZER):
    """A small model as `transformers` would have saved it."""
    tokenizer.save(folder, max_seq_length=12)
    weights = BertForPretraining(TINY, seed=7).state_dict()
    save_huggingface(folder, TINY, weights, architecture=architecture)
    return folder


def test_missing_weights_are_reported_and_drawn_from_the_seed(small_folder, rows, tmp_path):
    masked = write_folder(tmp_path / "masked", architecture="BertForMaskedLM")
    bare = write_folder(tmp_path / "bare", architecture="BertModel")
    line = ("pretrain", small_folder, *PRETRAIN, "--max-steps=1", "--out", tmp_path / "run")
    printed = output_of(*line, "--from", masked)
    note = f"note: {masked} has no pooler and no next-sentence head; initialized from the seed."
    assert note in printed
    printed = finetuned(masked, rows, tmp_path / "classifier", "--pooling", "cls")
    assert f"note: {masked} has no pooler; it was drawn" in printed
    assert "it was drawn" not in finetuned(bare, rows, tmp_path / "another")
    assert "it was drawn" not in finetuned(masked, rows, tmp_path / "mean")
    for name, pooling in {"classifier": "cls", "another": "cls", "mean": "mean"}.items():
        metadata = json.loads((tmp_path / name / "classifier.json").read_text())
        assert metadata["pooling"] == pooling
    assert output_of("fill", masked, "the [MASK] sat").startswith("the ")
    assert f"{bare} has no masked-LM head" in refused("fill", bare, "the [MASK] sat")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "tokenizer.json"])
def test_a_folder_whose_tokenizer_cuts_the_start_is_read_so(name, bert, rows, tmp_path):
    """As `transformers` writes it: in one file, or, once it has truncated a text, in the other."""
    folder = shutil.copytree(bert, tmp_path / "left")
    (folder / "SHA256SUMS").unlink()
    values = json.loads((folder / name).read_bytes())
    if name == "tokenizer.json":
        how = {"direction": "Left", "max_length": 12, "strategy": "LongestFirst", "stride": 0}
        write_json(folder / name, values | {"truncation": how})
    else:
        write_json(folder / name, values | {"truncation_side": "left"})
    model, tokenizer = in_transformers(folder, "AutoModelForSequenceClassification")
    assert tokenizer.truncation_side == "left"
    text = "dog " * 9 + "the cat sat " * 4
    batch = tokenizer(text, truncation=True, return_tensors="pt")
    wanted = model(**batch).logits.softmax(-1).max().item()
    [found] = predict(folder, text)
    assert found.probability == pytest.approx(wanted, abs=1e-6)
    [cut_at_its_end] = predict(bert, text)
    assert found.probability != pytest.approx(cut_at_its_end.probability, abs=1e-6)
    finetuned(folder, rows, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "classifier.json").read_bytes())["truncate"] == "start"


@pytest.mark.parametrize("truncation", [None, True, "x", {}, {"direction": None}])
def test_a_truncation_that_says_nothing_cuts_the_end(truncation, tmp_path):
    write_json(tmp_path / "tokenizer.json", {"truncation": truncation})
    assert side_cut(tmp_path) == "end"


def test_embedding_rows_beyond_the_tokenizer_are_ignored(run, exported, tmp_path):
    """Some models round the vocabulary size up in the config itself."""
    folder = shutil.copytree(exported, tmp_path / "round")
    (folder / "SHA256SUMS").unlink()
    config = BertConfig(**{**TINY.to_dict(), "vocab_size": 64})
    weights = load_weights(latest_checkpoint(run))
    weights["mlm_head.bias"] = torch.nn.functional.pad(
        weights["mlm_head.bias"], (0, 64 - TINY.vocab_size), value=9.0
    )
    save_huggingface(folder, config, weights)
    text = "the [MASK] sat"
    assert output_of("fill", folder, text) == output_of("fill", run, text)


def test_pairs_are_read_if_a_second_column_is_named(bert):
    (alone,) = predict(bert, ["the cat\tsat"])
    (paired,) = predict(bert, ["the cat\tsat"], text_pair="second")
    assert alone.text == paired.text
    assert alone.probability != paired.probability


def test_an_unsuitable_folder_is_refused_in_one_line(
    small_folder, run, classifier, exported, tmp_path
):
    empty = tmp_path / "empty"
    empty.mkdir()
    cased = Tokenizer(TOKENIZER.tokens, Normalization(lowercase=False, strip_accents=False))
    other = write_folder(tmp_path / "other", architecture="BertForPreTraining", tokenizer=cased)
    bare = write_folder(tmp_path / "bare", architecture="BertModel")
    (bare / "vocab.txt").unlink()
    (bare / "tokenizer.json").unlink()
    short = shutil.copytree(exported, tmp_path / "short")
    (short / "SHA256SUMS").unlink()
    config = BertConfig(**{**TINY.to_dict(), "max_position_embeddings": 12})
    save_huggingface(short, config, BertForPretraining(config).state_dict())
    init = ("pretrain", small_folder, "--out", tmp_path / "run", "--from")
    for words, line in (
        ((*init, exported, "--preset=bert-mini"), "has a model of its own; leave --preset"),
        ((*init, other), "(strip_accents False there, True now; lowercase False there, True now)"),
        ((*init, classifier), "is a classifier of `clozeline finetune`; give a run or a"),
        ((*init, short), "has examples of 16 tokens, but the model reads at most 12"),
        ((*init, bare), "has no tokenizer (no tokenizer.json or vocab.txt)"),
        (("predict", run, "x"), "is a pretraining run, not a classifier; make one with `clozelin"),
        (("predict", exported, "x"), "BertForPreTraining, not a BertForSequenceClassification"),
        (("fill", classifier, "[MASK]"), "has no masked-LM head, so it cannot fill masks"),
        (("export", exported, "--out", empty), "in Hugging Face format; give a run or a classif"),
    ):
        assert line in refused(*words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class is 'BertJapaneseTok"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize False"),
        ({"do_lower_case": "yes"}, "do_lower_case is 'yes'; it must be true or false"),
    ],
)
def test_a_tokenizer_other_than_berts_is_refused(exported, tmp_path, values, message):
    folder = shutil.copytree(exported, tmp_path / "folder")
    (folder / "SHA256SUMS").unlink()
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | values))
    assert message in refused("fill", folder, "[MASK]")
