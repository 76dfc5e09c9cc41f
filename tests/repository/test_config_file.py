"""Options from files (TOML, and what a run or a classifier recorded) and from configs."""

import dataclasses
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner

from clozeline.pipeline.commandline.command import Command, recorded_options
from clozeline.pipeline.commandline.config_options import (
    chosen_fields,
    config_or_usage_error,
    grouped_option,
    key_of,
    option,
    options_of,
    plain_values,
)
from clozeline.pipeline.common.json_files import sealed
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.job.job import JobOptions
from clozeline.train.artifacts.run import read_run
from clozeline.train.cli import InOrder, main
from clozeline.train.finetuning.config import FinetuneConfig
from tests.support.command import output_of
from tests.support.small_data import write_data_set
from tests.support.small_runs import training_config
from tests.support.small_training import assert_same_run, command_line


@click.group(cls=InOrder)
def kitchen():
    """Two commands."""


@dataclass(frozen=True, kw_only=True)
class Meal:
    """Every kind of field there is."""

    guests: int = option(2, "Number of guests.", group="Table")
    heat: float | Literal["auto"] = option("auto", "Heat of the stove.", group="Stove")
    minutes: float | None = option(None, "Cooking time in minutes.", group="Stove")
    for_: str | None = option(None, "Occasion.", group="Table")
    pot_kind: Literal["iron", "clay"] = option("iron", "Kind of pot.", group="Stove")
    herbs: tuple[str, ...] = option(("dill",), "Herbs to add; may be repeated.", group="Table")
    bread: bool = option(False, "Serve bread.", group="Table")
    recipe: Path | None = option(None, "Recipe file.", group="Table")

    def __post_init__(self):
        if self.guests < 1:
            raise ValueError(f"guests is {self.guests}; invite at least one.")


@kitchen.command(cls=Command, example="kitchen cook soup --guests 3")
@click.argument("dishes", nargs=-1, required=True)
@options_of(Meal)
@grouped_option("--out", group="Output")
def cook(dishes, out, **options):
    """Cook."""
    meal = vars(config_or_usage_error(Meal, options))
    found = {"dishes": dishes, "out": out, **meal, "recorded": recorded_options()}
    click.echo(json.dumps(found, default=str))


@kitchen.command(cls=Command, example="kitchen wash")
def wash():
    """Wash."""


def run(*args):
    """What `cook` was called with, or the output instead."""
    result = CliRunner().invoke(kitchen, [str(arg) for arg in args], prog_name="kitchen")
    assert result.exit_code == (2 if result.output.startswith(("Error", "Usage")) else 0), result
    return json.loads(result.output) if result.output.startswith("{") else result.output


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "meal.toml"
    path.write_text(
        '[cook]\ndishes = ["soup"]\nguests = 4\npot-kind = "clay"\nbread = true\n'
        'for = "lunch"\nherbs = ["sage", "mint"]\nheat = 3\n[wash]\n'
    )
    return path


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(file):
    found = run("cook", "--config", file, "--guests", "5", "--no-bread")
    recorded = found.pop("recorded")
    assert found == {
        "dishes": ["soup"], "guests": 5, "heat": 3.0, "minutes": None, "for_": "lunch",
        "pot_kind": "clay", "herbs": ["sage", "mint"], "bread": False, "out": None, "recipe": None,
    }  # fmt: skip
    assert recorded["cook"]["guests"] == 5
    assert run("cook", "salad", "--config", file)["dishes"] == ["salad"]
    assert run("cook", "salad", "--herbs", "dill", "--config", file)["herbs"] == ["dill"]
    file.write_text('dishes = ["soup"]\n')  # without the name of the table
    assert run("cook", "--config", file)["dishes"] == ["soup"]


