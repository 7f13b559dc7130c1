"""A page in frames of several widths, looked at by a script of the test's own: what is cut, what lies on what."""

import html
import json
import re
from typing import Any

PARTS = """
function visible(e) { return e.checkVisibility({visibilityProperty: true, contentVisibilityAuto: true}) }
function scrolls(e) { return /auto|scroll/.test(getComputedStyle(e).overflowX) }
function scroller(e) { while (e) { if (scrolls(e)) return e; e = e.parentElement } }
function name(e) {
  return e.tagName.toLowerCase() + '.' + (e.getAttribute('class') || '') + ' ' + e.textContent.trim().slice(0, 40);
}
function texts(doc, root = doc.body, besides = 'style, svg') {
  const found = [], walk = doc.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (!node.textContent.trim() || !visible(node.parentElement) || node.parentElement.closest(besides)) continue;
    const range = doc.createRange(); range.selectNodeContents(node);
    for (const r of range.getClientRects()) if (r.width > 1 && r.height > 1) found.push([r, node.parentElement]);
  }
  for (const e of root.querySelectorAll('svg text')) if (visible(e)) found.push([e.getBoundingClientRect(), e]);
  return found;
}
function overlaps(doc, ...where) {
  const found = [], all = texts(doc, ...where).sort((a, b) => a[0].top - b[0].top);
  for (let i = 0; i < all.length; i++)
  for (let j = i + 1; j < all.length && all[j][0].top < all[i][0].bottom - 3; j++) {
    const [a, e] = all[i], [b, f] = all[j];
    // What is scrolled out of sight lies on nothing.
    if ([scroller(e), scroller(f)].some(s => s) && scroller(e) !== scroller(f)) continue;
    if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 && e !== f && !e.contains(f) && !f.contains(e))
      found.push('overlap: ' + name(e) + ' | ' + name(f));
  }
  return found;
}
"""
"""What a script in a page needs in order to find texts that lie on each other."""

LOOK = """
function broken(doc) {
  const found = [];
  for (const e of doc.querySelectorAll('tbody th, thead th')) {
    const node = e.firstChild;
    if (!visible(e) || !node || node.nodeType != Node.TEXT_NODE) continue;
    for (const word of node.textContent.matchAll(/[^\\s-]+/g)) {
      const range = doc.createRange();
      range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
      if (range.getClientRects().length > 1) found.push('broken within a word: ' + word[0]);
    }
  }
  return found;
}
function look(doc, width) {
  const found = [], root = doc.documentElement;
  if (root.scrollWidth > width) found.push('the page is ' + root.scrollWidth + ' wide');
  for (const e of doc.querySelectorAll('body *')) {
    if (!visible(e)) continue;
    const style = getComputedStyle(e), inside = scroller(e);
    const clips = style.overflowX != 'visible' && style.display != 'inline';
    if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth && clips) {
      const hint = e.parentElement.querySelector('.hint');
      if (!scrolls(e) || !hint || !visible(hint)) found.push('cut without a hint: ' + name(e));
    }
    if (!inside && e.getBoundingClientRect().right > width + 1) found.push('off the page: ' + name(e));
  }
  found.push(...overlaps(doc), ...broken(doc));
  return found.slice(0, 20);
}
window.onload = async () => {
  const told = {};
  for (const frame of document.querySelectorAll('iframe')) {
    const doc = frame.contentDocument;
    for (const e of doc.querySelectorAll('details')) e.open = !frame.name.includes('folded');
    // Hints follow the scrolling by an animation, which on a busy machine comes a few frames late.
    let found = ['not looked at'];
    for (let tries = 0; found.length && tries < 10; tries++) {
      await new Promise(done => setTimeout(done, 300));
      found = look(doc, frame.clientWidth);
    }
    const sheet = doc.querySelector('.sheet'), hints = [...doc.querySelectorAll('.hint')].filter(visible).length;
    told[frame.name] = {found: found, width: frame.clientWidth, hints: hints,
                        sheet: sheet ? Math.ceil(sheet.getBoundingClientRect().height) : 0, texts: texts(doc).length};
  }
  const out = document.createElement('output'); out.textContent = JSON.stringify(told); document.body.append(out);
};
"""

A4 = (688, 1016)
"""Pixels between margins of 14 mm, at 96 a inch."""


def framed(page: str) -> str:
    """The page at two widths, folded and unfolded, and as it is printed; what was found ends up in `<output>`."""
    frames = {"wide": (1280, page), "phone": (390, page), "phone folded": (390, page)}
    frames["print"] = (A4[0], page.replace("@media print", "@media all"))
    # A frame must not be a screen of its own: the print rules come last, and the narrow ones would come into it.
    frames["print"] = (A4[0], re.sub(r"@media \(max-width:[^)]*\)", "@media not all", frames["print"][1]))
    inside = "".join(
        f'<iframe name="{name}" srcdoc="{html.escape(text)}" style="border:0;width:{width}px;height:900px"></iframe>'
        for name, (width, text) in frames.items()
    )
    return f"<!DOCTYPE html><html><body style='width:1400px'>{inside}<script>{PARTS}{LOOK}</script></body></html>"


def read(dom: str) -> dict[str, dict[str, Any]]:
    """What the script found, by frame."""
    return json.loads(html.unescape(dom.split("<output>")[-1].split("</output>")[0]))
