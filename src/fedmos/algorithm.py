"""The contract of a federated algorithm.

A model is a flat vector of D numbers. An algorithm *declares* what the server and each client
keep, what travels down and up, and how uploads are summed; storage, byte counts, aggregation
and checkpoints follow from the declaration. It then says, in a few methods that read like a
paper's algorithm box, what happens. Every method is a pure function of tensors, and the same
body serves one client, vectors of shape (D,), and a whole cohort, (M, D): write elementwise
arithmetic and let it broadcast.

The order of a round:

    prepare (if `prepares(t)`)     clients, at x; the sums named in `prepare_reduce` enter the server's state
    broadcast                      server
    begin, step × K_i, finish      clients; y starts at x
    server                         server, with the sums named in `reduce`

One sign everywhere: a delta is *new minus old*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

Vectors = dict[str, Tensor]
"""Named vectors: (D,) for one, (M, D) for a cohort."""

StateName = str | tuple[str, int]
"""The name of a (D,) vector, or (name, rows) for a (rows, D) matrix."""

Reduce = Mapping[str, tuple[str, str]]
"""Sum → (upload, rule), with a rule of `RULES`."""

RULES = {
    "w": "Σ_S w_i u_i, with the selector's weights",
    "avg": "Σ_S w_i u_i / Σ_S w_i",
    "avg/K": "Σ_S w_i u_i / K_i / Σ_S w_i",
    "p": "Σ_S p_i u_i, with the clients' importances",
}


@dataclass(frozen=True, kw_only=True)
class Context:
    """What everyone knows about a round."""

    t: int
    """The round, from 0."""
    lr: Tensor
    """The step size after decay, 0-dimensional."""
    N: int
    """Clients in the federation."""
    S: int
    """Distinct clients in the cohort."""
    W: float
    """Σ_S w_i."""


@dataclass(frozen=True, kw_only=True)
class ClientContext(Context):
    """What a client knows. K, p and last are columns, (1,) or (M, 1), in the run's dtype.

    On a GPU local work is recorded once and replayed, so t and W are tensors there: compute with them, but do not
    branch on them (work that does is done step by step instead). Where several runs train together, x and the vectors
    of msg are (M, D), and lr and W columns.
    """

    x: Tensor
    """The server's model, (D,)."""
    msg: Vectors
    """What came with x."""
    own: Vectors
    """The client's own state, as it left it."""
    K: Tensor
    """Its number of local steps."""
    p: Tensor
    """Its importance."""
    last: Tensor
    """The last round it took part in, −1 for never."""


class Gradient(Protocol):
    """The gradients a client can take; each is clip(g) + weight_decay · y."""

    def __call__(self, y: Tensor) -> Tensor:
        """At y, on the batch of the current step; every call within a step sees the same batch."""

    def full(self, y: Tensor) -> Tensor:
        """At y, on all local data: ∇f_i(y)."""

    def batch(self, y: Tensor, b: int) -> Tensor:
        """At y, on one batch of b samples drawn apart from those of the steps."""


class Algorithm:
    """The contract, with FedAvg's behaviour as the default of every part.

    Subclass it as a frozen dataclass with a field `lr` and whatever else the method needs, and
    override what differs. Declarations may be plain class attributes, or properties where they
    depend on fields.
    """

    lr: float

    @property
    def server_state(self) -> Sequence[StateName]:
        """Vectors the server keeps beside x. They start at zero unless `init` says otherwise."""
        return ()

    @property
    def client_state(self) -> Sequence[str]:
        """Vectors each client keeps between its rounds, likewise."""
        return ()

    @property
    def down(self) -> Sequence[str]:
        """Vectors sent to each client. "x" is the model; the others are looked up in `broadcast`'s message."""
        return ("x",)

    @property
    def up(self) -> Sequence[str]:
        """Vectors each client sends back."""
        return ("delta",)

    @property
    def reduce(self) -> Reduce:
        """How uploads are summed for `server`."""
        return {"A": ("delta", "w")}

    @property
    def prepare_up(self) -> Sequence[str]:
        """Vectors each client sends in the extra phase (x travels down there, and is not sent again)."""
        return ()

    @property
    def prepare_reduce(self) -> Reduce:
        """How they are summed; each sum becomes the server state of that name before the broadcast."""
        return {}

    def init(self, x: Tensor) -> Vectors:
        """Initial server or client state that is not zero."""
        return {}

    def prepares(self, t: int) -> bool:
        """Whether round t has the extra phase."""
        return bool(self.prepare_up)

    def prepare(self, c: ClientContext, grad: Gradient) -> Vectors:
        """What a client sends in the extra phase."""
        return {}

    def broadcast(self, x: Tensor, state: Vectors, ctx: Context) -> Vectors:
        """The message that goes with x: by default the server state named in `down`."""
        return {name: state[name] for name in self.down if name != "x"}

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:
        """The scratch a client keeps during its local work."""
        return {}

    def step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        """Local step k."""
        return y - c.lr * grad(y), s

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        """What a client sends, and its state from now on (names left out stay as they were)."""
        return {"delta": y - c.x}, {}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        """The next model and server state (names left out stay as they were)."""
        return x + agg["A"], {}

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        """What the server's state says of ∇f(x), as a mean of gradients, for `fm.Diagnostics`; None if nothing.

        `ctx` is of the round to come (S and W of the one before), K the mean number of local steps.
        """
        return None

    def idle(self, x: Tensor, state: Vectors, ctx: Context) -> Vectors:
        """Server state that changes even in a round that brought no update, and so leaves x as it is."""
        return {}