def test_recorded_options_start_the_same_again(tmp_path):
    found = run("cook", "soup", "--guests", "7", "--out", "here")["recorded"]
    assert "out" not in found["cook"]
    path = tmp_path / "meal.json"
    give = "give a file that `clozeline pretrain` or `clozeline finetune` wrote, or a TOML file"
    path.write_text(json.dumps(sealed({"size": 1, "options": found})))
    assert run("cook", "--config", path)["recorded"] == found
    path.write_text(path.read_text().replace("7", "8"))
    assert run("cook", "--config", path) == (
        f"Error: {path} cannot be read (its content has changed since it was written); {give}.\n"
    )
    path.write_text(json.dumps({"options": {"wash": {}}}))
    assert run("cook", "soup", "--config", path) == (
        f"Error: {path} has options of `clozeline wash`, none of `clozeline cook`; give another "
        "file.\n"
    )
    path.write_text("{}")
    assert f"{path} cannot be read (it has no 'options'); {give}." in run("cook", "--config", path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gests = 3", "gests is not an option of `clozeline cook`; did you mean guests?"),
        ("config = 3", "config is not an option of `clozeline cook`."),
        ("guests = 3.5", "guests: '3.5' is not a valid integer."),
        ("guests = true", "guests: 'True' is not a valid integer."),
        ("guests = {a = 1}", "[guests] is not a command."),
        ("[cook]\nguests = {a = 1}", "guests is {'a': 1}; give one value."),
        ("bread = 5", "bread: '5' is not a valid boolean."),
        ("minutes = true", "minutes: 'True' is not a valid float."),
        ("heat = [1]", "heat is [1]; give one value."),
        ('heat = "warm"', "heat: 'warm' is not a float or auto."),
        ('pot_kind = "iorn"', "pot_kind: 'iorn' is not one of 'iron', 'clay'."),
        ('herbs = "dill"', "herbs is dill; give a list."),
        ("herbs = [[1]]", "herbs is [[1]]; give a list."),
        ("[cok]\nguests = 1", "[cok] is not a command; did you mean cook?"),
        ("[wash]", "has options of `clozeline wash`, none of `clozeline cook`; add a table [cook]"),
        ("guests 3", "cannot be read as TOML (Expected '=' after a key"),
        ("guests = 3\nguests = 4", "cannot be read as TOML (Cannot overwrite a value"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line_with_file_key_and_what_is_valid(file, text, message):
    file.write_text(text)
    found = run("cook", "soup", "--config", file)
    assert found.startswith(f"Error: {file}")
    assert message in found
    assert found.count("\n") == 1


#: Tried in turn for an option that is neither a choice nor a flag, until one is accepted.
VALUES = ("7", "0.25", "true", "10s", "10KB", "auto", "a 'q' \"x\" \\ ü\n", "text")


def values_of(name, *line):
    """What a command would record of these options; None where they are refused."""
    arguments = ["A" for param in main.commands[name].params if isinstance(param, click.Argument)]
    group = click.Context(main, info_name="clozeline")
    try:
        context = main.commands[name].make_context(name, [*arguments, *line], parent=group)
    except click.ClickException:
        return None
    with context:
        return plain_values(context)


@pytest.mark.parametrize("name", sorted(main.commands))
def test_what_a_command_records_of_an_option_is_read_back(name, tmp_path):
    file = tmp_path / "options.json"
    options = [
        param
        for param in main.commands[name].params
        if isinstance(param, click.Option) and param.expose_value and param.name != "config"
    ]
    keys = [key_of(param) for param in main.commands[name].params if param.expose_value]
    assert len(set(keys)) == len(keys)
    needed = [word for option in options if option.required for word in (option.opts[0], "a b")]
    before, differing = values_of(name, *needed), set()
    for each in options:
        choices = getattr(each.type, "choices", None)
        values = [[]] if each.is_flag else [[value] for value in choices or VALUES]
        lines = ([*needed, each.opts[0], *value] for value in reversed(values))
        for found in filter(None, (values_of(name, *line) for line in lines)):
            file.write_text(json.dumps({"options": {name: found}}))
            assert values_of(name, "--config", str(file)) == found
            differing |= {each.name} if found != before else set()
            break
    assert len(differing) > len(options) / 2  # values were given, not refused


def test_the_file_of_a_run_starts_the_same_run(tmp_path):
    shards = write_data_set(tmp_path / "shards", train=(32,), validation=(8,))
    output_of(*command_line(shards, tmp_path / "run", max_steps=3, seed=5), "--dropout=0.3")
    recorded = json.loads((tmp_path / "run/run.json").read_bytes())["options"]["pretrain"]
    assert recorded["learning_rate"] == read_run(tmp_path / "run").training.learning_rate
    assert recorded["shards"] == str(shards)
    assert not {"out", "resume", "overwrite"} & set(recorded)
    again = ("pretrain", "--config", tmp_path / "run/run.json", "--out")
    output_of(*again, tmp_path / "again")
    assert_same_run(tmp_path / "again", tmp_path / "run")
    assert read_run(tmp_path / "again") == read_run(tmp_path / "run")
    output_of("pretrain", shards, "--out", tmp_path / "timed", "--preset=bert-tiny", "--for=1s")
    output_of("pretrain", "--config", tmp_path / "timed/run.json", "--out", "x", "--print-recipe")
    output_of(*again, tmp_path / "other", "--seed=6")
    assert read_run(tmp_path / "other").training.seed == 6


def test_folders_of_a_file_may_be_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tokenizer.toml"
    file.write_text(
        'out = "~/tokenizer"\nsources = ["sample:articles?size=20KB"]\nvocab_size = 200'
    )
    output_of("tokenizer", "--config", file)
    assert (tmp_path / "home/tokenizer/tokenizer.json").is_file()
    assert not (tmp_path / "~").exists()
    run = output_of("fill", "~/run", "[MASK]", code=2)
    assert run == f"Error: {tmp_path}/home/run does not exist; check the path.\n"


# --- Options from configs: default, type and help text of a field are written once ----------------


def test_help_shows_types_and_defaults():
    text = CliRunner().invoke(kitchen, ["cook", "--help"], env={"COLUMNS": "100"}).output
    for name, default in (("--heat FLOAT|AUTO", "auto"), ("--herbs TEXT", "dill")):
        assert re.search(rf"{re.escape(name)} .*\[default: {default}\]", text)
    assert re.search(r"--pot-kind \[iron\|clay\] +Kind of pot\.", text)


def test_each_kind_of_field_can_be_given():
    line = ("--guests", 5, "--heat", 2.5, "--minutes", 3, "--for", "birthday", "--pot-kind", "clay")
    more = ("--herbs", "sage", "--herbs", "chive", "--bread", "--recipe", "a/b.txt")
    found = run("cook", "soup", *line, *more)
    del found["recorded"]
    assert found == {
        "dishes": ["soup"], "guests": 5, "heat": 2.5, "minutes": 3.0, "for_": "birthday",
        "pot_kind": "clay", "herbs": ["sage", "chive"], "bread": True, "out": None,
        "recipe": "a/b.txt",
    }  # fmt: skip


def test_what_a_config_refuses_is_a_usage_error_with_its_message():
    assert "Error: --guests is 0; invite at least one.\n" in run("cook", "soup", "--guests", 0)


@pytest.mark.parametrize(
    "expected", [DataConfig(), JobOptions(), training_config(), FinetuneConfig()], ids=type
)
def test_every_field_of_our_configs_is_an_option_with_its_default_and_help(expected):
    config = type(expected)

    @click.command()
    @options_of(config)
    def command(**options):
        chosen = {name: getattr(expected, name) for name in chosen_fields(config)}
        assert all(options[name] is None for name in chosen)  # until it is given
        assert config_or_usage_error(config, options | chosen) == expected

    assert CliRunner().invoke(command, [], catch_exceptions=False).exit_code == 0
    by_name = {made.name: made for made in command.params}
    assert list(by_name) == [field.name for field in dataclasses.fields(config)]
    if chosen := chosen_fields(config):
        with pytest.raises(TypeError, match=chosen[0]):
            config()
    for field in dataclasses.fields(config):
        made = by_name[field.name]
        assert made.help[0].isupper() or made.help[0] == "`"
        assert made.help.endswith(".")
        assert made.show_default or field.default in ("", dataclasses.MISSING)
        assert made.opts == ["--" + field.name.rstrip("_").replace("_", "-")]
