"""Build the wheel from what git tracks: `python requirements/wheel.py dist https://example.org/spotlessnet`.

A package index shows README where none of its relative links lead anywhere, so in the wheel they are absolute, and the
project's addresses are in its metadata. The address is given here: a fork's wheel must not point to another's pages.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#|mailto:)([^)\s]+)\)")


def absolute(text: str, repository: str, version: str) -> str:
    """Markdown whose links lead to the files of a tag.

    >>> absolute("[why](docs/faq.md#why) ![a](b.png) [c](#c)", "https://example.org/r", "1.0")
    '[why](https://example.org/r/blob/v1.0/docs/faq.md#why) ![a](https://example.org/r/raw/v1.0/b.png) [c](#c)'
    """

    def whole(found: re.Match[str]) -> str:
        image, label, target = found.groups()
        return f"{image}{label}({repository}/{'raw' if image else 'blob'}/v{version}/{target})"

    return LINK.sub(whole, text)


def addresses(repository: str) -> str:
    """The table of a project's addresses for pyproject.toml."""
    places = {
        "Repository": repository,
        "Documentation": f"{repository}/tree/main/docs",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    return "\n[project.urls]\n" + "".join(f'{name} = "{place}"\n' for name, place in places.items())


def build(out: Path, repository: str) -> Path:
    """The wheel, built in a copy; nothing here is changed."""
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", repository):
        raise SystemExit(f"The repository must be an address such as https://host/owner/name, but got {repository!r}.")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in filter(None, names.split("\0")):
            if name.startswith("src/") or "/" not in name:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        found = re.search(r'^__version__ = "([^"]+)"', (copy / "src/spotlessnet/__init__.py").read_text(), re.M)
        assert found is not None
        readme, project = copy / "README.md", copy / "pyproject.toml"
        readme.write_text(absolute(readme.read_text(encoding="utf-8"), repository, found[1]), encoding="utf-8")
        with project.open("a", encoding="utf-8") as file:
            file.write(addresses(repository))
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        subprocess.run([*command, "--wheel-dir", str(out.resolve()), "."], cwd=copy, check=True)
    return out / f"spotlessnet-{found[1]}-py3-none-any.whl"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("Give the folder for the wheel and the address of the repository.")
    print(build(Path(sys.argv[1]), sys.argv[2]))
