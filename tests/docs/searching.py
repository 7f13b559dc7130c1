"""The site's own search, outside the site: its worker, with its index, in a browser that shows what it found."""

import json
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")

PAGE = """<!doctype html><meta charset="utf-8"><script>
let asked, found = [];
window.addEventListener = (kind, listener) => { if (kind === "message") asked = listener; };
window.postMessage = answer => { if (answer.type === 3) found.push(answer.data.items); };
</script><script>%(worker)s</script><pre id="found"></pre><script>
(async () => {
  const listener = asked, index = %(index)s;
  await listener({data: {type: 0, data: {...index, options: {suggest: false}}}});
  for (const query of %(queries)s) await listener({data: {type: 2, data: query}});
  const places = found.map(items => items.map(group => group.filter(one => one.score > 0).map(one => one.location)));
  document.getElementById("found").textContent = JSON.stringify(places);
})();
</script>"""
"""The worker listens for messages and posts answers; here both are on one page: files may start no workers."""


def search(site: Path, queries: list[str], folder: Path) -> dict[str, list[list[str]]]:
    """For each query the hits in their order: a page each, as the addresses on it that matched, best first."""
    [worker] = (site / "assets" / "javascripts" / "workers").glob("search.*.min.js")
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    parts: dict[str, Any] = {
        "worker": worker.read_text(encoding="utf-8").replace("</script", "<\\/script"),
        "index": index.replace("</", "<\\/"),
        "queries": json.dumps(queries),
    }
    page = folder / "search.html"
    page.write_text(PAGE % parts, encoding="utf-8")
    command = [str(BROWSER), *QUIET, f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=60000"]
    ended = subprocess.run([*command, "--dump-dom", str(page)], capture_output=True, text=True, timeout=120, check=True)
    answers = ended.stdout.partition('<pre id="found">')[2].partition("</pre>")[0]
    return dict(zip(queries, json.loads(unescape(answers)), strict=True))
