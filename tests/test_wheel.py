"""What is released: one version everywhere, a wheel that works outside the repository, an image."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import spotlessnet

ROOT = Path(__file__).parent.parent
REPOSITORY = "https://example.org/owner/spotlessnet"


def script():
    spec = importlib.util.spec_from_file_location("wheel_script", ROOT / "requirements/wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_version_everywhere():
    version = spotlessnet.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version = {{{version}}}" in (ROOT / "README.md").read_text(encoding="utf-8")
    [first, *_] = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert first == version


def test_classifiers_name_the_versions_that_are_allowed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {c.rsplit(" ", 1)[1] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c)}
    assert named == {"3.11", "3.12", "3.13"}
    assert project["requires-python"] == ">=3.11"


def test_links_of_the_readme_become_absolute():
    text = script().absolute((ROOT / "README.md").read_text(encoding="utf-8"), REPOSITORY, "0.2.0")
    links = re.findall(r"\]\(([^)\s]+)", text)
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    assert f"({REPOSITORY}/raw/v0.2.0/docs/pictures/demo-report.png)" in text
    for name in re.findall(rf"{REPOSITORY}/(?:raw|blob)/v0.2.0/([^)#]+)", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("address", ["", "http://example.org/a/b", "example.org/a", 'https://a/b"\n[tool]'])
def test_an_address_that_is_none_is_refused(tmp_path, address):
    with pytest.raises(SystemExit, match="must be an address such as"):
        script().build(tmp_path, address)


def test_the_image_is_made_as_the_makefile_installs():
    """No engine builds it here, so at least nothing in it may name what is not there."""
    image = (ROOT / "Containerfile").read_text(encoding="utf-8")
    make = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (.+) \S+$", image, re.M):
        assert all((ROOT / name).exists() for name in line.split()), line
    installs = re.findall(r"pip install ([^&\n]+)", image)
    assert len(installs) == 3
    known = {word for line in re.findall(r"pip install (.+)", make) for word in line.split()}
    new = {"--no-cache-dir", ".", "--index-url", "--extra-index-url"}  # a layer keeps no cache, an image no editable
    for line in installs:
        unknown = {word for word in line.split() if not word.startswith("https://")} - known - new
        assert not unknown, unknown
    assert 'ENTRYPOINT ["spotless"]' in image
    assert 'spotless = "spotlessnet.cli:main"' in (ROOT / "pyproject.toml").read_text()
    ignored = (ROOT / ".containerignore").read_text().split()
    assert {"!src", "!requirements", "!pyproject.toml", "!README.md", "!LICENSE", "!constraints.txt"} <= set(ignored)


SCRUB = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Linear(4, 3)

def train():
    torch.manual_seed(1)
    return torch.randn(60, 4), torch.arange(60) % 3
"""


@pytest.mark.slow
def test_the_wheel_works_outside_the_repository(tmp_path):
    wheel = script().build(tmp_path, REPOSITORY)
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        [about] = [packed.read(name).decode() for name in names if name.endswith("METADATA")]
    assert {"spotlessnet/report/page.html", "spotlessnet/report/verdict.schema.json", "spotlessnet/py.typed"} <= set(
        names
    )
    assert f"Project-URL: Repository, {REPOSITORY}\n" in about
    assert "](docs/" not in about
    # An environment that has the dependencies of this one, and no spotlessnet but the wheel's.
    home = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    inside = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(inside)]
    subprocess.run([*command, str(wheel)], check=True)
    (inside / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    here = tmp_path / "elsewhere"
    here.mkdir()
    (here / "net.py").write_text(SCRUB)
    (here / "forget.csv").write_text("row\n0\n1\n")
    around = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}

    def run(*words: str) -> str:
        command = [str(home / "bin/python"), "-m", "spotlessnet", *words]
        ended = subprocess.run(command, cwd=here, env=around, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    where = subprocess.run(
        [str(home / "bin/python"), "-c", "import spotlessnet; print(spotlessnet.__file__)"],
        cwd=here, env=around, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert where.startswith(str(home))
    assert run("--version") == f"{spotlessnet.__version__}\n"
    assert "short-retrain" in run("list")
    write = "import net, spotlessnet as sn; sn.write_weights('w.safetensors', net.build())"
    subprocess.run([str(home / "bin/python"), "-c", write], cwd=here, env=around, check=True)
    given = ("--model", "net.py:build", "--weights", "w.safetensors", "--data", "net.py:train")
    asked = ("--forget", "forget.csv", "--id-column", "row", "--method", "finetune", "--set", "epochs=1")
    run("scrub", *given, *asked, "--accept-damage", "--out", "run")
    assert (here / "run/receipt.json").is_file()
