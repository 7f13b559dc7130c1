"""Pages use the field's words, and the glossary names things that exist."""

import re

import pytest

from tests.docs.blocks import PAGES, ROOT

COINED = {
    r"\btutors?\b": "fold models",
    r"\bunlabel\b": "out-of-fold distillation",
    r"\bstrangers?\b": "matched controls, or unseen examples",
    r"\bpolish(es|ed|ing)?\b": "fine-tune",
    r"learnt? by heart": "memorised",
    r"\bwear\b|\bworn\b": "drift, or damping",
    r"\b(a|the|one|this|its) memory\b(?! (use|limit|of (a|the) (GPU|machine)))": "statistics",
    r"\bwish(es)?\b": "request",
    r"a hundredth of a training": "1 % of training FLOPs",
    r"lost its wits": "broken",
}
"""Words of our own that a reader of the field would not find, and what to say instead."""

WRITTEN_BEFORE = {"docs/reproduction.md"}
"""Made from rows whose labels were written before the words were chosen."""


def prose(text: str) -> str:
    """What people read: without code, file names and addresses."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->", "", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_use_the_fields_words(page):
    if page.relative_to(ROOT).as_posix() in WRITTEN_BEFORE:
        return
    text = prose(page.read_text(encoding="utf-8"))
    for coined, instead in COINED.items():
        found = re.search(rf".*(?:{coined}).*", text, re.I)
        assert found is None, f"{found[0]!r}: say {instead}"


def test_the_glossary_names_what_exists():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    names = {name for code in re.findall(r"`([^`]+)`", text) for name in re.findall(r"[A-Za-z_]\w+", code)}
    missing = [name for name in sorted(names) if not re.search(rf"\b{name}\b", source)]
    assert missing == []


def test_the_readme_begins_with_the_category_and_leads_to_the_glossary():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.split("\n\n")[1].startswith("**Machine unlearning for PyTorch")
    assert "(docs/glossary.md)" in text
    for word in ("forget set", "retain", "learning rate", "membership", "fine-tun", "epochs"):
        assert word in text + (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), word


OF_BEFORE = {"__init__.py", "core/deprecated.py"}
"""Files that list names of version 0.1; elsewhere a line with `OldName` may."""

COINED_IN_CODE = (
    r"tutors?\b",
    r"unlabel\b",
    r"polish(es|ed|ing)?\b",
    r"\bwish\b",
    r"\bmemories\b",
    r"(from|write|read)_memory\b",
)


def test_the_source_uses_the_fields_words():
    package = ROOT / "src" / "spotlessnet"
    found = [
        f"{path.relative_to(package)}: {line.strip()}"
        for path in sorted(package.rglob("*.py"))
        if path.relative_to(package).as_posix() not in OF_BEFORE
        for line in path.read_text(encoding="utf-8").splitlines()
        if "OldName(" not in line and re.search("|".join(COINED_IN_CODE), line, re.I)
    ]
    assert found == []
