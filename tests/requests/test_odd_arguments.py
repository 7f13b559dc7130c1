"""`sn.unlearn` with arguments that cannot be meant: one sentence that names the argument, before any work."""

import json
import re
import subprocess
import sys

import pytest

CASES = {
    "integer mask": (
        "unlearn(forget=torch.tensor([1, 0, 1] * 10))",
        "`forget` must hold each row .*mask.bool",
    ),
    "duplicates": ("unlearn(forget=[4, 7, 4])", "`forget` must hold each row number once, but holds 4 more than once"),
    "bytes": ("unlearn(forget=b'ab')", "`forget` must be row numbers.* but got bytes"),
    "number as method": ("unlearn(method=3)", r"`method` must be a method such as .* but got 3 \(int\)"),
    "class as method": ("unlearn(method=sn.NTK)", r"`method` must be a method, but got its class. Give `sn.NTK\(\)`"),
    "no method": ("unlearn(method='')", "`method` must be a method"),
    "settings": ("unlearn(settings=[1])", "`settings` must be a mapping"),
    "text as nats": ("unlearn(max_nats='1')", "`max_nats` must be a number, but got '1'"),
    "number as audit": ("unlearn(audit=3)", r"`audit` must be True, False or .*`sn.Audit\(seeds=5\)`"),
    "out": ("unlearn(out=5)", "`out` must be the path"),
    "statistics": ("unlearn(statistics=5)", "`statistics` must be what `sn.precompute` gave"),
    "fold models": ("unlearn(fold_models=5)", "`fold_models` must be what"),
    "reference": ("unlearn(reference=5)", "`reference` must be"),
    "recipe": ("unlearn(recipe={})", "`recipe` must be a `sn.Recipe`"),
    "init": ("unlearn(init=5)", "`init` must be"),
    "trainer": ("unlearn(trainer=5)", "`trainer` must be a function"),
    "say": ("unlearn(say=None)", "`say` must be a function, but got None"),
    "iterator of ids": ("unlearn(ids=iter(range(30)))", "`ids` must be a list"),
    "fraction as seed": ("unlearn(seed=1.5)", "`seed` must be a whole number, but got 1.5"),
    "truth as seed": ("unlearn(seed=True)", "`seed` must be a whole number, but got True"),
    "resume": ("unlearn(resume=True)", "`out` does not name one"),
    "betas": ("sn.Recipe(betas='ab')", "`Recipe.betas` must be two numbers"),
    "letters as betas": ("sn.Recipe(betas=('a', 'b'))", r"`Recipe.betas\[0\]` must be in"),
    "recipe of a record": ("sn.record('run', model, (x, y), recipe={})", "`recipe` must be a `sn.Recipe`"),
    "seed of a record": ("sn.record('run', model, (x, y), seed='one')", "`seed` must be a whole number"),
    "module of a record": ("sn.record('run', 'nets.py:build', (x, y))", "`model` must be a torch module"),
    "rate": ("sn.Recipe(lr='fast')", "`Recipe.lr` must be positive, but got fast"),
}

# In a process of its own: these tests check types at every call, which would speak first.
SCRIPT = """
import json, sys
import torch
import spotlessnet as sn
import spotlessnet.requests.unlearning as module

def serve(*args, **kwargs):
    raise AssertionError("the work began")

module.serve = serve
x, y = torch.randn(30, 4), torch.arange(30) % 3
model = torch.nn.Linear(4, 3)

def unlearn(**odd):
    return sn.unlearn(torch.nn.Linear(4, 3), (x, y), **{"forget": [1], **odd})

told = {}
for name, code in json.load(sys.stdin).items():
    try:
        eval(code)
        told[name] = "nothing was raised"
    except Exception as e:
        told[name] = f"{isinstance(e, sn.SpotlessError)} {type(e).__name__}: {e}"
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    codes = json.dumps({name: code for name, (code, _) in CASES.items()})
    ended = subprocess.run([sys.executable, "-c", SCRIPT], input=codes, capture_output=True, text=True, check=True)
    return json.loads(ended.stdout)


@pytest.mark.parametrize("name", CASES)
def test_is_refused_in_one_sentence(told, name):
    assert re.match(r"True (SettingError|NeedError): ", told[name]), told[name]
    assert re.search(CASES[name][1], told[name]), told[name]
