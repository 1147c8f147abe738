"""What fedmos uses of Flower that is not public: only in the accelerators, and no more than counted here."""

import ast
from pathlib import Path

import pytest

import fedmos

SOURCES = Path(fedmos.__file__).parent
PUBLIC = {"flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp"}
"""The modules that Flower exports (`flwr.__all__`, without agents). Programs and variables are public too."""
IMPORTS = {"flower/local/flower_patches.py": 1, "flower/local/forking_executor.py": 6}
"""Private names that each accelerator imports."""
PATCHES = 9


def private_imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "flwr":
            found += [f"{node.module}.{name.name}" for name in node.names if node.module not in PUBLIC]
            found += [f"flwr.{name.name}" for name in node.names if name.name.startswith("_") and node.module in PUBLIC]
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.startswith("flwr.") and name.name not in PUBLIC]
    return found


def test_private_imports_are_in_the_accelerators_only():
    found = {str(path.relative_to(SOURCES)): private_imports(path) for path in sorted(SOURCES.rglob("*.py"))}
    assert {path: len(names) for path, names in found.items() if names} == IMPORTS


def test_private_names_in_texts_are_the_patched_ones():
    """Names of modules in texts: `PATCHED`, and nowhere else."""
    found = []
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("flwr."):
                found.append(path.name)
    assert set(found) == {"flower_patches.py"}


def test_the_patches_are_counted():
    pytest.importorskip("flwr", reason="needs Flower: pip install 'fedmos[flower]'")
    from fedmos.flower.local.flower_patches import PATCHED

    assert len(PATCHED) == PATCHES


def test_the_counter_finds_private_imports(tmp_path):
    (tmp_path / "a.py").write_text(
        "import flwr\nimport flwr.proto.x\nfrom flwr.app import Message\nfrom flwr.app import _x\n"
        "def f():\n    from flwr.supercore.a import b, c\n"
    )
    assert sorted(private_imports(tmp_path / "a.py")) == [
        "flwr._x", "flwr.proto.x", "flwr.supercore.a.b", "flwr.supercore.a.c",
    ]  # fmt: skip
