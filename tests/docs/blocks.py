"""Fenced blocks of a page: files to write, and commands to run."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "results").glob("*.md")), ROOT / "README.md"]
FENCE = re.compile(r"(?:<!-- ends with (\d+) -->\n)?^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """One fenced block: `code` is the exit code that a command of it must end with."""

    language: str
    title: str
    text: str
    code: int = 0

    @property
    def is_command(self) -> bool:
        """Commands with a title say where they belong, and are not for the newcomer's folder."""
        return self.language == "sh" and not self.title

    @property
    def is_file(self) -> bool:
        """Other blocks with a title are files of that name."""
        return self.language != "sh" and bool(self.title)


def blocks(page: Path) -> list[Block]:
    """Every fenced block, in order."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(language, title, text, int(code or 0)) for code, language, title, text in found]
