"""The Flower app of the clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from . import wire
from .client_runtime import ClientRuntime, LoadClientData
from .deployment import Deployment, Given


def client_app(config: Given, *, data: LoadClientData | None = None) -> ClientApp:
    """Create the Flower app that runs on every client.

    The node configuration of a SuperNode says which client it serves: `client="name"`, or the client's number, or
    Flower's `partition-id`. Its entry `state="folder"` is where the client stores its state between rounds; the
    default is ~/.fedmos/clients.

    Args:
        config: The same configuration as the server's: a path, a `RunConfig`, or a mapping of `fm.run`'s arguments.
        data: Takes a client's name and returns its samples, as a pair (x, y) or a `FederatedData` of one client.
            Without it, a client uses its part of the configuration's data.

    Returns:
        A Flower `ClientApp`. It reads the configuration when the first message arrives, and raises `ValueError` then if
        the configuration or the node configuration is invalid.

    Example:
        A file `client_app.py`, named in the `pyproject.toml` of a Flower app::

            from fedmos.flower import client_app

            app = client_app("run.toml")
    """
    runtimes: dict[tuple[str, str], ClientRuntime] = {}

    def runtime(context: Context) -> ClientRuntime:
        client = str(_client_of(context.node_config))
        key = (client, str(context.node_config.get("state") or _default_folder()))
        if key not in runtimes:
            runtimes[key] = ClientRuntime(Deployment.of(config), *key, data)
        return runtimes[key]

    def handler(kind: str) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            return Message(runtime(context).handle(kind, message.content), reply_to=message)

        return handle

    app = ClientApp()
    for kind in wire.KINDS:
        category, action = kind.split(".")
        getattr(app, category)(action)(handler(kind))
    return app


def _client_of(node_config: Mapping[str, Any]) -> Any:
    """The name or number of the client that a node serves."""
    for key in ("client", "partition-id"):
        if key in node_config:
            return node_config[key]
    raise ValueError("Cannot tell which client this node is; use --node-config 'client=\"name\"'")


def _default_folder() -> Path:
    return Path.home() / ".fedmos" / "clients"
