"""Every dependency has one version, in one place, with digests; the lowest versions allowed are known to be sound."""

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

SOUND = {
    "torch": "2.10",
    "pillow": "12.2",
    "jinja2": "3.1.6",
    "scikit-learn": "1.5",
    "transformers": "4.53",
    "cryptography": "46.0.5",
}
"""The first version of each without a vulnerability known when this was written."""


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in found}


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = [re.match(r"(\S+)==(\S+)", line) for line in lines]
    assert all(found)
    return {m[1]: (m[2], re.findall(r"--hash=sha256:([0-9a-f]{64})", m.string)) for m in found if m}


def closure(texts: list[str]) -> set[str]:
    """Everything that these requirements bring in here."""
    found: dict[str, set[str]] = {}
    left = [Requirement(text) for text in texts]
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        if name == "spotlessnet" or (name in found and one.extras <= found[name]):
            left += [
                Requirement(t)
                for e in (one.extras if name == "spotlessnet" else ())
                for t in PROJECT["project"]["optional-dependencies"][e]
            ]
            continue
        found[name] = found.get(name, set()) | one.extras
        for text in requires(name) or []:
            other = Requirement(text)
            asked = found[name] | {""}
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in asked):
                left.append(other)
    return set(found)


@pytest.mark.parametrize(("lock", "extra"), [("run.lock", None), ("serve.lock", "serve"), ("dev.lock", "dev")])
def test_a_lock_holds_everything_at_the_version_that_was_tested_with_digests(lock, extra):
    known, held = constraints(), locked(lock)
    texts = PROJECT["project"]["dependencies"] + (PROJECT["project"]["optional-dependencies"][extra] if extra else [])
    wanted = closure(texts)
    assert wanted - known.keys() == set(), "not in constraints.txt"
    assert wanted - held.keys() == {"torch"}
    assert all(known[name] == version and digests for name, (version, digests) in held.items())
    if extra == "dev":
        assert held.keys() == known.keys() - {"torch"}


def test_the_build_backend_is_the_one_that_is_locked():
    [backend] = PROJECT["build-system"]["requires"]
    assert backend == f"setuptools=={constraints()['setuptools']}"
    assert locked("run.lock")["setuptools"][0] == constraints()["setuptools"]


def test_no_version_with_a_known_vulnerability_is_allowed():
    groups = PROJECT["project"]["optional-dependencies"].values()
    texts = [*PROJECT["project"]["dependencies"], *(text for group in groups for text in group)]
    allowed = {str(canonicalize_name(r.name)): r.specifier for r in map(Requirement, texts)}
    for name, least in SOUND.items():
        below = Version(f"{least}.dev0")
        assert not allowed[name].contains(below, prereleases=True), name
        assert Version(constraints()[name]) >= Version(least)
        assert allowed[name].contains(constraints()[name])
