"""The messages of requests to clients, and the checks of their replies."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from flwr.app import ArrayRecord, RecordDict

from ..algorithm import Algorithm
from ..engine.client_store import ClientStore
from ..engine.task import Task
from . import wire
from .coded_messages import CodedMessages, HeldVectors
from .private_uploads import UploadClipping
from .requests import Reply, ReplyPolicy, Request
from .sample_counts import check_unchanged


class RequestMessages:
    """Packs requests into messages, and unpacks and checks the replies.

    Args:
        task: The task of the run.
        algorithm: The algorithm of the run.
        policy: The conditions that replies must meet.
        names: The names of the clients.
        clients: The state of clients at the server.
    """

    def __init__(
        self, task: Task, algorithm: Algorithm, policy: ReplyPolicy, names: Sequence[str], clients: ClientStore
    ) -> None:
        self._task, self._policy, self._names = task, policy, names
        self._coded = CodedMessages(algorithm, task.model, task.seed)
        self._clipping = UploadClipping(algorithm)
        self.held = HeldVectors(self._coded, clients)

    @property
    def sends_differences(self) -> bool:
        """Whether x is sent as the difference to what a client holds."""
        return "x" in self._coded.down

    def compose(self, request: Request, t: int, has_model: Container[int] = ()) -> dict[int, RecordDict]:
        """Return the message to each client.

        Args:
            request: The request.
            t: The round in its header.
            has_model: Clients to which x is not sent.
        """
        vectors = self._packed(request, t, has_model)
        return {
            i: wire.compose({"run": self._policy.run, "round": t, "client": i} | dict(header), vectors(i))
            for i, header in request.headers.items()
        }

    def _packed(self, request: Request, t: int, has_model: Container[int]) -> Callable[[int], ArrayRecord]:
        """Return what gives the vectors of the message to a client."""
        rest, whole = request.msg, ({"x": request.x} if request.sends_x else {}) | request.msg
        if request.phase is not None and self._coded.down:
            compress = self._policy.compress
            return lambda i: wire.pack(self.held.message(rest if i in has_model else whole, t, i), compress)
        packed_rest, packed_whole = wire.pack(rest), wire.pack(whole)
        return lambda i: packed_rest if i in has_model else packed_whole

    def validate(self, request: Request, t: int, client: int, content: RecordDict) -> Reply:
        """Check the reply to a request of round t, and return what it contains.

        Raises:
            wire.RefusedError: If it cannot be used.
        """
        model, policy = self._task.model, self._policy
        header = wire.header_up(request.kind, content)
        samples = int(self._task.data.sizes[client])
        wire.check_equal(header, run=policy.run, round=t, client=client)
        check_unchanged(self._names[client], header["samples"], samples)
        codecs = {} if request.phase is None else self._coded.up
        shapes = self._coded.shapes(request.vectors, codecs)
        vectors = wire.vectors_in(content, shapes, model.dtype, request.raw.union(codecs))
        reply = Reply(
            vectors if request.phase is None else self._coded.uploads(vectors, t, client, request.phase),
            wire.numbers_in(content, dict.fromkeys(request.numbers, (1,)), request.dtype),
        )
        wire.check_finite({name: v for name, v in reply.vectors.items() if v.numel() == model.size}, policy.norm_bound)
        others = {name: v for name, v in reply.vectors.items() if v.numel() != model.size}
        wire.check_finite(others | ({} if request.undefined else reply.numbers))
        return reply if request.raw else self._clipping.applied(request, reply)
