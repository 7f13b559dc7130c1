"""Write `run.lock`, `serve.lock`, `dev.lock`: versions of constraints.txt with the SHA-256 of every file pip may take.

`make lock` runs it in an environment into which everything was installed; digests come from the package index.
"""

import re
import sys
from html.parser import HTMLParser
from importlib.metadata import requires
from pathlib import Path
from urllib.request import urlopen

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

HERE = Path(__file__).parent
INDEX = "https://pypi.org/simple"

UNLOCKED = {"torch"}
"""Its build differs from machine to machine (CPU, CUDA, ROCm) under one version, and so does its digest."""


class Links(HTMLParser):
    """The files that an index page links to, with their digests."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__()
        self.files: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep links that bear a digest."""
        place, _, digest = (dict(attrs).get("href") or "").partition("#sha256=")
        if tag == "a" and digest:
            self.files[place.rpartition("/")[2]] = digest


def pins() -> dict[str, str]:
    """The version of each package, by its plain name."""
    lines = (HERE.parent / "constraints.txt").read_text().splitlines()
    named = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in named}


def needed(name: str, known: dict[str, str], found: set[str]) -> set[str]:
    """A package and everything that it needs here, without extras."""
    for text in requires(name) or []:
        one = Requirement(text)
        other = canonicalize_name(one.name)
        if other not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            if other not in known:
                sys.exit(f"{other}, which {name} needs, is not in constraints.txt. Add the version that was tested.")
            found.add(other)
            needed(other, known, found)
    return found


def needed_by_extra(name: str, extra: str) -> set[str]:
    """What an extra of a package brings in here, and what is brought in by that, with the extras that it asks for."""
    found: set[str] = set()
    left = {(name, extra)}
    seen = set(left)
    while left:
        package, asked = left.pop()
        for one in (Requirement(text) for text in requires(package) or []):
            if one.marker is not None and not one.marker.evaluate({"extra": asked}):
                continue
            other = canonicalize_name(one.name)
            found.add(other)
            left |= {(other, more) for more in ("", *one.extras)} - seen
            seen |= left
    return found


def files_of(name: str, version: str) -> list[str]:
    """The digests of all wheels for the Pythons that are supported, or of the source where there is no wheel."""
    page = Links()
    with urlopen(f"{INDEX}/{name}/") as stream:
        page.feed(stream.read().decode())
    wheels, sources = [], []
    for file, digest in page.files.items():
        try:
            if file.endswith(".whl"):
                _, own, _, tags = parse_wheel_filename(file)
                if str(own) == version and any(_fits(tag.interpreter, tag.abi) for tag in tags):
                    wheels.append(digest)
            elif file.endswith(".tar.gz") and str(parse_sdist_filename(file)[1]) == version:
                sources.append(digest)
        except ValueError:
            continue
    return sorted(wheels or sources) or sys.exit(f"The index has no file of {name}=={version}.")


def _fits(interpreter: str, abi: str) -> bool:
    older = re.fullmatch(r"cp3(\d+)", interpreter)
    return interpreter.startswith("py3") or (older is not None and (int(older[1]) >= 11 or abi == "abi3"))


def write(name: str, packages: set[str], known: dict[str, str]) -> None:
    """One lock file."""
    lines = [
        "# Written by `make lock` from constraints.txt. torch is left out: its digest depends on the machine's build."
    ]
    for package in sorted(packages - UNLOCKED):
        lines.append(f"{package}=={known[package]} \\")
        lines += [f"    --hash=sha256:{digest} \\" for digest in files_of(package, known[package])]
        lines[-1] = lines[-1].removesuffix(" \\")
    (HERE / name).write_text("\n".join(lines) + "\n")


def main() -> None:
    """Write all."""
    known = pins()
    run = needed("spotlessnet", known, set()) | {"setuptools"}
    write("run.lock", run, known)
    write("serve.lock", run | needed_by_extra("spotlessnet", "serve"), known)
    write("dev.lock", set(known), known)


if __name__ == "__main__":
    main()
