"""Pages as a browser lays them out, on a desk, a phone and paper: nothing is cut silently, no text lies on another."""

import json
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.docs.searching import BROWSER, QUIET
from tests.docs.test_site import section
from tests.report.layout import PARTS

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: the pages were not looked at")

LOOK = """
const WIDE = "article table, article pre, article img, article math";
const FIGURE = "article img, article table, article svg.flowchart";
const PAPER = 688;  // pixels between margins of 14 mm on A4
const cut = (doc, width) => [...doc.querySelectorAll(WIDE)].filter(one => {
  const inner = one.tagName === "PRE" ? one.querySelector("code") || one : one;
  const fits = box => box.getBoundingClientRect().right <= width + 1 && box.scrollWidth <= box.clientWidth + 1;
  if (fits(one) && (width !== PAPER || inner === one || fits(inner))) return false;
  if (width === PAPER) return true;  // nobody can move it there
  for (let box = one; box && box.tagName !== "ARTICLE"; box = box.parentElement)
    for (const part of [box, ...(box === one ? box.querySelectorAll(":scope > code") : [])]) {
      const style = doc.defaultView.getComputedStyle(part);
      const moves = ["auto", "scroll"].includes(style.overflowX);
      if (moves && (style.backgroundImage.includes("gradient") || part.classList.contains("formula"))) return false;
    }
  return true;
}).map(one => one.tagName + ": " + one.textContent.trim().slice(0, 60));
// Bars of the theme lie in layers of which one is shown, and signs of a formula stand on each other by right.
const prose = doc => [doc, doc.querySelector("article"), "style, svg, math"];
const printed = rules => {
  for (const rule of rules) {
    if (rule.media) rule.media.mediaText = /print/.test(rule.media.mediaText) ? "all"
      : /screen/.test(rule.media.mediaText) ? "not all" : rule.media.mediaText;
    if (rule.cssRules) printed(rule.cssRules);
  }
};
const seen = {};
const look = (pages, width) => new Promise(done => {
  const next = () => {
    if (!pages.length) return done();
    const page = pages.shift(), frame = document.createElement("iframe");
    frame.width = width; frame.height = 800;
    frame.onload = () => setTimeout(() => {
      if (width === PAPER) for (const sheet of frame.contentDocument.styleSheets) printed(sheet.cssRules);
      const doc = frame.contentDocument, first = doc.querySelector(FIGURE);
      seen[page + " at " + width] = {
        wide: doc.documentElement.scrollWidth, cut: cut(doc, width), overlaps: overlaps(...prose(doc)).slice(0, 5),
        moved: [...doc.querySelectorAll(".md-typeset__scrollwrap")].filter(box => box.scrollWidth > box.clientWidth + 1)
          .map(box => box.textContent.trim().slice(0, 60)),
        figure: first ? first.getBoundingClientRect().top : -1, texts: texts(...prose(doc)).length};
      frame.remove(); next();
    }, 200);
    frame.src = page; document.body.append(frame);
  };
  next();
});
(async () => {
  for (const width of [1280, 390, PAPER]) await look(%s, width);
  document.getElementById("seen").textContent = JSON.stringify(seen);
})();
"""
"""Loads each page in a frame of the width of a desk, a phone and paper, and notes what a reader would trip over."""


def looked_at(pages: list[Path], folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What was found on each page at each width."""
    script = PARTS + LOOK % json.dumps([page.as_uri() for page in pages])
    file = folder / "look.html"
    file.write_text(
        f'<!doctype html><meta charset="utf-8"><pre id="seen"></pre><script>{script}</script>', encoding="utf-8"
    )
    command = [str(BROWSER), *QUIET, "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}"]
    command += ["--virtual-time-budget=120000", "--dump-dom", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    seen = json.loads(unescape(ended.stdout.partition('<pre id="seen">')[2].partition("</pre>")[0]))
    assert len(seen) == 3 * len(pages)
    return {(name.rpartition(" at ")[0], int(name.rpartition(" ")[2])): found for name, found in seen.items()}


@pytest.fixture(scope="module")
def seen(site, tmp_path_factory):
    names = ["api/methods", "api/readouts", "architecture", "", *guides()]
    pages = {(site / name / "index.html").as_uri(): name for name in names}
    found = looked_at([site / name / "index.html" for name in names], tmp_path_factory.mktemp("look"))
    return {(pages[address], width): one for (address, width), one in found.items()}


def guides() -> list[str]:
    return [page.removesuffix(".md") for page in section("Guides")]


def test_nothing_is_cut_without_a_hint_and_no_page_is_wider_than_the_screen(seen):
    for (page, width), found in seen.items():
        assert found["wide"] <= width, (page, width)
        assert found["cut"] == [], (page, width)


def test_what_the_verdict_means_fits_on_a_phone(seen):
    """The ends of its lines lay under the shadow that says that there is more."""
    assert seen["faq", 390]["moved"] == []
    assert seen["data_protection", 390]["moved"] != []  # three columns of sentences do not


def test_no_text_lies_on_another(seen):
    assert {where: found["overlaps"] for where, found in seen.items() if found["overlaps"]} == {}
    assert min(found["texts"] for found in seen.values()) > 50


def test_a_guide_shows_a_figure_within_three_screens(seen):
    """Screens of 1280 by 800 pixels, as the browser lays the page out."""
    for page in ["", *guides()]:
        assert 0 <= seen[page, 1280]["figure"] < 3 * 800, page


def test_faults_would_be_noticed(tmp_path):
    faults = {
        "below": '<p>below</p><p style="margin-top:-2.2rem">upon it</p>',
        "wide": '<div style="width:99rem">wider than any window</div>',
        "cut": '<div style="overflow:hidden"><table style="width:99rem"><tr><td>cut</td></tr></table></div>',
    }
    page = tmp_path / "bad.html"
    page.write_text(f"<!doctype html><article>{''.join(faults.values())}</article>", encoding="utf-8")
    seen = looked_at([page], tmp_path)
    found = seen[page.as_uri(), 1280]
    assert [one.split()[0] for one in found["overlaps"]] == ["overlap:"]
    assert found["wide"] > 1280
    assert found["cut"] == seen[page.as_uri(), 688]["cut"] == ["TABLE: cut"]
