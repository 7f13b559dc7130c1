"""Benchmark scripts share their flags, and none reads a flag that it does not have."""

import ast
import importlib
from pathlib import Path

import pytest
from benchmarks.common import Flags, Place, command

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if "def flags()" in path.read_text(encoding="utf-8"))
GIVEN = ("given", "options", "args")
"""What scripts call the flags that were given."""


def read_of_flags(script: str) -> set[str]:
    """Attributes of a plain name for the flags, and of a run that keeps them (`run.args.x`)."""
    tree = ast.parse((FOLDER / f"{script}.py").read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if name in GIVEN:
                found.add(node.attr)
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_reads_only_flags_that_it_has(script):
    """Renamed flags once left `large.py` reading `options.parts`, which broke it on its first line of work."""
    flags = importlib.import_module(f"benchmarks.{script}").flags()
    has = {action.dest for action in flags._actions} | set(flags._defaults)
    also = {"folds", "repeats"} if script == "large_trials" else set()  # set from `--kind`
    assert read_of_flags(script) - has - also == set()


@pytest.mark.parametrize("script", SCRIPTS)
def test_flags_have_the_commands_names_and_no_old_ones(script):
    flags = importlib.import_module(f"benchmarks.{script}").flags()
    names = {name for action in flags._actions for name in action.option_strings}
    assert not names & {"--parts-of", "--divisions", "--decay", "--rate", "--batch", "--memory", "--tutors"}
    assert all(" " not in name and "_" not in name for name in names)


@pytest.mark.parametrize(
    ("words", "seeds"),
    [
        ([], [0, 1, 2]),
        (["--seeds", "5"], [0, 1, 2, 3, 4]),
        (["--seeds", "10", "11"], [10, 11]),
        (["--seed", "7"], [7]),
        (["--seed", "0", "--seed", "3"], [0, 3]),
    ],
)
def test_seeds_are_counted_or_named(words, seeds):
    assert Flags("").seeds(range(3)).parse_args(words).seeds == seeds


def test_a_table_is_put_between_its_own_marks():
    marks = [Place.of(name) for name in "xy"]
    page = "".join(f"{name}\n{place.begin}\nold {name}\n{place.end}\n" for name, place in zip("ab", marks, strict=True))
    filled = Place.of("x").fill(page, "new\n")
    assert filled == page.replace("\nold a\n", "\n\nnew\n\n")
    assert Place.of("x").fill(filled, "new") == filled
    assert "old b" in filled
    assert "\n\nmine\n\n<!-- end -->\n" in Place.of("y").fill(page, "mine")


def test_the_command_is_recorded_without_the_folder():
    words = ["run", "--data=/a/b", "--rank", "3"]
    assert command("large", words) == "python benchmarks/large.py run --data=DIR --rank 3"
