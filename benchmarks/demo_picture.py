"""The picture of the demo's report in README and on the site: `spotless demo`, then Chromium looks at it.

python benchmarks/demo_picture.py                       # runs the demo, about a minute on two idle cores
python benchmarks/demo_picture.py --report report.html  # of a report that is there
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "demo-report.png"
SIZE = (1280, 1304)
"""Pixels: as wide as a desk's window, and down to the first readouts."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking")


def shoot(report: Path, picture: Path, size: tuple[int, int] = SIZE) -> None:
    """What a browser shows of a page in a window of that size."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"No browser is here: {', '.join(BROWSERS)}. Install one.")
    with tempfile.TemporaryDirectory() as profile:
        window = f"--window-size={size[0]},{size[1]}"
        command = [browser, *QUIET, f"--user-data-dir={profile}", window, f"--screenshot={picture}"]
        subprocess.run([*command, report.resolve().as_uri()], check=True, capture_output=True, timeout=240)


def main() -> None:
    """Run the demo where no report is given, and write the picture."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--report", type=Path, help="a report that is there")
    flags.add_argument("--out", type=Path, default=PICTURE, help="where the picture goes")
    given = flags.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = given.report
        if report is None:
            demo = [sys.executable, "-m", "spotlessnet", "demo", "--out", f"{folder}/demo"]
            subprocess.run(demo, check=True)
            report = Path(folder) / "demo" / "report.html"
        shoot(report, given.out)


if __name__ == "__main__":
    main()
