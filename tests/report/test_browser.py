"""The page in a real browser: it renders, complains about nothing, and talks to nobody."""

import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from typing import Any

import pytest

from spotlessnet.auditing.audit_report import AuditReport
from spotlessnet.auditing.verdict import Check, Checks
from spotlessnet.report.chips import MEANING
from spotlessnet.report.page import page
from tests.report import layout
from tests.report.example import page_of_example, report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: the page was not looked at")

QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


def browse(tmp_path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    (tmp_path / "report.html").write_text(text or page_of_example(), encoding="utf-8")
    command = [
        str(BROWSER),
        *QUIET,
        f"--user-data-dir={tmp_path / 'profile'}",
        *arguments,
        str(tmp_path / "report.html"),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def test_the_browser_shows_verdict_table_and_figures_without_a_complaint(tmp_path):
    """A request that the page made would be refused by its own policy, and the console would say so."""
    seen = browse(tmp_path, "--dump-dom", "--enable-logging=stderr")
    assert "✓ Forgotten" in seen.stdout
    assert seen.stdout.count("<figure") == 7
    assert "relearn time" in seen.stdout
    assert "CONSOLE" not in seen.stderr


def test_a_request_from_the_page_would_be_refused_and_noticed(tmp_path):
    asking = page_of_example().replace("</main>", '<img src="http://localhost:9/x.png" alt=""></main>')
    assert "CONSOLE" in browse(tmp_path, "--dump-dom", "--enable-logging=stderr", text=asking).stderr


@pytest.mark.parametrize(("name", "size"), [("desktop", "1200,1600"), ("phone", "390,844")])
def test_pictures_are_not_blank(tmp_path, name, size):
    target = tmp_path / f"{name}.png"
    browse(tmp_path, f"--screenshot={target}", f"--window-size={size}")
    width, height, pixels = read_png(target.read_bytes())
    assert (width, height) == tuple(int(side) for side in size.split(","))
    assert len(set(pixels[:: max(1, len(pixels) // 100_000)])) > 20


def test_it_prints(tmp_path):
    browse(tmp_path, f"--print-to-pdf={tmp_path / 'report.pdf'}", "--no-pdf-header-footer")
    content = (tmp_path / "report.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert len(content) > 20_000


def read_png(data: bytes) -> tuple[int, int, bytes]:
    width, height = struct.unpack(">II", data[16:24])
    place, packed = 8, b""
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        if data[place + 4 : place + 8] == b"IDAT":
            packed += data[place + 8 : place + 8 + length]
        place += 12 + length
    return width, height, zlib.decompress(packed)


def looked_at(tmp_path, text: str) -> dict[str, dict[str, Any]]:
    return layout.read(browse(tmp_path, "--dump-dom", "--virtual-time-budget=20000", text=layout.framed(text)).stdout)


def crowded() -> AuditReport:
    """Eleven methods with long names, as in the demo, all readouts, and everything that the top of a page can have."""
    told = report()
    assert told.verdict is not None
    names = ("short retraining", "NTK, then 3 epochs", "Newton", "negative gradient", "random labels", "Fisher noise")
    more = [replace(row, method=name) for name in names for row in told.rows if row.method == "fine-tune"]
    others = ("error on retain", "loss on forget", "margin on forget", "entropy attack", "LiRA")
    made = [*told.rows, *more]
    made += [replace(row, readout=name) for name in others for row in made if row.readout == "error on forget"]
    checks = [Check(n, "same", 0.01, -0.02, 0.03, 0.1, "nats a row, 0.0412 by chance; p = 0.43") for n in MEANING]
    header = {"request": "ab" * 32, "network": "MLP, 4,810 weights", "original network": "commitment " + "0f" * 32}
    header["new network, scrubbed.safetensors"] = "SHA-256 " + "cd" * 32
    return replace(told, rows=tuple(made), header=header, verdict=replace(told.verdict, checks=Checks(checks)))


def test_no_table_is_cut_without_a_hint_and_no_text_lies_on_another(tmp_path):
    seen = looked_at(tmp_path, page(crowded()))
    assert {name: one["width"] for name, one in seen.items()} == {
        "wide": 1280, "phone": 390, "phone folded": 390, "print": layout.A4[0],
    }  # fmt: skip
    assert [one["found"] for one in seen.values()] == [[]] * 4
    assert seen["wide"]["texts"] > 300
    # Where a table is wider than the window, it says so; on paper and on a wide screen all of them fit.
    assert seen["phone"]["hints"] > 0
    assert seen["wide"]["hints"] == seen["print"]["hints"] == 0
    assert 0 < seen["print"]["sheet"] <= layout.A4[1]


def test_what_is_cut_or_lies_on_another_would_be_noticed(tmp_path):
    long = '<p style="white-space:nowrap">a long line, cut at its right</p>'
    thin = '<table style="width:4rem;table-layout:fixed;overflow-wrap:anywhere"><tbody><tr>'
    wide = '<table style="width:99rem"><tr><td>wide</td></tr></table>'
    faults = {
        "cut without a hint: div.hidden": f'<div class="hidden" style="overflow:hidden;width:9rem">{long}</div>',
        "cut without a hint: div.silent": f'<div class="silent" style="overflow-x:auto">{wide}</div>',
        "off the page: p.broad": '<p class="broad" style="width:99rem">wider than any window</p>',
        "broken within a word: remembered": f"{thin}<th>remembered share</th></tr></tbody></table>",
        "overlap: p. upon it | p. below": '<p>below</p><p style="margin-top:-2.6rem">upon it</p>',
    }
    bad = f"<!DOCTYPE html><html><body><main>{''.join(faults.values())}</main></body></html>"
    found = looked_at(tmp_path, bad)["phone"]["found"]
    assert all(any(one.startswith(fault) for one in found) for fault in faults), found


def test_the_summary_prints_on_one_page(tmp_path):
    whole = page(crowded())
    sheet = whole[: whole.index('<section id="asked">')].replace("break-after:page", "") + "</main></body></html>"
    target = tmp_path / "sheet.pdf"
    browse(tmp_path, f"--print-to-pdf={target}", "--no-pdf-header-footer", text=sheet)
    assert len(re.findall(rb"/Type\s*/Page\b", target.read_bytes())) == 1
    browse(tmp_path, f"--print-to-pdf={target}", "--no-pdf-header-footer", text=whole)
    assert len(re.findall(rb"/Type\s*/Page\b", target.read_bytes())) > 3  # what is folded on the screen is printed
