"""Options from configs: each field once, with its default and its own words."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner

from pipeline.common.config_options import config_or_usage_error, options_of
from pipeline.config import DataConfig
from pipeline.job.job import JobOptions


@dataclass(frozen=True, kw_only=True)
class Meal:
    """Every kind of field there is."""

    #: How many eat.
    guests: int = 2
    #: Of a spoon, in centimetres;
    #: long comments go on.
    spoon_length: float = 17.5
    #: What is served.
    dish: Literal["soup", "salad"] = "soup"
    #: What goes in, once for each.
    herbs: tuple[str, ...] = ("dill", "mint")
    #: Whether there is bread.
    bread: bool = False
    #: Where the recipe is; not given: in the head.
    recipe: Path | None = None
    #: Minutes of cooking; not given: until it is done.
    minutes: int | None = None

    def __post_init__(self) -> None:
        if self.guests < 1:
            raise ValueError(f"guests is {self.guests}; invite somebody.")


def run(*args):
    """What the options make of a command line: the config, or what is said instead."""
    seen = []

    @click.command()
    @options_of(Meal)
    def cook(**options):
        seen.append(config_or_usage_error(Meal, options))

    result = CliRunner().invoke(cook, args)
    return (seen[0] if seen else result.output), result.exit_code


def test_help_tells_defaults_and_comments():
    text, _ = run("--help")
    assert text == (
        "Usage: cook [OPTIONS]\n"
        "\n"
        "Options:\n"
        "  --guests INTEGER      How many eat.  [default: 2]\n"
        "  --spoon-length FLOAT  Of a spoon, in centimetres; long comments go on.\n"
        "                        [default: 17.5]\n"
        "  --dish [soup|salad]   What is served.  [default: soup]\n"
        "  --herbs TEXT          What goes in, once for each.  [default: dill, mint]\n"
        "  --bread / --no-bread  Whether there is bread.  [default: no-bread]\n"
        "  --recipe PATH         Where the recipe is; not given: in the head.\n"
        "  --minutes INTEGER     Minutes of cooking; not given: until it is done.\n"
        "  --help                Show this message and exit.\n"
    )


def test_nothing_given_is_the_config_itself():
    assert run() == (Meal(), 0)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--guests", "5"], Meal(guests=5)),
        (["--spoon-length", "3"], Meal(spoon_length=3.0)),
        (["--dish", "salad"], Meal(dish="salad")),
        (["--herbs", "sage"], Meal(herbs=("sage",))),
        (["--herbs", "sage", "--herbs", "chive"], Meal(herbs=("sage", "chive"))),
        (["--bread"], Meal(bread=True)),
        (["--bread", "--no-bread"], Meal()),
        (["--recipe", "a/b.txt"], Meal(recipe=Path("a/b.txt"))),
        (["--minutes", "9"], Meal(minutes=9)),
    ],
)
def test_each_kind_of_field_can_be_given(args, expected):
    assert run(*args) == (expected, 0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--guests", "0"], "Error: guests is 0; invite somebody."),
        (["--guests", "many"], "'many' is not a valid integer"),
        (["--dish", "pie"], "'pie' is not one of 'soup', 'salad'"),
        (["--desk"], "No such option"),
    ],
)
def test_a_bad_value_is_a_usage_error_in_the_words_of_the_config(args, message):
    text, code = run(*args)
    assert code == 2
    assert message in text
    assert "Traceback" not in text


def test_what_belongs_to_another_config_is_left_to_it():
    assert config_or_usage_error(Meal, {"guests": 3, "workers": 1}) == Meal(guests=3)


@pytest.mark.parametrize("config", [DataConfig, JobOptions])
def test_every_field_of_our_configs_is_an_option_with_its_default_and_help(config):
    @click.command()
    @options_of(config)
    def command(**options):
        assert config_or_usage_error(config, options) == config()

    assert CliRunner().invoke(command, []).exit_code == 0
    by_name = {option.name: option for option in command.params}
    assert list(by_name) == [field.name for field in dataclasses.fields(config)]
    for field in dataclasses.fields(config):
        option = by_name[field.name]
        assert option.help, f"{field.name} has no #: comment"
        assert option.help.endswith(".")
        assert option.show_default
        assert option.opts == ["--" + field.name.replace("_", "-")]


def test_the_comment_is_the_help():
    @click.command()
    @options_of(DataConfig)
    def command(**options):
        pass

    [option] = [option for option in command.params if option.name == "max_seq_length"]
    assert option.help == "Tokens of an example at most, [CLS] and [SEP] counted."
    assert option.default == 128
