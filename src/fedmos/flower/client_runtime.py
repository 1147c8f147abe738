"""Execution of the server's requests on a client, by the engine of a simulation on the client's own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import RecordDict
from torch import Tensor

from ..algorithm import Context as RoundContext
from ..algorithm import Vectors
from ..codecs.compose import at_client
from ..core.formatting import format_value
from ..core.precision import arithmetic
from ..data.federated import FederatedData
from ..engine.client_store import ClientStore
from ..engine.cohort_size import cohort_size
from ..engine.declaration import Declaration, Shapes, check_declaration
from ..engine.execution_plan import choose_plan
from ..engine.job import Job, Phase
from ..engine.local_backend import LocalBackend
from ..engine.reports import in_training, uploaded_numbers
from ..engine.secure_sums import secure_rule
from ..engine.state import initial_client_state
from ..engine.task import on_device
from ..engine.task_check import check_fit
from ..evaluation.metrics import Evaluator
from ..rng import signed
from ..run.build import build_task
from ..run.preflight import find_device
from ..selection.selector import REPORTS
from . import wire
from .client_folder import RUN_ID, ClientFolder
from .coded_messages import CodedMessages, as_sent
from .deployment import Deployment, client_part
from .secure_client import SecureClient

LoadClientData = Callable[[str], Any]
"""Takes a client's name; returns its samples, (x, y), or a `FederatedData` of one client."""

_ONLY_CLIENT = torch.zeros(1, dtype=torch.int64)
"""Number of the client in its own federation of one."""
_MAX_ROUND = 10**9


class _Payload(NamedTuple):
    """The tensors of a reply."""

    vectors: Vectors
    numbers: Vectors


