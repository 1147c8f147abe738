"""Pages of the documentation, taken apart: blocks of code, commands, tables."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.S | re.M)
NOTES = "docs/lab-notes/"
"""Records of earlier states, whose commands are not kept up to date."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, the line where it begins and the line of text above it."""

    language: str
    text: str
    line: int
    above: str


def pages() -> dict[str, str]:
    """Return the text of every page that users read, by its path in the repository."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    names = sorted(path.relative_to(ROOT).as_posix() for path in found)
    return {name: (ROOT / name).read_text("utf-8") for name in names if not name.startswith(NOTES)}


def blocks(text: str, language: str | None = None) -> list[Block]:
    """Return the fenced blocks of a page, all or those of one language."""
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()].rstrip().splitlines()
        code = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.M)
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(match["language"].strip(), code, line, before[-1] if before else ""))
    return [block for block in found if language in (None, block.language)]


def prose(text: str) -> str:
    """Return a page without its fenced blocks; the numbers of lines stay."""
    return FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)


def commands(text: str) -> list[str]:
    """Return the shell commands of a page: lines of `sh` blocks, and inline code that begins with a program's name."""
    found = []
    for block in blocks(text, "sh"):
        joined = re.sub(r"\\\n\s*", "", block.text)
        found += [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    inline = re.findall(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)", prose(text))
    programs = r"(?:[A-Z_]+=\S+ )*(?:fedmos|make|python|bash|torchrun) "
    found += [" ".join(code.split()) for code in inline if re.match(programs, code)]
    return found


@dataclass(frozen=True)
class Table:
    """A table of a page: its line, its rows of cells, the heading above it and the text of that section."""

    line: int
    rows: list[list[str]]
    heading: str
    section: str

    @property
    def measured(self) -> bool:
        """Whether a third of the cells beside the first column are numbers with a decimal point, a unit or a spread."""
        cells = [cell for row in self.rows[1:] for cell in row[1:]]
        return 3 * sum(bool(NUMBER.match(cell)) for cell in cells) >= len(cells) > 0


NUMBER = re.compile(r"^\**[−+~<-]?\d[\d,]*(\.\d+|,\d{3}| ±| ?%| ms| s\b|×|$)")


def tables(text: str) -> list[Table]:
    """Return the tables of a page."""
    lines = prose(text).splitlines()
    original = text.splitlines()
    headings = [i for i, line in enumerate(lines) if line.startswith("#")]
    found, i = [], 0
    while i < len(lines):
        if not lines[i].startswith("|"):
            i += 1
            continue
        start = i
        while i < len(lines) and lines[i].startswith("|"):
            i += 1
        rows = [_cells(line) for line in lines[start:i] if not re.fullmatch(r"[|: -]+", line)]
        first = max((h for h in headings if h < start), default=0)
        last = min((h for h in headings if h > start), default=len(lines))
        found.append(Table(start + 1, rows, lines[first].lstrip("# "), "\n".join(original[first:last])))
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
