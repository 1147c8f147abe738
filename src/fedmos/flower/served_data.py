"""What a run of a deployment begins with: connected clients, and the federation as the server sees it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any

from ..data.federated import FederatedData
from .deployment import Deployment, reported_data, server_part
from .members.membership import ClientMembership
from .node_registry import NodeRegistry
from .outages import OutageWatch

_log = logging.getLogger("fedmos")


def wait_for_clients(outages: OutageWatch, seconds: float, needs_sizes: bool) -> None:
    """Wait until all clients are connected, at most for `seconds`.

    With `needs_sizes`, wait longer for clients whose number of samples is not known, as in an outage.
    """
    started, collector = monotonic(), outages.collector
    registry = collector.registry
    while True:
        collector.refresh_nodes()
        missing = set(range(len(registry.names))) - registry.connected - registry.retired
        if not missing:
            return
        if monotonic() - started > seconds:
            break
        sleep(collector.poll)
    names = ", ".join(registry.absence(i) for i in sorted(missing)[:20])
    unknown = missing - set(registry.samples) if needs_sizes else set()
    if unknown:
        outage = outages.begin("The start", "connect them, or leave them out of [deploy] clients, and start again")
        outage.wait(unknown, len(unknown))
        outage.end()
    else:
        _log.warning("Starting without %d of %d clients: %s", len(missing), len(registry.names), names)


def server_data(
    deployment: Deployment, registry: NodeRegistry, known: Sequence[int], test: tuple[Any, Any] | None
) -> FederatedData:
    """Return the federation at the start of the run as the server sees it: the clients' sizes and the test set.

    Args:
        deployment: The options of the run.
        registry: The clients.
        known: The number of samples of each client; empty before the first round.
        test: Samples to evaluate the model on, if the configuration has none.
    """
    if deployment.data is not None:
        return server_part(deployment.data)
    if test is None:
        raise ValueError("server_app: 'test' must be given where the configuration holds no data")
    missing = [name for i, name in enumerate(deployment.names) if i not in registry.samples]
    if missing:
        raise ValueError(
            f"Cannot start because the number of samples of these clients is unknown: {', '.join(missing[:20])}; "
            "connect them once, or use a longer 'wait'"
        )
    sizes = list(known) or [registry.samples[i] for i in range(len(deployment.names))]
    if not known:
        registry.counts.check_all(deployment.names, sizes)
    return reported_data(sizes, test)


def resized(
    base: FederatedData, members: ClientMembership, registry: NodeRegistry, test: tuple[Any, Any] | None
) -> FederatedData:
    """Return the federation with the clients and the numbers of samples of this part of the run."""
    if test is None or not members.member_list.samples:
        return base
    return reported_data([registry.samples[i] for i in range(len(members.names))], test)
