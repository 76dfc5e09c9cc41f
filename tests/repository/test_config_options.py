"""Options from configs: default, type and help text of a field are written once."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner

from clozeline.pipeline.commandline.config_options import (
    chosen_fields,
    chosen_option,
    config_or_usage_error,
    option,
    options_of,
)
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.job.options import JobOptions
from clozeline.train.finetuning.config import FinetuneConfig
from tests.support.training_configs import training_config


@dataclass(frozen=True, kw_only=True)
class Meal:
    """Every kind of field there is."""

    guests: int = option(2, "Number of guests.", group="Meal")
    spoon_length: float = option(
        17.5,
        "Length of the spoon in centimetres; long help texts wrap to the next line.",
        group="Meal",
    )
    dish: Literal["soup", "salad"] = option("soup", "What to serve.", group="Meal")
    herbs: tuple[str, ...] = option(
        ("dill", "mint"), "Herbs to add; may be repeated.", group="Meal"
    )
    bread: bool = option(False, "Serve bread.", group="Meal")
    recipe: Path | None = option(None, "Recipe file; defaults to none.", group="Meal")
    minutes: int | None = option(None, "Cooking time in minutes.", group="Meal")
    heat: float | Literal["auto"] = option("auto", "Heat of the stove.", group="Meal")
    pot: Literal["iron", "clay"] | None = option(None, "Kind of pot.", group="Meal")
    for_: str | None = option(None, "Occasion.", group="Meal")

    def __post_init__(self):
        if self.guests < 1:
            raise ValueError(f"guests is {self.guests}; invite at least one.")


def run(*args):
    """The config that a command line gives, or the output instead, and the exit code."""
    seen = []

    @click.command()
    @options_of(Meal)
    def cook(**options):
        seen.append(config_or_usage_error(Meal, options))

    result = CliRunner().invoke(cook, args)
    return (seen[0] if seen else result.output), result.exit_code


def test_help_shows_defaults_and_help_texts():
    text, _ = run("--help")
    assert text == (
        "Usage: cook [OPTIONS]\n"
        "\n"
        "Options:\n"
        "  --guests INTEGER      Number of guests.  [default: 2]\n"
        "  --spoon-length FLOAT  Length of the spoon in centimetres; long help texts wrap\n"
        "                        to the next line.  [default: 17.5]\n"
        "  --dish [soup|salad]   What to serve.  [default: soup]\n"
        "  --herbs TEXT          Herbs to add; may be repeated.  [default: dill, mint]\n"
        "  --bread / --no-bread  Serve bread.  [default: no-bread]\n"
        "  --recipe PATH         Recipe file; defaults to none.\n"
        "  --minutes INTEGER     Cooking time in minutes.\n"
        "  --heat FLOAT|AUTO     Heat of the stove.  [default: auto]\n"
        "  --pot [iron|clay]     Kind of pot.\n"
        "  --for TEXT            Occasion.\n"
        "  --help                Show this message and exit.\n"
    )


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], Meal()),
        (["--guests", "5"], Meal(guests=5)),
        (["--spoon-length", "3"], Meal(spoon_length=3.0)),
        (["--dish", "salad"], Meal(dish="salad")),
        (["--herbs", "sage"], Meal(herbs=("sage",))),
        (["--herbs", "sage", "--herbs", "chive"], Meal(herbs=("sage", "chive"))),
        (["--bread"], Meal(bread=True)),
        (["--bread", "--no-bread"], Meal()),
        (["--recipe", "a/b.txt"], Meal(recipe=Path("a/b.txt"))),
        (["--minutes", "9"], Meal(minutes=9)),
        (["--heat", "2.5"], Meal(heat=2.5)),
        (["--heat", "auto"], Meal()),
        (["--pot", "clay"], Meal(pot="clay")),
        (["--for", "birthday"], Meal(for_="birthday")),
    ],
)
def test_each_kind_of_field_can_be_given(args, expected):
    assert run(*args) == (expected, 0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--guests", "0"], "Error: --guests is 0; invite at least one."),
        (["--guests", "many"], "'many' is not a valid integer"),
        (["--heat", "warm"], "'warm' is not a float or auto."),
        (["--dish", "pie"], "'pie' is not one of 'soup', 'salad'"),
        (["--desk"], "No such option"),
    ],
)
def test_a_bad_value_is_a_usage_error_with_the_message_of_the_config(args, message):
    text, code = run(*args)
    assert code == 2
    assert message in text


@dataclass(frozen=True, kw_only=True)
class Drink:
    """A field that the command chooses, and one with a default."""

    sugar: float = chosen_option("the guest's taste", "Grams of sugar.", group="Drink")
    ice: bool = option(False, "Add ice.", group="Drink")


def test_a_field_that_the_command_chooses_is_none_until_it_is_given():
    @click.command()
    @options_of(Drink)
    def pour(**options):
        click.echo(options)

    assert chosen_fields(Drink) == ("sugar",)
    help_text = CliRunner().invoke(pour, ["--help"]).output
    assert "--sugar FLOAT     Grams of sugar.  [default: (the guest's taste)]\n" in help_text
    assert CliRunner().invoke(pour).output == "{'sugar': None, 'ice': False}\n"
    assert CliRunner().invoke(pour, ["--sugar=2"]).output == "{'sugar': 2.0, 'ice': False}\n"
    with pytest.raises(TypeError, match="sugar"):
        Drink()


@pytest.mark.parametrize(
    "expected", [DataConfig(), JobOptions(), training_config(), FinetuneConfig()], ids=type
)
def test_every_field_of_our_configs_is_an_option_with_its_default_and_help(expected):
    config = type(expected)

    @click.command()
    @options_of(config)
    def command(**options):
        chosen = {name: getattr(expected, name) for name in chosen_fields(config)}
        assert {name for name in chosen if options[name] is None} == set(chosen)
        assert config_or_usage_error(config, options | chosen) == expected

    assert CliRunner().invoke(command, [], catch_exceptions=False).exit_code == 0
    by_name = {made.name: made for made in command.params}
    assert list(by_name) == [field.name for field in dataclasses.fields(config)]
    for field in dataclasses.fields(config):
        made = by_name[field.name]
        assert made.help[0].isupper() or made.help[0] == "`"
        assert made.help.endswith(".")
        assert made.show_default or field.default == ""
        assert made.opts == ["--" + field.name.rstrip("_").replace("_", "-")]