class ClientRuntime:
    """One client: its data, its model and its folder."""

    def __init__(self, deployment: Deployment, client: str, folder: str, load: LoadClientData | None) -> None:
        self._deployment, self._root = deployment, Path(folder)
        spec, names = deployment.spec, deployment.names
        self.number = _client_number(client, names)
        self.name = names[self.number]
        self.algorithm = spec.composed_algorithm
        check_declaration(self.algorithm)
        self._rule = secure_rule(self.algorithm)
        device = find_device(spec.device)
        data = on_device(_client_data(deployment, load, self.number), device, spec.dtype)
        zero = torch.zeros(1, dtype=torch.int64, device=device)
        self._task = build_task(spec, device, data, origin=(zero + signed(spec.seed), zero + self.number))
        self.model = self._task.model
        self._coded = CodedMessages(self.algorithm, self.model, spec.seed)
        self.algorithm = at_client(self.algorithm, self.model.size, self.model.dtype)
        check_fit(self._task)
        m = cohort_size(spec.selection, spec.system, len(names))
        with arithmetic(self.model.precision):
            self._plan = choose_plan(deployment.engine, self._task, m)

    @property
    def samples(self) -> int:
        """Number of the client's samples."""
        return int(self._task.data.sizes[0])

    @torch.no_grad()
    def handle(self, kind: str, content: RecordDict) -> RecordDict:
        """Execute a request; returns the content of the reply.

        Raises:
            wire.RefusedError: If the request is invalid.
            ValueError: If the client's stored state is missing, or its update is not finite.
        """
        header = wire.header_down(kind, content)
        reply = {"run": header["run"], "round": header["round"], "client": self.number, "samples": self.samples}
        if kind == wire.HELLO:
            compatibility_hash = self._deployment.compatibility_hash(self.model)
            return wire.compose(reply | {"name": self.name, wire.COMPATIBILITY_HASH: compatibility_hash})
        wire.check_equal(header, client=self.number)
        if not RUN_ID.fullmatch(header["run"]) or not 0 <= header["round"] < _MAX_ROUND:
            raise wire.RefusedError(f"there is no round {header['round']} of run {format_value(header['run'])}")
        with arithmetic(self.model.precision):
            self._check_kind(kind, header)
            if kind in (wire.PREPARE, wire.TRAIN, wire.REPORT, wire.KEYS):
                payload = self._run_phase(kind, header, content)
            elif kind in (wire.SHARES, wire.MASKED, wire.UNMASK):
                payload = _Payload(self._secure(header).answer(kind, header, content), {})
            elif kind == wire.UPLOAD:
                payload = self._send_upload(header, content)
            else:
                payload = self._query(kind, header, content)
        vectors = wire.pack(payload.vectors, self._deployment.deploy.compress)
        return wire.compose(reply, vectors, wire.pack(payload.numbers))

    def _check_kind(self, kind: str, header: Mapping[str, Any]) -> None:
        """Refuse requests for more than clipped uploads under privacy, or than masked ones by secure aggregation."""
        trains = kind in (wire.PREPARE, wire.TRAIN, wire.KEYS, wire.SHARES, wire.MASKED, wire.UNMASK)
        if self._deployment.spec.privacy is not None and (not trains or header.get("reports")):
            raise wire.RefusedError(
                "this client's configuration has privacy: it sends clipped uploads and nothing else"
            )
        masked = kind in (wire.KEYS, wire.SHARES, wire.MASKED, wire.UNMASK)
        plain = kind in (wire.PREPARE, wire.TRAIN, wire.REPORT, wire.UPLOAD, wire.GRADIENTS)
        if plain and self._rule is not None:
            raise wire.RefusedError("this client sends vectors by secure aggregation only")
        if masked and self._rule is None:
            raise wire.RefusedError("this client's configuration has no secure aggregation")

    def _secure(self, header: Mapping[str, Any]) -> SecureClient:
        assert self._rule is not None
        return SecureClient(self._rule, self.number, self._folder(header))

    def _query(self, kind: str, header: Mapping[str, Any], content: RecordDict) -> _Payload:
        """Evaluate losses, gradients or metrics at x, without training."""
        x, _ = self._receive(header, content)
        if kind == wire.EVALUATE:
            evaluator = Evaluator([self._task])
            return _Payload({}, dict(zip(evaluator.names, evaluator(x[None])[0].split(1), strict=True)))
        backend, t = self._backend(), header["round"]
        if kind == wire.LOSSES:
            return _Payload({}, {"loss": backend.losses(x, t, _ONLY_CLIENT, header["batch"]).to(x.dtype)})
        return _Payload({"gradient": backend.gradients(x, t, _ONLY_CLIENT)[0]}, {})

    def _send_upload(self, header: Mapping[str, Any], content: RecordDict) -> _Payload:
        """Return the upload that was kept when the client trained in this round, without numbers sent before."""
        wire.vectors_in(content, {}, self.model.dtype)
        declaration = Declaration(self.algorithm, self.model.layers)
        sent = _parse_reports(header["reports"], declaration)
        like = {name: torch.empty(shape, dtype=self.model.dtype) for name, shape in declaration.up("train").items()}
        upload = self._folder(header).load_upload(header["round"], as_sent(like))
        return _Payload({name: v for name, v in upload.items() if name not in sent}, {})

    def _run_phase(self, kind: str, header: Mapping[str, Any], content: RecordDict) -> _Payload:
        """Run the extra phase or local training; the latter updates the client's stored state."""
        phase: Phase = "prepare" if kind == wire.PREPARE or header.get("phase") == "prepare" else "train"
        declaration = Declaration(self.algorithm, self.model.layers)
        reports = _parse_reports(header["reports"], declaration)
        message = {} if phase == "prepare" else declaration.message
        t, last, folder = header["round"], header["last"], self._folder(header)
        state = folder.load_state(last, initial_client_state(self.algorithm, self.model))
        x, msg = self._receive(header, content, message, needs_x="x" in declaration.down, own=state)
        backend = self._backend(header["p"])
        trained = in_training(reports)
        result = backend.executor.execute(self._make_job(phase, header, x, msg, state)._replace(reports=trained))
        if not bool(result.report[0, 0].isfinite()):
            raise ValueError(f"The update of client {self.name} in round {t + 1} is not finite")
        numbers = {name: v.to(x.dtype) for name, v in backend.reports(x, _ONLY_CLIENT, reports).items()}
        for row, name in enumerate(trained, start=1):
            numbers[name] = result.report[row, :1].to(x.dtype)
        uploads = as_sent({name: v[0] for name, v in result.uploads.items()})
        if phase == "train":
            folder.save_state(t, last, state | {name: v[0] for name, v in result.own.items()})
        if kind == wire.KEYS:
            return _Payload(self._secure(header).keys(header, declaration, phase, uploads), numbers)
        if kind == wire.REPORT:
            folder.save_upload(t, uploads)
            return _Payload({}, numbers)
        folder.drop_upload()
        return _Payload(uploads, numbers)

    def _make_job(self, phase: Phase, header: Mapping[str, Any], x: Tensor, msg: Vectors, state: Vectors) -> Job:
        lr = torch.full((), header["lr"], dtype=x.dtype, device=x.device)
        return Job(
            phase=phase,
            ids=_ONLY_CLIENT,
            ctx=RoundContext(t=header["round"], lr=lr, N=header["N"], S=header["S"], W=header["W"]),
            lr=[header["lr"]],
            W=[header["W"]],
            x=x,
            msg=msg,
            own={name: v[None] for name, v in state.items()},
            last=torch.tensor([header["last"]]),
            factors={},
            width=max(header["width"], self.samples),
        )

    def _receive(
        self,
        header: Mapping[str, Any],
        content: RecordDict,
        message: Shapes | None = None,
        needs_x: bool = True,
        own: Vectors | None = None,
    ) -> tuple[Tensor, Vectors]:
        """Return x and the other tensors of a request.

        If the request does not contain x, x is read from the client's folder: it was sent earlier in the round. For an
        algorithm that does not send x, the initial model stands in its place, which no method reads. With the client's
        state `own`, coded vectors are decoded, unless this is the client's first round.
        """
        expected = dict(message or {})
        has_x = "x" in wire.names_in(content)
        if has_x:
            expected["x"] = (self.model.size,)
        codecs = {} if own is None or header["last"] < 0 else self._coded.down
        received = wire.vectors_in(content, self._coded.shapes(expected, codecs), self.model.dtype, codecs)
        received = self._coded.downloads(received, own or {}, header["round"], self.number)
        received = {name: v.to(self.model.device) for name, v in received.items()}
        if not has_x and not needs_x:
            return self.model.initial(), received
        if not has_x:
            return self._folder(header).load_model(header["round"], self.model.initial()), received
        x = received.pop("x")
        if header.get("keep"):
            self._folder(header).save_model(header["round"], x)
        return x, received

    def _folder(self, header: Mapping[str, Any]) -> ClientFolder:
        return ClientFolder(self._root, self.name, header["run"])

    def _backend(self, importance: float = 1.0) -> LocalBackend:
        data = replace(self._task.data, importance=torch.tensor([importance], dtype=torch.float64))
        return LocalBackend(replace(self._task, data=data), self.algorithm, self._plan, clients=ClientStore({}, 1))


