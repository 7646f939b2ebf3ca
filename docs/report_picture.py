"""Draw the picture of the README: `python docs/report_picture.py`. It needs Chromium on the path.

The picture is a screenshot of the report of the output that ships with Untold.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "report.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Pixels: the overview and the first table of systems
SIZE = "1180,880"


def find_browser() -> str:
    """Return the path of Chromium. Raises SystemExit if it is not installed."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"install one of {', '.join(BROWSERS)} to draw the picture")
    return browser


def main() -> None:
    """Write the report to a temporary folder and take a screenshot of its first page."""
    browser = find_browser()
    with TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        command = [
            sys.executable,
            "-m",
            "untold",
            "report",
            str(ROOT / "conf" / "demo" / "results"),
            "--html",
            str(page),
        ]
        subprocess.run(command, check=True)
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--hide-scrollbars",
        ]
        own = [f"--user-data-dir={folder}/profile", f"--window-size={SIZE}", f"--screenshot={PICTURE}"]
        subprocess.run([browser, *options, *own, page.as_uri()], check=True, capture_output=True)
    print(PICTURE)


if __name__ == "__main__":
    main()
