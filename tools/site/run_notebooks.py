"""Execute the notebooks of the tutorials and store their outputs, which the site shows.

Example: python tools/site/run_notebooks.py            # docs/tutorials/*.ipynb
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ENVIRONMENT = {"PYTHONWARNINGS": "ignore:IProgress", "OMP_NUM_THREADS": "1"}
"""No advice of tqdm on widgets; one thread, so that results do not depend on the number of cores."""
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def executed(path: Path) -> Any:
    """Return a notebook with the outputs of a fresh execution in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")  # no ports
        client = NotebookClient(
            notebook, kernel, timeout=300, startup_timeout=300, resources={"metadata": {"path": folder}}
        )
        client.execute(env=os.environ | ENVIRONMENT, cleanup_kc=True)
    for cell in notebook.cells:
        cell.metadata.clear()
        for output in cell.get("outputs", ()):
            _plain(output)
    notebook.metadata.get("language_info", {}).pop("version", None)
    return notebook


def _plain(output: Any) -> None:
    """Remove from an output what differs between executions: colours of a terminal and addresses of objects."""
    if "text" in output:
        output["text"] = COLOURS.sub("", output["text"])
    data = output.get("data", {})
    if "image/png" in data:
        data.pop("text/plain", None)
    elif "text/plain" in data:
        data["text/plain"] = ADDRESS.sub("", data["text/plain"])


def main() -> None:
    """Execute the notebooks that are named, or all."""
    for path in map(Path, sys.argv[1:] or sorted(TUTORIALS.glob("*.ipynb"))):
        nbformat.write(executed(path), path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
