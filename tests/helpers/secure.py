"""A session of secure aggregation without a network, clients that leave it, and a search of a process's memory."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from fedmos.aggregation import Secure
from fedmos.secure import masks
from fedmos.secure.client import ClientSession, Member, Secrets
from fedmos.secure.server import ServerSession

CONTEXT = "run/3/train/session"
PARTS = ("keys", "shares", "upload", "unmask")
LAYOUT = {"w delta": masks.RingVector(1000, 32), "w few": masks.RingVector(5, 48), "odd": masks.RingVector(7, 11)}


class Session:
    """Clients and server, with every message that passes between them."""

    def __init__(self, clients: Iterable[int], seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.values = {
            i: {name: random.integers(-(2**30), 2**30, v.size) for name, v in LAYOUT.items()} for i in clients
        }
        self.messages: list[bytes] = []
        self.server: ServerSession | None = None

    def play(self, leaving: dict[str, list[int]] | None = None) -> dict[str, np.ndarray]:
        """Return the sums that the server decodes. `leaving`: by part, the clients that do not answer it any more."""
        gone: set[int] = set()

        def answers(part: str, ask: Any) -> dict[int, Any]:
            gone.update((leaving or {}).get(part, []))
            found = {i: ask(i) for i in self.asked if i not in gone}
            for v in found.values():
                self.messages += [v] if isinstance(v, bytes) else list(v.values())
            return found

        self.asked = list(self.values)
        secrets = {i: Secrets.new() for i in self.values}
        sent = answers("keys", lambda i: ClientSession(secrets[i], CONTEXT, i, 1).keys())
        needed = Secure().needed(len(self.values))
        t = Secure().needed(len(sent))
        server = ServerSession(sent, context=CONTEXT, layout=LAYOUT, threshold=t, needed=needed)
        self.server, self.asked = server, list(server.members)
        self.messages.append(server.keys)
        clients = {i: ClientSession(secrets[i], CONTEXT, i, t) for i in sent}
        server.add_shares(answers("shares", lambda i: clients[i].shares(server.members)))
        self.asked = server.sharing
        self.messages += [server.sealed_for(i) for i in self.asked]
        server.add_uploads(
            answers("upload", lambda i: clients[i].masked(server.members, server.sharing, self.values[i], LAYOUT))
        )
        self.asked, uploaded = server.uploaded, list(server.uploaded)
        return server.unmask(
            answers(
                "unmask",
                lambda i: clients[i].unmask(server.members, server.sharing, server.sealed_for(i), uploaded),
            )
        )

    def expected(self, clients: Iterable[int]) -> dict[str, np.ndarray]:
        return {name: sum(self.values[i][name] for i in clients) for name in LAYOUT}


def equal(sums: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    """Whether sums are equal modulo 2^bits."""
    return all(bool((((sums[n] - expected[n]) & ((1 << v.bits) - 1)) == 0).all()) for n, v in LAYOUT.items())


def memory_of(*roots: Any, outside: Iterable[Any] = ()) -> list[bytes]:
    """Return the content of all arrays, tensors and bytes that can be reached from these objects, but not `outside`."""
    found, seen, pending = [], {id(obj) for obj in outside}, list(roots)
    while pending:
        obj = pending.pop()
        if id(obj) in seen or isinstance(obj, types.ModuleType | type | str | int | float):
            continue
        seen.add(id(obj))
        if isinstance(obj, bytes | bytearray):
            found.append(bytes(obj))
        elif isinstance(obj, torch.Tensor):
            found.append(obj.detach().cpu().numpy().tobytes())
        elif isinstance(obj, np.ndarray):
            found.append(obj.tobytes())
        elif isinstance(obj, types.FunctionType):  # not the globals of its module
            pending += [cell.cell_contents for cell in obj.__closure__ or ()]
        else:
            pending += gc.get_referents(obj)
    return found


def forms(values: np.ndarray, bits: int) -> list[bytes]:
    """Return the bytes of integers in every form in which they could be stored or sent."""
    vector = masks.RingVector(values.size, bits)
    reduced = values & ((1 << bits) - 1)
    return [masks.to_bytes(values, vector), values.astype("<i8").tobytes(), reduced.astype("<i8").tobytes()]


def holds(memory: Iterable[bytes], patterns: Iterable[bytes]) -> bool:
    """Whether one of the patterns occurs anywhere."""
    return any(pattern in content for content in memory for pattern in patterns)


def member(secrets: Secrets, i: int) -> Member:
    return Member.parse(ClientSession(secrets, CONTEXT, i, 1).keys())
