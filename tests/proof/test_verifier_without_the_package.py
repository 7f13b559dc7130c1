"""`docs/verify_receipt.py`, which shares no code with the package, agrees with it on good and changed bundles."""

import ast
import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("sqlalchemy")

from spotlessnet.core.errors import DataError, IntegrityError
from spotlessnet.proof import dsse, ledger
from spotlessnet.proof.bundle import bundle, verify_bundle, write_bundle
from spotlessnet.proof.keys import PublicKeys, SigningKey
from spotlessnet.proof.spelling import as_bytes
from tests.proof.ledgers import filled, opened, receipt
from tests.proof.tampering import changed_bundle, changed_bytes

FILE = Path(__file__).parents[2] / "docs" / "verify_receipt.py"
KEYS = [SigningKey.new() for _ in range(3)]


@pytest.fixture(scope="module")
def verifier():
    spec = importlib.util.spec_from_file_location("verify_receipt", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Of each key's receipt, under the first tree head that has it and under the last."""
    engine = opened(tmp_path_factory.mktemp("bundles") / "ledger.db")
    key, found = KEYS[0], []
    filled(engine, key, 2)
    with ledger.writing(engine) as connection:
        for number, following in enumerate([*KEYS[1:], None]):
            found.append(ledger.append(connection, dsse.sign(receipt(number), [key]), key))
            if following is not None:
                ledger.rotate(connection, key, following)
                key = following
        early = {**bundle(connection, found[0], found[0] + 1), "rotations": []}
        return [*(bundle(connection, index) for index in found), early]


def test_it_is_short_and_needs_nothing_of_ours():
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    outside = {name.partition(".")[0] for name in found} - set(sys.stdlib_module_names)
    assert outside == {"cryptography"}


@pytest.mark.parametrize("trusted", range(3))
def test_it_believes_what_the_package_believes(verifier, bundles, trusted):
    pem = KEYS[trusted].public.pem.encode()
    for made in bundles[:3]:
        proven = verify_bundle(made, PublicKeys([KEYS[trusted].public]))
        told, index, head = verifier.check(made, pem)
        assert (told, index, head["root"]) == (proven.receipt, proven.index, proven.head.root.hex())
    assert verifier.check(bundles[3], KEYS[0].public.pem.encode())[1] == 2


def agrees(verifier, made, trusted: SigningKey) -> bool:
    """Whether both refuse, or both believe; gives which."""
    try:
        verify_bundle(made, PublicKeys([trusted.public]))
        ours = True
    except (DataError, IntegrityError):
        ours = False
    try:
        verifier.check(made, trusted.public.pem.encode())
        theirs = True
    except Exception:
        theirs = False
    assert ours == theirs
    return ours


def test_it_refuses_what_the_package_refuses(verifier, bundles):
    rng = random.Random(7)
    for number in range(150):
        made = bundles[number % 4]
        try:
            changed = changed_bundle(as_bytes(made), rng)
        except DataError:
            continue  # no JSON any more
        assert not agrees(verifier, changed, KEYS[0])
    for made in bundles:
        assert not agrees(verifier, made, SigningKey.new())
    no_lists: tuple[object, ...] = ("", {})
    for no_list in no_lists:
        assert not agrees(verifier, {**bundles[3], "rotations": no_list}, KEYS[0])
    old = dsse.taken_apart(bundles[0]["head"])
    forged = {**bundles[0], "head": dsse.sign(old.payload, [KEYS[0]], old.kind)}
    assert not agrees(verifier, forged, KEYS[0])
    assert not agrees(verifier, {**bundles[2], "rotations": bundles[2]["rotations"][::-1]}, KEYS[0])
    assert not agrees(verifier, {**bundles[2], "rotations": bundles[2]["rotations"][:1]}, KEYS[0])


def test_it_is_run_as_the_page_says(bundles, tmp_path):
    write_bundle(tmp_path / "receipt.bundle.json", bundles[1])
    (tmp_path / "ledger.pub").write_text(KEYS[0].public.pem)

    def run() -> subprocess.CompletedProcess[str]:
        given = [sys.executable, "-I", str(FILE), "receipt.bundle.json", "ledger.pub"]
        return subprocess.run(given, capture_output=True, text=True, cwd=tmp_path, check=False)

    ended = run()
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["predicate"]["method"] == "retrain"
    assert ended.stderr.startswith("signed, and entry 4 of 7 in ledger ")
    changed = changed_bytes((tmp_path / "receipt.bundle.json").read_bytes(), random.Random(1))
    (tmp_path / "receipt.bundle.json").write_bytes(changed)
    ended = run()
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("refused: ")