def _client_number(client: str, names: Sequence[str]) -> int:
    """Look up a client's number by its name, or by its number as text."""
    known = list(names)
    if client in known:
        return known.index(client)
    if client.isascii() and client.isdigit() and int(client) < len(known):
        return int(client)
    raise ValueError(
        f"node: 'client' must be one of {', '.join(known[:20])}, or its number, got {format_value(client)}"
    )


def _client_data(deployment: Deployment, load: LoadClientData | None, number: int) -> FederatedData:
    """The samples of one client, loaded by name or taken from the configuration's data."""
    if load is None:
        if deployment.data is None:
            raise ValueError("client_app: 'data' must be given where the configuration holds none")
        return client_part(deployment.data, number)
    loaded = load(deployment.names[number])
    data = loaded if isinstance(loaded, FederatedData) else FederatedData.from_arrays([loaded])
    if len(data) != 1:
        raise ValueError(f"client_app: 'data' must give the samples of one client, got {len(data)}")
    return client_part(data, 0)


def _parse_reports(text: str, declaration: Declaration) -> list[str]:
    reports = text.split(",") if text else []
    if not set(reports) <= {*REPORTS, *uploaded_numbers(declaration)}:
        raise wire.RefusedError(f"there are no reports {format_value(text)}")
    return reports
