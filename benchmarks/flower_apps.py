"""Flower apps of the benchmarks, and runs of them in a local deployment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedmos.flower.local.local_deployment import LocalDeployment

_PROJECT = """\
[project]
name = "benchmark"
version = "1.0.0"

[tool.flwr.app]
publisher = "fedmos"

[tool.flwr.app.components]
serverapp = "benchmark.{server}:server"
clientapp = "benchmark.{client}:client"

[tool.flwr.app.config]
out = ""
"""


def write_app(folder: Path, modules: Mapping[str, str], server: str = "apps", client: str = "apps") -> Path:
    """Write an app.

    Args:
        folder: A new folder.
        modules: The code of its modules by name.
        server: The module with the server app, `server`.
        client: The module with the client app, `client`.
    """
    package = folder / "benchmark"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(_PROJECT.format(server=server, client=client))
    (package / "__init__.py").touch()
    for name, code in modules.items():
        (package / f"{name}.py").write_text(code)
    return folder


def run_app(deployment: LocalDeployment, app: Path, out: Path, timeout: float = 3600.0) -> Path:
    """Run an app to its end; returns the run folder."""
    state = deployment.run(app, out, timeout=timeout)
    if not state.completed:
        raise RuntimeError(f"{state.details}\n{deployment.server_log(60)}")
    return out
