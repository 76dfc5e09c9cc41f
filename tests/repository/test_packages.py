"""Without the packages of the extras, every command works or names its extra in one line."""

import json
import tomllib

import pytest

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.packages import EXTRAS
from tests.support.small import PUNKT, small_tokenizer
from tests.support.small_classifier import write_small_classifier
from tests.support.small_data import write_data_set
from tests.support.small_jobs import ROOT, python
from tests.support.small_runs import one_layer, write_small_run

#: Prints exit code and messages of each command line, and what Python functions raise.
BLOCKED = f"""
import json, sys
sys.modules.update(dict.fromkeys({list(EXTRAS)}))
from click.testing import CliRunner
from clozeline.train.cli import main
done = [CliRunner().invoke(main, line.split()) for line in sys.argv[1:]]
import clozeline
from clozeline import InputError
calls = (
    lambda: clozeline.make_tokenizer("sample:articles", out="a", vocab_size=500),
    lambda: clozeline.build_shards("sample:articles", tokenizer="a", out="b"),
    lambda: list(clozeline.verify("b", "sample:articles")),
)
raised = []
for call in calls:
    try:
        call()
    except InputError as error:
        raised.append(str(error))
print(json.dumps([*((each.exit_code, each.stderr) for each in done), raised]))
"""
#: Command lines, and the extra that each needs; {} is a folder with the files below.
LINES = {
    "tokenizer {}/a.txt --vocab-size 500 --out {}/tokenizer": "pipeline",
    "shards {}/a.txt --tokenizer {}/shards/tokenizer --out {}/more": "pipeline",
    "shards hf://imdb --tokenizer {}/shards/tokenizer --out {}/more": "pipeline",
    "verify {}/shards --source {}/a.txt": "pipeline",
    "inspect {}/shards": None,
    "report {}/shards": "pipeline",
    "view {}/shards": "pipeline",
    "pretrain {}/shards --preset bert-tiny --out {}/new --track wandb": "wandb",
    "baseline {}/a.csv --test {}/a.csv": "baseline",
    "predict {}/classifier cat": None,
    "export {}/run --format onnx --out {}/onnx": "onnx",
}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    tokenizer = small_tokenizer(PUNKT)
    write_data_set(folder / "shards", train=(20,), tokenizer=tokenizer)
    write_small_classifier(folder / "classifier")
    model = BertForPretraining(one_layer(tokenizer, positions=16), seed=0)
    write_small_run(folder / "run", model, tokenizer, max_seq_length=16)
    (folder / "a.txt").write_text("The cat sat on the mat, and then it slept.\n")
    (folder / "a.csv").write_text("text,label\n" + "the cat,1\na dog,0\n" * 20)
    return folder


def test_a_missing_package_is_one_line_with_its_extra(work):
    lines = [line.replace("{}", str(work)) for line in LINES]
    *printed, raised = json.loads(python("-c", BLOCKED, *lines))
    ending = "which is not installed; run `pip install 'clozeline[{}]'`."
    assert [text.endswith(ending.format("pipeline")) for text in raised] == [True] * 3, raised
    for (code, said), (line, extra) in zip(printed, LINES.items(), strict=True):
        assert code == (2 if extra else 0), (line, said)
        if extra:
            last = said.splitlines()[-1]
            assert last.startswith("Error: "), line
            assert last.endswith(ending.format(extra))


def test_the_extras_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = {"sklearn": "scikit-learn", "mlflow": "mlflow-skinny"}
    for package, extra in EXTRAS.items():
        names = [entry.partition(">")[0] for entry in extras[extra]]
        assert named.get(package, package.replace("_", "-")) in names, package
