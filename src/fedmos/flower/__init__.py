"""Deployment over Flower: the objects that were simulated, on real clients.

`server_app` and `client_app` are Flower apps made of a fedmos configuration. A round is the simulator's; what clients
do is asked of them in messages, and what they answer is looked at before it counts.
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
