"""The contract of a federated algorithm.

A model is a flat vector of D numbers. An algorithm *declares* the vectors that the server and each client keep, the
vectors that are sent down and up, and how uploads are summed. Storage, byte counts, aggregation and checkpoints follow
from the declaration. A few methods that read like the algorithm box of a paper then define the computation. Every
method is a pure function of tensors. The same method body serves one client, with vectors of shape (D,), and a whole
cohort, with vectors of shape (M, D): write elementwise arithmetic and let it broadcast.

The order of a round:

    prepare (if `prepares(t)`)     clients, at x; the sums named in `prepare_reduce` become server state
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
"""Named vectors: (D,) for one client or the server, (M, D) for a cohort."""

StateName = str | tuple[str, int]
"""The name of a (D,) vector, or (name, rows) for a (rows, D) matrix."""

Reduce = Mapping[str, tuple[str, str]]
"""Maps the name of a sum to (upload, rule), where rule is a key of `RULES`."""

RULES = {
    "w": "Σ_S w_i u_i, with the selector's weights",
    "avg": "Σ_S w_i u_i / Σ_S w_i",
    "avg/K": "Σ_S w_i u_i / K_i / Σ_S w_i",
    "p": "Σ_S p_i u_i, with the clients' importances",
}


@dataclass(frozen=True, kw_only=True)
class Context:
    """The values of a round that the server and every client know.

    The engine creates it; construct one to call the methods of an algorithm directly, for example in a test.

    Example:
        >>> ctx = fm.Context(t=0, lr=torch.tensor(0.1), N=10, S=3, W=1.0)
        >>> fm.FedAvg(lr=0.1, server_lr=0.5).server(torch.zeros(2), {}, {"A": torch.ones(2)}, ctx)
        (tensor([0.5000, 0.5000]), {})
    """

    t: int
    """The round, from 0."""
    lr: Tensor
    """The client step size after decay, 0-dimensional."""
    N: int
    """Number of clients in the federation."""
    S: int
    """Number of distinct clients in the cohort."""
    W: float
    """Σ_S w_i."""


@dataclass(frozen=True, kw_only=True)
class ClientContext(Context):
    """The values that a client knows during its local training. K, p and last are columns, (1,) or (M, 1).

    On a GPU, local training is recorded once and replayed, so t and W are tensors there: compute with them, but do not
    branch on them (an algorithm that does is executed step by step instead). Where several runs train together, x and
    the vectors of msg are (M, D), and lr and W are columns.

    Example:
        >>> c = fm.ClientContext(
        ...     t=0, lr=torch.tensor(0.1), N=10, S=1, W=1.0, x=torch.ones(2), msg={}, own={},
        ...     K=torch.tensor([1.0]), p=torch.tensor([0.1]), last=torch.tensor([-1.0]),
        ... )
        >>> upload, own = fm.FedAvg(lr=0.1).finish(torch.zeros(2), {}, c, grad=None)
        >>> upload
        {'delta': tensor([-1., -1.])}
    """

    x: Tensor
    """The server's model, (D,)."""
    msg: Vectors
    """The vectors that the server sent with x, by name."""
    own: Vectors
    """The client's state after its previous round."""
    K: Tensor
    """The client's number of local steps."""
    p: Tensor
    """The client's importance."""
    last: Tensor
    """The last round in which the client took part, −1 for never."""


class Gradient(Protocol):
    """The gradients that a client can compute. Each one is clip(g) + weight_decay · y.

    The engine passes an object with these methods to the client methods of an algorithm.

    Example:
        >>> class NormGradient:  # of f(y) = ½ ‖y‖²
        ...     def __call__(self, y): return y
        ...     def full(self, y): return y
        ...     def batch(self, y, b): return y
        >>> fm.FedLomo(lr=0.1).begin(torch.ones(2), c=None, grad=NormGradient())["d"]
        tensor([1., 1.])
    """

    def __call__(self, y: Tensor) -> Tensor:
        """Return the gradient at y on the batch of the current step; all calls within a step use the same batch."""

    def full(self, y: Tensor) -> Tensor:
        """Return the gradient at y on all local data, ∇f_i(y)."""

    def batch(self, y: Tensor, b: int) -> Tensor:
        """Return the gradient at y on one batch of b samples, drawn independently of the batches of the steps."""


