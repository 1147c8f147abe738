"""The Flower app of the clients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from ..config.client_policy import ClientPolicy
from ..core.formatting import one_line
from . import wire
from .client_errors import MEANINGS, ClientErrorCode, code_of, coded_errors
from .client_runtime import ClientRuntime
from .client_samples import LoadClientData
from .client_setup import own_setup
from .deployment import Deployment, Given
from .flower_log import log_through_flower
from .private_files import private_files

_log = logging.getLogger("fedmos")


def client_app(
    config: Given,
    *,
    data: LoadClientData | None = None,
    tests: LoadClientData | None = None,
    policy: ClientPolicy | None = None,
) -> ClientApp:
    """Create the Flower app that runs on every client.

    The node configuration of a SuperNode says which client it serves: `client="name"`, or the client's number, or
    Flower's `partition-id`. For a client that was admitted later and that the configuration does not name, `number=` is
    its number. Its entry `state="folder"` is where the client stores its state between rounds; the
    default is ~/.fedmos/clients. Its entry `config="client.toml"` is the client's own file; the data and the policy in
    it take precedence over `data` and `policy`.

    Args:
        config: The same configuration as the server's: a path, a `RunConfig`, or a mapping of `fm.run`'s arguments.
        data: Takes a client's name and returns its samples, as a pair (x, y) or a `FederatedData` of one client.
            Without it, a client uses its part of the configuration's data.
        tests: Takes a client's name and returns its test samples, a pair (x, y), for the option `evaluate_clients`.
        policy: Which questions the client answers; by default those that the configuration needs.

    Returns:
        A Flower `ClientApp`. It reads the configuration when the first message arrives. It replies with a code if the
        configuration is invalid or another error occurs; the text of the error is in the client's log only.

    Example:
        A file `client_app.py`, named in the `pyproject.toml` of a Flower app::

            from fedmos.flower import client_app

            app = client_app("run.toml")
    """
    runtimes: dict[tuple[str, str], ClientRuntime] = {}

    def runtime(context: Context) -> ClientRuntime:
        with coded_errors(ClientErrorCode.CONFIGURATION):
            client = str(_client_of(context.node_config))
        key = (client, str(context.node_config.get("state") or _default_folder()))
        if key not in runtimes:
            with coded_errors(ClientErrorCode.CONFIGURATION):
                deployment, number = Deployment.of(config), context.node_config.get("number")
                own = own_setup(context.node_config.get("config"), deployment.agreed, data, policy)
                runtimes[key] = ClientRuntime(deployment, *key, *own, tests, number)
        return runtimes[key]

    def handler(kind: str) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            with log_through_flower(), private_files():
                return _reply(message, kind, lambda: runtime(context).handle(kind, message.content))

        return handle

    app = ClientApp()
    for kind in wire.KINDS:
        category, action = kind.split(".")
        getattr(app, category)(action)(handler(kind))
    return app


def _reply(message: Message, kind: str, answer: Callable[[], RecordDict]) -> Message:
    """Return the reply to a message. If there is no answer, the reply has a code; the text is in the client's log."""
    try:
        return Message(answer(), reply_to=message)
    except wire.RefusedError as error:
        _log.warning("Refused '%s' (code %d): %s", kind, error.code, one_line(str(error), 1000))
        code = error.code
    except Exception as error:
        code = code_of(error)
        _log.exception("Cannot answer '%s' (code %d)", kind, code)
    return Message(Error(int(code), MEANINGS[code]), reply_to=message)


def _client_of(node_config: Mapping[str, Any]) -> Any:
    """Return the name or number of the client that a node serves."""
    for key in ("client", "partition-id"):
        if key in node_config:
            return node_config[key]
    raise ValueError("Cannot tell which client this node is; use --node-config 'client=\"name\"'")


def _default_folder() -> Path:
    return Path.home() / ".fedmos" / "clients"
