"""Compare two outputs of `pytest --collect-only -q -m ''`: the same test functions with the same parameters, anywhere.

Usage: python tests/helpers/collected.py before.txt after.txt
"""

import sys
from collections import Counter
from pathlib import Path


def tests(listing: str) -> Counter[str]:
    """Test functions with their parameters, without the names of their files."""
    return Counter(line.split("::", 1)[1] for line in Path(listing).read_text().splitlines() if "::" in line)


before, after = map(tests, sys.argv[1:])
for sign, difference in (("-", before - after), ("+", after - before)):
    for name, times in sorted(difference.items()):
        print(sign, name, times)
print(f"{before.total()} before, {after.total()} after")
sys.exit(before != after)
