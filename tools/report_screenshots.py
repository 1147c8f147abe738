"""Write the screenshots of docs/report.md: the report of the demo's comparison, wide and narrow, light and dark.

    python tools/report_screenshots.py [FOLDER]

FOLDER (default: runs/screenshots) holds the comparison; it is trained first if it is not there. Needs Chromium.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from PIL import Image  # noqa: E402

from helpers.browser import Browser, browser  # noqa: E402

IMAGES = ROOT / "docs" / "images"
DEMO = ROOT / "src" / "fedmos" / "config" / "builtin" / "demo.toml"
LOG_NORMAL = '{{ name = "LogNormal", median = {} }}'
SYSTEM = ", ".join(f"{key} = {LOG_NORMAL.format(m)}" for key, m in (("speed", 200.0), ("up", 1e6), ("down", 1e7)))
OVERRIDES = ("tune.lr=[0.1, 0.2]", f"system={{ {SYSTEM} }}")
HOVER = """
const plot = document.querySelector(".plot"), box = plot.getBoundingClientRect(), { xaxis, _size } = plot._fullLayout;
const at = { clientX: box.left + _size.l + xaxis.d2p(17), clientY: box.top + _size.t + 60, bubbles: true };
plot.querySelector(".nsewdrag").dispatchEvent(new PointerEvent("pointermove", at));
"""
MULTIPLES = 'document.querySelector("input[value=multiples]").click(); await settled();'


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "runs" / "screenshots"
    fedmos = [sys.executable, "-m", "fedmos"]
    if not (folder / "table.json").exists():
        settings = [word for one in OVERRIDES for word in ("--set", one)]
        subprocess.run([*fedmos, "compare", str(DEMO), *settings, "--out", str(folder)], check=True)
    page = folder / "report.html"
    subprocess.run([*fedmos, "report", str(folder), "--out", str(page)], check=True)
    for width, height in ((1280, 800), (390, 844)):
        for scheme in ("light", "dark"):
            shoot(browser(), page, (width, height), scheme, HOVER if width == 1280 else "", f"{width}-{scheme}")
    shoot(browser(), page, (1280, 800), "light", MULTIPLES, "multiples")


def shoot(chromium: Browser, page: Path, size: tuple[int, int], scheme: str, actions: str, name: str) -> None:
    """Open the page in a window, do something in it, and write what it shows."""
    chromium.open(page, *size, dark=scheme == "dark")
    assert chromium.ask(actions)["faults"] == []
    save(chromium, f"report-{name}")


def save(chromium: Browser, name: str) -> None:
    """Write what the window shows as an image of the documentation, with at most 256 colours."""
    file = IMAGES / f"{name}.png"
    chromium.screenshot(file)
    with Image.open(file) as image:
        image.convert("RGB").quantize(256, kmeans=1, dither=Image.Dither.NONE).save(file, optimize=True)
    print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
