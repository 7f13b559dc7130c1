"""The page in a real browser: it renders, complains about nothing, and talks to nobody."""

import shutil
import struct
import subprocess
import zlib

import pytest

from spotlessnet.report.page import page
from tests.report.example import report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: the page was not looked at")

QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


def browse(tmp_path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    (tmp_path / "report.html").write_text(text or page(report()), encoding="utf-8")
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
    assert seen.stdout.count("<svg") == 7
    assert "relearn time" in seen.stdout
    assert "CONSOLE" not in seen.stderr


def test_a_request_from_the_page_would_be_refused_and_noticed(tmp_path):
    asking = page(report()).replace("</main>", '<img src="http://localhost:9/x.png" alt=""></main>')
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
