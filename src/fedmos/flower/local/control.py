"""Client of a SuperLink's control API: registers clients, and starts and monitors runs."""

from __future__ import annotations

import hashlib
import ssl
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from urllib.error import URLError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

from flwr.cli.build import build_fab_from_disk
from flwr.cli.supernode.register import try_load_public_key
from flwr.common.constant import Status, SubStatus
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
)
from flwr.supercore.constant import NodeStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor


@dataclass(frozen=True)
class RunState:
    """The state of a Flower run."""

    status: str
    outcome: str
    details: str

    @property
    def ended(self) -> bool:
        """Whether the run has ended, successfully or not."""
        return self.status == str(Status.FINISHED)

    @property
    def completed(self) -> bool:
        """Whether the run has ended successfully."""
        return self.outcome == str(SubStatus.COMPLETED)

    @property
    def stopped(self) -> bool:
        """Whether an operator has stopped the run."""
        return self.outcome == str(SubStatus.STOPPED)

    @property
    def raised(self) -> bool:
        """Whether the server app raised an exception, which a restart would repeat. False if it was killed."""
        return self.outcome == str(SubStatus.FAILED) and self.details.startswith("ServerApp failed with exception")


class ControlClient:
    """A connection to a SuperLink's control API."""

    def __init__(self, address: str, authority: Path) -> None:
        self._address = address
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=False,
            root_certificates=authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="fedmos")],
        )

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def listening(self) -> bool:
        """Whether the SuperLink responds."""
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=self._tls))
        try:
            with opener.open(f"https://{self._address}/health", timeout=2) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False

    def register(self, public_key: Path) -> int:
        """Register a client's public key; returns the node id that Flower assigns."""
        request = RegisterNodeRequest(public_key=try_load_public_key(public_key))
        return int(self._client.RegisterNode(request).node_id)

    def online(self) -> set[int]:
        """Return the ids of connected nodes."""
        nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
        return {node.node_id for node in nodes if node.status == NodeStatus.ONLINE}

    def start(self, app: Path, settings: Mapping[str, str | int | float | bool]) -> int:
        """Start an app and return the run's number; `settings` override those in its pyproject.toml."""
        with warnings.catch_warnings():  # Flower uses a deprecated function of pathspec
            warnings.simplefilter("ignore", DeprecationWarning)
            bundle = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(settings)))
        response = self._client.StartRun(request)
        if not response.HasField("run_id"):
            raise RuntimeError(
                f"Cannot start {app} because the SuperLink refuses it: {response.note or 'no reason given'}"
            )
        return int(response.run_id)

    def state(self, run: int) -> RunState:
        """Return the state of a run."""
        status = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return RunState(status.status, status.sub_status, status.details)
