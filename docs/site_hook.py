"""What mkdocs does not do by itself: pages of record and figures under `results/` are part of the site, without copies.

Pages link to them as the repository does (`../results/...`), so that links work when a page is read there. The site has
the same files under `results/`, one step nearer, and this hook shortens the links. What declares itself in a registry
is written into the page of the API. Flowcharts are drawn while building.
"""

from pathlib import Path

from mermaid_fence import fence  # a neighbour: mkdocs looks for modules beside a hook
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from spotlessnet.core.registry import with_registered

SHOWN = ("*.md", "*/*.svg")
"""Of `results/`: the records, and the figures of experiments."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Blocks of mermaid become SVG."""
    settings = config.mdx_configs.setdefault("pymdownx.superfences", {})
    settings["custom_fences"] = [{"name": "mermaid", "class": "mermaid", "format": fence}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add records and figures to the site, read where they lie."""
    root = Path(config.config_file_path).parent
    for pattern in SHOWN:
        for path in sorted((root / "results").glob(pattern)):
            files.append(File.generated(config, path.relative_to(root).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links between `docs/` and `results/`, as they are on the site."""
    if page.file.src_uri.startswith("results/"):
        return markdown.replace("](../docs/", "](../")
    return with_registered(markdown.replace("](../results/", "](results/"))
