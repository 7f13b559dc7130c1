"""Formulas of the pages as MathML, made while the site is built: browsers draw it themselves, without scripts or fonts.

`pymdownx.arithmatex` marks what stands between dollars; this puts the drawn formula in its place. A command of TeX that
is not known is an error of the build, not a formula with a hole in it.
"""

import re
from html import unescape

from latex2mathml.converter import convert

MARKED = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)
r"""As arithmatex leaves a formula behind: `\(...\)` in a line, `\[...\]` on lines of its own."""


def mathml(tex: str, *, display: bool = False) -> str:
    """One formula."""
    # The converter knows no larger double bars: they are drawn in their own size.
    tex = re.sub(r"\\[bB]igg?[lr]?\\\|", r"\\|", tex.strip())
    drawn = convert(tex, display="block" if display else "inline") if tex else ""
    if "\\" in drawn or not re.search(r">[^<\s]", drawn):
        raise ValueError(f"Nothing is known about a command in this formula, or it is empty: {tex!r}.")
    return drawn


def drawn(html: str) -> str:
    """A page with every marked formula drawn."""

    def one(found: re.Match[str]) -> str:
        tag, opened, tex = found.groups()
        return f'<{tag} class="formula">{mathml(unescape(tex), display=opened == "[")}</{tag}>'

    return MARKED.sub(one, html)
