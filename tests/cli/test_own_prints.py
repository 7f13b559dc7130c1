"""What a person's own code prints is talk: stdout is for results alone, or `--json` could not be read."""

import json
from pathlib import Path

from tests.cli.workshop import BASE, QUICK, spotless


def test_prints_of_own_code_do_not_mix_with_results(here):
    Path("mydata.py").write_text(Path("mydata.py").read_text().replace("    return some(0, 60)", LOUD))
    ended = spotless("scrub", *BASE, *QUICK, "--dry-run", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["status"] == "planned"
    assert "epoch 1: loss 0.5\n" in ended.err
    plain = spotless("scrub", *BASE, *QUICK, "--out", "run").out
    assert plain.split() == ["run/scrubbed.safetensors", "run/receipt.json"]


LOUD = "    print('epoch 1: loss 0.5')\n    return some(0, 60)"
