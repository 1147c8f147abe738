"""Opening a page in Chromium, headless, and asking it questions."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_BEFORE = """<script>
window.faults = [];
window.addEventListener("error", (e) => faults.push("error: " + e.message));
window.addEventListener("unhandledrejection", (e) => faults.push("rejected: " + e.reason));
document.addEventListener("securitypolicyviolation", (e) => faults.push("policy: " + e.blockedURI + " " + e.violatedDirective));
for (const level of ["error", "warn"]) console[level] = (...words) => faults.push(level + ": " + words.join(" "));
</script>"""

_AFTER = """<script>
(async () => {
  const settled = () => new Promise((done) => setTimeout(done, 150));
  const answer = {};
  try {
    while (!document.documentElement.dataset.drawn) await settled();
    answer.drawn = Number(document.documentElement.dataset.drawn);
    %s
  } catch (error) { faults.push("probe: " + error); }
  answer.faults = faults;
  const place = document.createElement("pre");
  place.id = "probe";
  place.textContent = JSON.stringify(answer);
  document.body.append(place);
})();
</script>"""


def chromium(*arguments: str) -> subprocess.CompletedProcess:
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
    return subprocess.run([CHROMIUM, *options, *arguments], capture_output=True, text=True, timeout=120)


def seconds_to_draw(page: Path) -> float:
    """From the start of loading to the last figure, by the clock on the wall."""
    found = re.search(r'data-drawn="(\d+)"', chromium("--dump-dom", page.as_uri()).stdout)
    assert found is not None
    return int(found[1]) / 1000


def ask(page: Path, questions: str, *arguments: str) -> dict:
    """Run JavaScript in the page once it is drawn; what it put into `answer`, the page's complaints among it."""
    probed = page.with_name("probed.html")
    text = page.read_text("utf-8")
    text = text.replace("<title>", _BEFORE + "<title>", 1)
    head, tail = text.rsplit("</body>", 1)
    probed.write_text(head + _AFTER % questions + "</body>" + tail, "utf-8")
    done = chromium("--virtual-time-budget=20000", "--dump-dom", *arguments, probed.as_uri())
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.S)
    assert found is not None, done.stderr[-2000:]
    return json.loads(unescape(found[1]))
