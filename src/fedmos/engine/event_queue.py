"""The clients that train in an asynchronous run, in the order in which their updates arrive."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from ..algorithm import Vectors
from .sent_models import ModelVersion


class Flight(NamedTuple):
    """A client that trains. Flights compare by their end; of two that end together, the lower client comes first."""

    end: float
    """The simulated time at which its update arrives, or at which the server gives it up."""
    client: int
    round: int
    """The round whose model the client was sent."""
    weight: float
    """The selector's weight, of which the updates of a server step have a share each."""
    seconds: float
    """The time that the client takes."""
    gradients: int
    """The per-sample gradients that it computes."""
    lost: bool
    """Whether no update arrives, because the client drops out or misses the deadline."""


_NUMBERS = {
    "end": torch.float64,
    "client": torch.int64,
    "round": torch.int64,
    "weight": torch.float64,
    "seconds": torch.float64,
    "gradients": torch.int64,
    "lost": torch.bool,
}


@dataclass(kw_only=True)
class EventQueue:
    """What an asynchronous run stores between server steps, beside the state that every run has."""

    flights: list[Flight] = field(default_factory=list)
    """The clients that train, as a heap."""
    arrived: list[Flight] = field(default_factory=list)
    """The updates in the buffer, in the order of their arrival."""
    starts: int = 0
    """The number of clients that have started so far."""
    versions: dict[int, ModelVersion] = field(default_factory=dict)
    """By round, what the clients that started in it were sent, as long as one of them trains or is in the buffer."""

    def copy(self) -> EventQueue:
        """Return a queue that changes independently; the versions themselves are shared."""
        return replace(self, flights=list(self.flights), arrived=list(self.arrived), versions=dict(self.versions))

    @property
    def busy(self) -> list[int]:
        """The clients that cannot start: those that train, and those whose update the server has not used yet."""
        return [flight.client for flight in (*self.flights, *self.arrived)]

    def start(self, flight: Flight) -> None:
        """Add a client that starts to train."""
        heapq.heappush(self.flights, flight)
        self.starts += 1

    def remove(self, client: int) -> Flight:
        """Remove and return a client that trains, where the order of ends is not known in advance."""
        (flight,) = (flight for flight in self.flights if flight.client == client)
        self.flights = [other for other in self.flights if other is not flight]
        heapq.heapify(self.flights)
        return flight

    def next_end(self) -> Flight:
        """Remove and return the client that is done next."""
        return heapq.heappop(self.flights)

    def take_arrived(self) -> list[Flight]:
        """Empty the buffer and return the updates in it, by ascending client."""
        taken, self.arrived = sorted(self.arrived, key=lambda flight: flight.client), []
        return taken

    def forget_versions(self) -> None:
        """Drop the versions that no client needs any more."""
        used = {flight.round for flight in (*self.flights, *self.arrived)}
        self.versions = {t: version for t, version in self.versions.items() if t in used}

    def to_dict(self) -> Vectors:
        """Return the queue as named tensors on the CPU, for a checkpoint."""
        kept: Vectors = {"starts": torch.tensor(self.starts)}
        for name, flights in (("flights", self.flights), ("arrived", self.arrived)):
            for part, dtype in _NUMBERS.items():
                kept[f"{name}.{part}"] = torch.tensor([getattr(f, part) for f in flights], dtype=dtype)
        rounds = sorted(self.versions)
        kept["rounds"] = torch.tensor(rounds, dtype=torch.int64)
        if rounds:
            found = [self.versions[t] for t in rounds]
            kept["lr"] = torch.tensor([version.lr for version in found], dtype=torch.float64)
            kept["x"] = torch.stack([version.x.cpu() for version in found])
            for name in found[0].msg:
                kept[f"msg.{name}"] = torch.stack([version.msg[name].cpu() for version in found])
        return kept

    @classmethod
    def from_dict(cls, kept: Vectors, device: torch.device) -> EventQueue:
        """Return the queue that a checkpoint contains."""

        def flights(name: str) -> list[Flight]:
            columns = [kept[f"{name}.{part}"].tolist() for part in _NUMBERS]
            return [Flight(*values) for values in zip(*columns, strict=True)]

        messages = {name.removeprefix("msg."): v.to(device) for name, v in kept.items() if name.startswith("msg.")}
        return cls(
            flights=flights("flights"),
            arrived=flights("arrived"),
            starts=int(kept["starts"]),
            versions={
                t: ModelVersion(float(kept["lr"][n]), kept["x"][n].to(device), {k: v[n] for k, v in messages.items()})
                for n, t in enumerate(kept["rounds"].tolist())
            },
        )
