"""The contract of a federated algorithm.

A model is a flat vector of D numbers. An algorithm *declares* the tensors that the server and each client keep, the
tensors that are sent down and up, and how uploads are summed. Storage, byte counts, aggregation and checkpoints follow
from the declaration. A declared name is a vector of D numbers unless its shape is declared with it. A few methods that
read like the algorithm box of a paper then define the computation. Every method is a pure function of tensors. The same
method body serves one client, with vectors of shape (D,), and a whole cohort, with vectors of shape (M, D): write
elementwise arithmetic and let it broadcast.

The order of a round:

    prepare (if `prepares(t)`)         clients, at x; the sums named in `prepare_reduce` become server state
    broadcast                          server
    start, begin, step × K_i, finish   clients; a step is y ← y − η · direction unless `step` is overridden
    server                             server, with the sums named in `reduce`
    evaluated                          the model that is evaluated, returned and deployed

One sign everywhere: a delta is *new minus old*.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

Vectors = dict[str, Tensor]
"""Named tensors: of the declared shape for one client or the server, (M, …) for a cohort."""

Shape = int | Literal["layers"] | tuple[int | Literal["D"], ...]
"""A declared shape: () for one number, "layers" for one number per parameter tensor, n for n numbers, or a tuple, in
which "D" stands for the size of the model."""

Field = str | tuple[str, Shape]
"""A declared name: "v" for a (D,) vector, or ("v", shape). In `server_state`, ("v", n) is an (n, D) matrix.

