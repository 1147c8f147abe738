"""Deployment over Flower: runs a configuration on real clients instead of simulating it.

`server_app` and `client_app` create Flower apps from a fedmos configuration. The server executes the same rounds as a
simulation; clients receive their work in messages, and every reply is validated before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..config.client_policy import ClientPolicy
from ..config.deploy import Deploy

if TYPE_CHECKING:
    from .client import client_app
    from .deployment import preload
    from .personal_export import export_personal
    from .server import server_app

__all__ = ["ClientPolicy", "Deploy", "client_app", "export_personal", "preload", "server_app"]

_MODULES = {
    "client_app": ".client",
    "export_personal": ".personal_export",
    "preload": ".deployment",
    "server_app": ".server",
}


def require_flower() -> None:
    """Check that Flower is installed.

    Raises:
        ModuleNotFoundError: If it is not; the error names the extra to install.
    """
    try:
        import_module("flwr")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Cannot deploy because flwr is not installed; use pip install 'fedmos[flower]'", name=error.name
        ) from error


def __getattr__(name: str) -> Any:
    """Import the apps, and with them Flower, only when they are used: certificates and `Deploy` do not need it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_flower()
    return getattr(import_module(_MODULES[name], __name__), name)
