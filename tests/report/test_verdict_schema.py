"""`verdict.json` is what its JSON Schema says; the schema refuses what is not."""

import json
import math
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, get_args

import pytest

from spotlessnet.auditing.verdict import Check, Checks, Outcome, State
from spotlessnet.report.exports import as_verdict, verdict_schema
from spotlessnet.store.schema import VERDICT_SCHEMA, WORDS
from tests.report.example import report

TYPES: dict[str, Any] = {"object": dict, "string": str, "integer": int, "number": (int, float)}
WORDLESS = {"$schema", "$id", "$defs", "title", "description"}


def faults(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$") -> list[str]:
    """A validator for the words that the schema uses; one that it does not know is an error, not a pass."""
    schema = {**schema, **root["$defs"][schema["$ref"].rsplit("/", 1)[1]]} if "$ref" in schema else schema
    rules = {name: rule for name, rule in schema.items() if name not in {*WORDLESS, "$ref"}}
    assert set(rules) <= {
        "type", "const", "enum", "anyOf", "minimum", "required", "properties", "additionalProperties",
    }, rules  # fmt: skip
    found = []
    if "type" in rules and (not isinstance(value, TYPES[rules["type"]]) or isinstance(value, bool)):
        return [f"{at} must be of type {rules['type']}"]
    if ("const" in rules and value != rules["const"]) or ("enum" in rules and value not in rules["enum"]):
        found.append(f"{at} has no such value: {value}")
    if "anyOf" in rules and all(faults(value, one, root, at) for one in rules["anyOf"]):
        found.append(f"{at} is none of what it may be: {value}")
    if "minimum" in rules and value < rules["minimum"]:
        found.append(f"{at} is too small")
    found += [f"{at}.{name} is missing" for name in rules.get("required", ()) if name not in value]
    for name, inner in value.items() if "properties" in rules or "additionalProperties" in rules else ():
        rule = rules.get("properties", {}).get(name, rules.get("additionalProperties", True))
        if rule is False:
            found.append(f"{at}.{name} is not expected")
        elif isinstance(rule, dict):
            found += faults(inner, rule, root, f"{at}.{name}")
    return found


SCHEMA = json.loads(verdict_schema())


def valid(text: str) -> dict[str, Any]:
    told = json.loads(text)
    assert faults(told, SCHEMA, SCHEMA) == []
    if find_spec("jsonschema"):  # the field's own validator, where it is installed
        __import__("jsonschema").Draft202012Validator(SCHEMA).validate(told)
    return told


@pytest.mark.parametrize("word", get_args(Outcome))
def test_every_verdict_is_as_the_schema_says(word):
    told = valid(as_verdict(replace(report(word), header={"request": "ab" * 32, "network": "MLP, 4,810 weights"})))
    assert (told["verdict"], told["method"], told["header"]["request"]) == (word, "NTK", "ab" * 32)


def test_without_a_verdict_and_with_numbers_that_json_does_not_know():
    assert valid(as_verdict(replace(report(), verdict=None)))["verdict"] == "not judged"
    told = report()
    assert told.verdict is not None
    odd = Checks([Check("rows", "same", math.inf, math.nan, -math.inf, math.nan)])
    rows = valid(as_verdict(replace(told, verdict=replace(told.verdict, checks=odd))))["checks"]["rows"]
    assert rows == {"name": "rows", "state": "same"}


def test_the_schema_knows_the_words_of_the_package():
    words = SCHEMA["properties"]["verdict"]["enum"]
    assert sorted(words) == sorted(WORDS)
    assert sorted(SCHEMA["$defs"]["outcome"]["enum"]) == sorted(get_args(Outcome))
    assert SCHEMA["$defs"]["check"]["properties"]["state"]["enum"] == list(get_args(State))
    assert SCHEMA["properties"]["schema"]["const"] == VERDICT_SCHEMA


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.pop("verdict"),
        lambda told: told.update(verdict="perfect"),
        lambda told: told.update(schema=1),
        lambda told: told.update(seeds=0),
        lambda told: told.update(person="alice"),
        lambda told: told["checks"]["remembered share"].pop("state"),
        lambda told: told["checks"]["remembered share"].update(value=0.3),
        lambda told: told["checks"]["remembered share"].update(state="fine"),
    ],
)
def test_the_schema_refuses_what_is_wrong(change):
    told = json.loads(as_verdict(report()))
    change(told)
    assert faults(told, SCHEMA, SCHEMA) != []
