"""What mkdocs does not do by itself: pages of record and figures under `results/` are part of the site, without copies.

Pages link to them as the repository does (`../results/...`), so that links work when a page is read there. The site has
the same files under `results/`, one step nearer, and this hook shortens the links. What declares itself in a registry
is written into the pages of the API, and names into its overview. Flowcharts and formulas are drawn while building.
"""

import re
from pathlib import Path

import notebook_pages  # neighbours: mkdocs looks for modules beside a hook
from api_names import with_names
from formulas import drawn
from mermaid_fence import fence
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from spotlessnet.core.registry import with_registered

SHOWN = ("*.md", "*.svg", "*/*.svg")
"""Of `results/`: the records, and figures."""

BOOSTS = {"faq.md": 2.0, "api/": 0.5, "notebooks/": 0.5, "results/": 0.5}
"""How much a hit of the search counts, by where its page lies: questions first, names and records last."""

LONG = re.compile(r"<td((?: style=[^>]*)?)>(?=[^<]{90})")
"""A cell that begins with ninety characters of text."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Blocks of mermaid become SVG."""
    settings = config.mdx_configs.setdefault("pymdownx.superfences", {})
    settings["custom_fences"] = [{"name": "mermaid", "class": "mermaid", "format": fence}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add records and figures to the site, read where they lie, and a page for each notebook."""
    root = Path(config.config_file_path).parent
    for pattern in SHOWN:
        for path in sorted((root / "results").glob(pattern)):
            files.append(File.generated(config, path.relative_to(root).as_posix(), abs_src_path=str(path)))
    for path in sorted(Path(config.docs_dir, "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_pages.page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links between `docs/` and `results/`, as they are on the site; what a page counts in the search."""
    for place, boost in BOOSTS.items():
        if page.file.src_uri.startswith(place):
            page.meta["search"] = {"boost": boost}
    if page.file.src_uri.startswith("results/"):
        return markdown.replace("](../docs/", "](../")
    markdown = re.sub(r"\]\(notebooks/(\w+)\.ipynb\)", r"](notebooks/\1.md)", markdown)
    markdown = with_names(markdown, Path(config.docs_dir))
    return with_registered(markdown.replace("](../results/", "](results/"))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas, those of docstrings too; cells of tables that need room are marked for the style."""
    return LONG.sub(r'<td class="long"\1>', drawn(html))
