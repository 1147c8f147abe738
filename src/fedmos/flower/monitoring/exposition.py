"""The metrics of a server app in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import time

from .status import DeploymentStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


def exposition(status: DeploymentStatus) -> str:
    """Return the metrics of a status."""
    lines: list[str] = []

    def add(name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float | None]]) -> None:
        known = [(labels, value) for labels, value in samples if value is not None]
        if known:
            full = f"fedmos_{name}"
            lines.extend([f"# HELP {full} {text}", f"# TYPE {full} {kind}"])
            lines.extend(f"{full}{_labels(labels)} {value:.17g}" for labels, value in known)

    def gauge(name: str, text: str, value: float | None) -> None:
        add(name, "gauge", text, [({}, value)])

    last, clients = status.last, status.clients
    gauge("rounds", "Rounds of the run.", status.rounds or None)
    gauge("round", "Rounds that are complete.", status.completed)
    gauge("waiting", "1 while the server waits for clients below the quorum, else 0.", float(bool(status.waiting)))
    waited = None if status.waiting is None else max(0.0, time() - status.waiting.since)
    gauge("waiting_seconds", "Seconds of the present outage; 0 without one.", waited or 0.0)
    gauge("clients", "Clients of the deployment.", len(clients))
    gauge("clients_connected", "Clients that are connected.", sum(client.connected for client in clients))
    gauge("clients_quarantined", "Clients in quarantine.", sum(client.quarantined for client in clients))
    gauge("round_seconds", "Seconds of the last round.", last.get("seconds"))
    gauge("round_clients", "Clients in the cohort of the last round.", last.get("cohort"))
    gauge("round_late_clients", "Clients of the last round that were late.", last.get("late"))
    for name in ("accuracy", "test_loss", "train_loss", "train_accuracy", "client_accuracy", "epsilon"):
        gauge(name, f"'{name}' of the last round that has it.", last.get(name))
    add("rounds_abandoned_total", "counter", "Rounds that were abandoned.", [({}, status.abandoned)])
    add("bytes_down_total", "counter", "Bytes of vectors and numbers sent to clients.", [({}, status.bytes_down)])
    add("bytes_up_total", "counter", "Bytes of vectors and numbers received.", [({}, status.bytes_up)])
    add("nodes_refused_total", "counter", "SuperNodes that were refused.", [({}, status.refused_nodes)])
    add(
        "client_connected",
        "gauge",
        "1 while the client is connected, else 0.",
        [({"client": client.name}, float(client.connected)) for client in clients],
    )
    add(
        "replies_total",
        "counter",
        "Replies that were accepted.",
        [({"client": client.name}, client.replies) for client in clients],
    )
    add(
        "late_total",
        "counter",
        "Requests to which the client did not reply in time.",
        [({"client": client.name}, client.late) for client in clients],
    )
    add(
        "refused_total",
        "counter",
        "Replies that were refused, by reason.",
        [({"client": c.name, "reason": reason}, n) for c in clients for reason, n in sorted(c.refused.items())],
    )
    return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
