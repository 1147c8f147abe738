"""What an operator tells a SuperLink: which clients may take part, and what to run."""

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
    """How a Flower run fares."""

    status: str
    outcome: str
    details: str

    @property
    def ended(self) -> bool:
        return self.status == str(Status.FINISHED)

    @property
    def completed(self) -> bool:
        return self.outcome == str(SubStatus.COMPLETED)

    @property
    def stopped(self) -> bool:
        """Ended by an operator."""
        return self.outcome == str(SubStatus.STOPPED)

    @property
    def raised(self) -> bool:
        """Ended by an error in the server app, which would come again, rather than by its death."""
        return self.outcome == str(SubStatus.FAILED) and self.details.startswith("ServerApp failed with exception")


class Control:
    """A connection to a SuperLink's control interface."""

    def __init__(self, address: str, authority: Path) -> None:
        self._address = address
        self._trust = ssl.create_default_context(cafile=str(authority))
        self._client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=False,
            root_certificates=authority.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="fedmos")],
        )

    def __enter__(self) -> Control:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def listening(self) -> bool:
        """Whether the SuperLink answers."""
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=self._trust))
        try:
            with opener.open(f"https://{self._address}/health", timeout=2) as response:
                return bool(response.status == 200)
        except (URLError, OSError):
            return False

    def register(self, public_key: Path) -> int:
        """Let the holder of a key take part; returns the number that Flower knows it by."""
        request = RegisterNodeRequest(public_key=try_load_public_key(public_key))
        return int(self._client.RegisterNode(request).node_id)

    def online(self) -> set[int]:
        """The numbers of clients that are signed on."""
        nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
        return {node.node_id for node in nodes if node.status == NodeStatus.ONLINE}

    def start(self, app: Path, settings: Mapping[str, str | int | float | bool]) -> int:
        """Start an app, with settings in place of those in its pyproject.toml; returns the run's number."""
        with warnings.catch_warnings():  # it asks for file names in a way that its dependency has given up
            warnings.simplefilter("ignore", DeprecationWarning)
            bundle = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(settings)))
        response = self._client.StartRun(request)
        if not response.HasField("run_id"):
            raise RuntimeError(f"Cannot start {app} because the SuperLink refuses it: {response.note or 'no reason'}")
        return int(response.run_id)

    def state(self, run: int) -> RunState:
        found = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return RunState(found.status, found.sub_status, found.details)