On the server, a number is 0-dimensional. At a client, a number is a column: (1,) for one client, (M, 1) for a cohort.
"""

StateName = Field
"""The earlier name of `Field`."""

Reduce = Mapping[str, tuple[str, str]]
"""Maps the name of a sum to (upload, rule), where rule is a key of `RULES`."""

RULES = {
    "w": "Σ_S w_i u_i, with the selector's weights",
    "avg": "Σ_S w_i u_i / Σ_S w_i",
    "avg/K": "Σ_S w_i u_i / K_i / Σ_S w_i",
    "p": "Σ_S p_i u_i, with the clients' importances",
    "sum": "Σ_S u_i",
    "each": "the rows u_i, (S, …), by ascending client",
}


class Layer(NamedTuple):
    """The place of one parameter tensor in the flat vector."""

    slice: slice
    shape: tuple[int, ...]


class Layers(Mapping[str, Layer]):
    """The parameter tensors of a model: a mapping from their names to slices of the flat vector and shapes.

    Args:
        shapes: The shape of each parameter by name, in the order of the flat vector.

    Example:
        >>> layers = fm.Layers({"weight": (2, 3), "bias": (2,)})
        >>> layers["bias"]
        Layer(slice=slice(6, 8, None), shape=(2,))
        >>> parts = layers.split(torch.arange(8.0))
        >>> parts["weight"].sum(1)
        tensor([ 3., 12.])
        >>> torch.equal(layers.join(parts), torch.arange(8.0))
        True
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        self._layers: dict[str, Layer] = {}
        self.size = 0
        """The number D of all parameters."""
        for name, shape in shapes.items():
            end = self.size + math.prod(shape)
            self._layers[name] = Layer(slice(self.size, end), tuple(shape))
            self.size = end
        self._sizes = [layer.slice.stop - layer.slice.start for layer in self._layers.values()]
        self._number: dict[torch.device, Tensor] = {}

    def __getitem__(self, name: str) -> Layer:
        return self._layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def split(self, v: Tensor) -> Vectors:
        """Return each parameter's part of vectors (…, D), as a view of shape (…, *shape)."""
        parts = zip(self._layers.items(), v.split(self._sizes, dim=-1), strict=True)
        return {name: part.view((*v.shape[:-1], *layer.shape)) for (name, layer), part in parts}

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Return the vectors (…, D) of which `split` returns these parts."""
        flat = []
        for name, layer in self._layers.items():
            part = parts[name]
            flat.append(part.reshape(*part.shape[: part.ndim - len(layer.shape)], -1))
        return torch.cat(flat, dim=-1)

    def expand(self, numbers: Tensor) -> Tensor:
        """Repeat numbers (…, L), one per parameter tensor, for every entry of their tensor: (…, D)."""
        device = numbers.device
        if device not in self._number:
            self._number[device] = torch.arange(len(self)).repeat_interleave(torch.tensor(self._sizes)).to(device)
        return numbers[..., self._number[device]]


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
    layers: Layers = field(default_factory=lambda: Layers({}), repr=False)
    """The parameter tensors of the model."""
    key: Tensor = field(default=torch.zeros((), dtype=torch.int64), repr=False)
    """The random stream of the server in this round, for the functions of `fedmos.rng`; int64, 0-dimensional."""


@dataclass(frozen=True, kw_only=True)
class ClientContext(Context):
    """The values that a client knows during its local training. K, p and last are columns, (1,) or (M, 1).

    `key` is the client's random stream in this round, 0-dimensional or (M,), the same in all its methods and steps.
    Fold it with the step for new numbers in each: `fedmos.rng.normal(fedmos.rng.fold(c.key, k), y.shape[-1])`.

    On a GPU, local training is recorded once and replayed, so t and W are tensors there: compute with them, but do not
    branch on them (an algorithm that does is executed step by step instead). Where several runs train together, x and
    the vectors of msg are (M, D), and lr and W are columns. So they are, and t is an integer column, where clients
    of an asynchronous run (the option `buffer`) were sent models of different rounds. An integer tensor together with a
    Python number gives float32; `torch.as_tensor(c.t).to(y)` has the dtype of the model everywhere.

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
    """The server's model, (D,). An algorithm whose `down` does not name "x" cannot read it."""
    msg: Vectors
    """The tensors that the server sent with x, by name."""
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
        ...     def raw(self, y): return y
        ...     def perturbed(self, y, e): return y + e
        >>> fm.FedLomo(lr=0.1).begin(torch.ones(2), c=None, grad=NormGradient())["d"]
        tensor([1., 1.])
    """

    def __call__(self, y: Tensor) -> Tensor:
        """Return the gradient at y on the batch of the current step; all calls within a step use the same batch."""

    def full(self, y: Tensor) -> Tensor:
        """Return the gradient at y on all local data, ∇f_i(y)."""

    def batch(self, y: Tensor, b: int) -> Tensor:
        """Return the gradient at y on one batch of b samples, drawn independently of the batches of the steps."""

    def raw(self, y: Tensor) -> Tensor:
        """Return the gradient at y on the batch of the current step, without clipping and weight decay."""

    def perturbed(self, y: Tensor, e: Tensor) -> Tensor:
        """Return clip(g(y + e)) + weight_decay · y on the batch of the current step, for sharpness-aware methods."""


class Algorithm:
    """Base class of algorithms. Every method and declaration defaults to FedAvg's.

    Subclass it as a frozen dataclass with a field `lr` and the method's other hyper-parameters, and override the
    methods that differ. Declarations are plain class attributes, or properties where they depend on fields.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, kw_only=True)
        ... class SignSGD(fm.Algorithm):
        ...     lr: float
        ...     def direction(self, y, s, c, grad, k):
        ...         return grad(y).sign(), s
        >>> result = fm.run(model, data, SignSGD(lr=0.01), fm.Full(), rounds=2, local_steps=2, batch_size=8)
    """

    lr: float

    steps_without_updates: ClassVar[bool] = False
    """Whether the server also takes its step in a round without updates, with sums of zero."""

    def __repr__(self) -> str:
        """Return class and attributes, as a dataclass does: records of runs name what was used."""
        given = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__qualname__}({given})"

    @property
    def server_state(self) -> Sequence[Field]:
        """Tensors that the server keeps besides x. They start at zero unless `init` returns them."""
        return ()

    @property
    def client_state(self) -> Sequence[Field]:
        """Tensors that each client keeps between its rounds. They start at zero unless `init` returns them."""
        return ()

    @property
    def down(self) -> Sequence[Field]:
        """Tensors sent to each client. "x" is the model; the others are looked up in the result of `broadcast`.

        The name of a server state has the shape that is declared there.
        """
        return ("x",)

    @property
    def up(self) -> Sequence[Field]:
        """Tensors that each client uploads after its local steps."""
        return ("delta",)

    @property
    def reduce(self) -> Reduce:
        """How uploads are summed for `server`."""
        return {"A": ("delta", "w")}

    @property
    def prepare_up(self) -> Sequence[Field]:
        """Tensors that each client uploads in the extra phase (which sends x down, so it is not sent again later)."""
        return ()

    @property
    def prepare_reduce(self) -> Reduce:
        """How the uploads of the extra phase are summed; each sum replaces the server state of that name."""
        return {}

    @property
    def tracked(self) -> Sequence[str]:
        """Uploads that are a client's state, as FedSMOO's μ_i, or the change of a state, as SCAFFOLD's c_i⁺ − c_i.

        Error feedback is not applied to them: the next one contains what a codec loses of this one.
        """
        return ()

    @property
    def population_sums(self) -> Mapping[str, str]:
        """Server state that is Σ p_i of a client state over all clients, as SCAFFOLD's {"c": "c_i"}.

        If the clients of a deployment or their importances change during a run, both begin anew.
        """
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
        """Return the tensors that are sent with x: by default the server state named in `down`."""
        names = [name if isinstance(name, str) else name[0] for name in self.down]
        return {name: state[name] for name in names if name != "x"}

    def received(self, x: Tensor, own: Vectors) -> Tensor:
        """Return what the other methods of a client read as `c.x`: by default the model x that was sent.

        A method whose clients keep some parameters puts them into x here.

        Args:
            x: The server's model, (D,).
            own: The client's state after its previous round.
        """
        return x

    def start(self, c: ClientContext) -> Tensor:
        """Return the model y at which a client begins its local steps: by default x."""
        return c.x

    def begin(self, y: Tensor, c: ClientContext, grad: Gradient) -> Vectors:
        """Return the tensors s that a client keeps only during its local steps."""
        return {}

    def direction(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        """Return the direction d of local step k, y ← y − η d, and the new s: by default the gradient at y.

        A local optimiser (the option `local`) makes its step of this direction. The arguments are those of `step`.
        """
        return grad(y), s

    def step(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient, k: int) -> tuple[Tensor, Vectors]:
        """Perform local step k: by default y ← y − η · direction.

        Override `direction` instead where the method is a direction, so that it can be used with local optimisers.

        Args:
            y: The client's model.
            s: The tensors returned by `begin` or by the previous step.
            c: The client's context.
            grad: The client's gradients.
            k: The step, from 0.

        Returns:
            The new y and s.
        """
        d, s = self.direction(y, s, c, grad, k)
        return y - c.lr * d, s

    def finish(self, y: Tensor, s: Vectors, c: ClientContext, grad: Gradient) -> tuple[Vectors, Vectors]:
        """Return the upload of a client and its new state; state that is not returned stays unchanged."""
        return {"delta": y - c.x}, {}

    def delivered(self, upload: Vectors, own: Vectors, c: ClientContext) -> tuple[Vectors, Vectors]:
        """Return the upload and the new state of a client whose vectors were coded (the option `uplink`).

        By default, they are as given. Override it where the server follows the clients' state by their uploads, or
        where a number of the upload describes a vector, so that both sides use the same vectors.

        Args:
            upload: The upload, with vectors as the server decodes them. Only numbers may be changed.
            own: The new state that `finish` returned.
            c: The client's context.
        """
        return upload, own

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

    def evaluated(self, x: Tensor, state: Vectors, ctx: Context) -> Tensor:
        """Return the model that is evaluated, returned and deployed: by default x.

        Args:
            x: The model, (D,), after the server step.
            state: The server state after the server step.
            ctx: The round's context.
        """
        return x

    def personal(self, c: ClientContext) -> Tensor | None:
        """Return the client's own model, (D,), if the method has one, from `c.x` and `c.own`; by default None."""
        return None

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