class Algorithm:
    """Base class of algorithms. Every method and declaration defaults to FedAvg's.

    Subclass it as a frozen dataclass with a field `lr` and the method's other hyper-parameters, and override the
    methods that differ. Declarations are plain class attributes, or properties where they depend on fields.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, kw_only=True)
        ... class SignSGD(fm.Algorithm):
        ...     lr: float
        ...     def step(self, y, s, c, grad, k):
        ...         return y - c.lr * grad(y).sign(), s
        >>> result = fm.run(model, data, SignSGD(lr=0.01), fm.Full(), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float

    @property
    def server_state(self) -> Sequence[StateName]:
        """Vectors that the server keeps besides x. They start at zero unless `init` returns them."""
        return ()

    @property
    def client_state(self) -> Sequence[str]:
        """Vectors that each client keeps between its rounds. They start at zero unless `init` returns them."""
        return ()

    @property
    def down(self) -> Sequence[str]:
        """Vectors sent to each client. "x" is the model; the others are looked up in the result of `broadcast`."""
        return ("x",)

    @property
    def up(self) -> Sequence[str]:
        """Vectors that each client uploads after its local steps."""
        return ("delta",)

    @property
    def reduce(self) -> Reduce:
        """How uploads are summed for `server`."""
        return {"A": ("delta", "w")}

    @property
    def prepare_up(self) -> Sequence[str]:
        """Vectors that each client uploads in the extra phase (which sends x down, so it is not sent again later)."""
        return ()

    @property
    def prepare_reduce(self) -> Reduce:
        """How the uploads of the extra phase are summed; each sum replaces the server state of that name."""
        return {}

    def init(self, x: Tensor) -> Vectors:
        """Return the initial server or client state that is not zero.

        Args:
            x: The initial model, (D,).
        """
        return {}

    def prepares(self, t: int) -> bool:
        """Return whether round t has the extra phase."""
        return bool(self.prepare_up)

    def prepare(self, c: ClientContext, grad: Gradient) -> Vectors:
        """Return the upload of a client in the extra phase."""
        return {}

    def broadcast(self, x: Tensor, state: Vectors, ctx: Context) -> Vectors:
        """Return the vectors that are sent with x: by default the server state named in `down`."""
        return {name: state[name] for name in self.down if name != "x"}

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:
        """Return the vectors s that a client keeps only during its local steps."""
        return {}

    def step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        """Perform local step k.

        Args:
            y: The client's model.
            s: The vectors returned by `begin` or by the previous step.
            c: The client's context.
            grad: The client's gradients.
            k: The step, from 0.

        Returns:
            The new y and s.
        """
        return y - c.lr * grad(y), s

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        """Return the upload of a client and its new state; state that is not returned stays unchanged."""
        return {"delta": y - c.x}, {}

    def server(self, x: Tensor, state: Vectors, agg: Vectors, ctx: Context) -> tuple[Tensor, Vectors]:
        """Perform the server step.

        Args:
            x: The model, (D,).
            state: The server state.
            agg: The sums named in `reduce`.
            ctx: The round's context.

        Returns:
            The next model and the new server state; state that is not returned stays unchanged.
        """
        return x + agg["A"], {}

    def gradient_estimate(self, x: Tensor, state: Vectors, ctx: Context, K: float) -> Tensor | None:
        """Return the estimate of ∇f(x) that the server state implies, as a mean of gradients, or None if it has none.

        `fm.Diagnostics` compares it with the true gradient.

        Args:
            x: The model, (D,).
            state: The server state.
            ctx: The context of the next round, with S and W of the previous one.
            K: The mean number of local steps.
        """
        return None

    def idle(self, x: Tensor, state: Vectors, ctx: Context) -> Vectors:
        """Return server state that changes in a round without updates, which leaves x unchanged."""
        return {}
