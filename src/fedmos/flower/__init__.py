"""Deployment over Flower: runs a configuration on real clients instead of simulating it.

`server_app` and `client_app` create Flower apps from a fedmos configuration. The server executes the same rounds as a
simulation; clients receive their work in messages, and every reply is validated before it is used.
"""

try:
    import flwr as _flwr  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "Cannot deploy because flwr is not installed; use pip install 'fedmos[flower]'", name=error.name
    ) from error

from .client import client_app
from .deployment import preload
from .server import server_app
from .settings import Deploy

__all__ = ["Deploy", "client_app", "preload", "server_app"]
