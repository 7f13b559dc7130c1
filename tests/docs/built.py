"""Built pages as a reader sees them."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

CODE = {"code", "pre", "script", "style", "svg"}
"""What is shown as it was typed, or not at all."""


class Prose(HTMLParser):
    """The words of a page, with those of its formulas apart."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__()
        self.words: list[str] = []
        self.formulas: list[str] = []
        self._code = self._formula = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Code and formulas may lie inside each other."""
        self._code += tag in CODE
        self._formula += tag == "math"
        if tag == "math":
            self.formulas.append("")

    def handle_endtag(self, tag: str) -> None:
        """As it began."""
        self._code -= tag in CODE
        self._formula -= tag == "math"

    def handle_data(self, data: str) -> None:
        """Sort the words."""
        if self._formula:
            self.formulas[-1] += data
        elif not self._code:
            self.words.append(data)


def pages(site: Path) -> Iterator[tuple[str, str]]:
    """Every page by its address, with its HTML."""
    for path in sorted(site.rglob("*.html")):
        yield path.relative_to(site).as_posix(), path.read_text(encoding="utf-8")


def read(html: str) -> Prose:
    """The words of one page."""
    prose = Prose()
    prose.feed(html)
    return prose
