"""Compare the versions in version.py, CITATION.cff and CHANGELOG.md with each other and with a tag.

python tools/check_release.py [vX.Y.Z]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

PLACES = {
    "src/fedmos/core/version.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
    "CHANGELOG.md": r"^## \[(\d[^]]*)\]",
}
"""Files and the expression that finds the version; the first match of CHANGELOG.md is the newest version."""


def versions(root: Path) -> dict[str, str]:
    """Return the version that each file has, or "none"."""
    found = {name: re.search(pattern, (root / name).read_text("utf-8"), re.M) for name, pattern in PLACES.items()}
    return {name: "none" if match is None else match[1] for name, match in found.items()}


def problem(root: Path, tag: str | None = None) -> str | None:
    """Return what differs, as a sentence; None if all versions are the same."""
    found = versions(root)
    if tag:
        found["the tag"] = tag.removeprefix("v")
    if len(set(found.values())) == 1:
        return None
    return "The versions differ: " + ", ".join(f"{place} has {version}" for place, version in found.items())


if __name__ == "__main__":
    sys.exit(problem(ROOT, sys.argv[1] if len(sys.argv) > 1 else None))
