"""Execution of the server's requests on a client, by the engine of a simulation on the client's own data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import RecordDict
from torch import Tensor

from ..algorithm import Context as RoundContext
from ..algorithm import Vectors
from ..codecs.compose import at_client
from ..config.client_policy import ClientPolicy
from ..core.formatting import format_value
from ..core.precision import arithmetic
from ..data.federated import FederatedData
from ..engine.client_store import ClientStore
from ..engine.cohort_size import cohort_size
from ..engine.declaration import Declaration, Shapes, check_declaration
from ..engine.execution_plan import choose_plan
from ..engine.job import Job, Phase
from ..engine.local_backend import LocalBackend
from ..engine.malloc import trim_memory
from ..engine.reports import in_training, uploaded_numbers
from ..engine.secure_sums import secure_rule
from ..engine.state import initial_client_state
from ..engine.task import on_device
from ..engine.task_check import check_fit
from ..evaluation.metrics import Evaluator
from ..privacy.client_noise import has_client_noise, with_client_noise
from ..rng import signed
from ..run.build import build_task
from ..run.preflight import find_device
from ..selection.selector import REPORTS
from . import wire
from .audit_log import AuditLog
from .client_errors import ClientError, ClientErrorCode, coded_errors
from .client_folder import RUN_ID, ClientFolder
from .client_guard import ClientGuard, check_protection
from .client_place import client_place
from .client_samples import LoadClientData, client_samples
from .client_scoring import ClientScoring
from .client_setup import OwnData
from .coded_messages import CodedMessages, as_sent
from .deployment import Deployment
from .private_files import make_private_folder
from .request_journal import Question
from .secret_noise import ClientSecret, SecretClientNoise
from .secure_client import SecureClient, distributed_part
from .upload_protection import UploadProtection

_ONLY_CLIENT = torch.zeros(1, dtype=torch.int64)
"""Number of the client in its own federation of one."""
_MAX_ROUND = 10**9


class _Payload(NamedTuple):
    """The tensors of a reply."""

    vectors: Vectors
    numbers: Vectors


class ClientRuntime:
    """One client: its data, its model and its folder."""

    def __init__(
        self,
        deployment: Deployment,
        client: str,
        folder: str,
        load: LoadClientData | None,
        policy: ClientPolicy | None = None,
        load_tests: LoadClientData | None = None,
        number: Any = None,
    ) -> None:
        self._deployment, self._root = deployment, Path(folder)
        spec, names = deployment.spec, deployment.names
        self.number, self.name = client_place(client, number, names)
        self.algorithm = spec.composed_algorithm
        check_declaration(self.algorithm)
        self._rule = secure_rule(self.algorithm)
        device = find_device(spec.device)
        with coded_errors(ClientErrorCode.DATA):
            given = client_samples(deployment, load, load_tests, self.number, self.name)
            self._inputs = load.inputs_hash(self.name) if isinstance(load, OwnData) else ""
        data = on_device(given, device, spec.dtype)
        zero = torch.zeros(1, dtype=torch.int64, device=device)
        origin = (zero + signed(spec.seed), zero + self.number)
        self._task = build_task(spec, device, data, origin=origin, shares=True)
        self.model = self._task.model
        self._coded = CodedMessages(self.algorithm, self.model, spec.seed)
        own, policy = self._root / self.name, policy or ClientPolicy()
        secret = ClientSecret(own / "noise.key")
        self._noise = SecretClientNoise(secret) if has_client_noise(self.algorithm) else None
        self.algorithm = at_client(self.algorithm, self.model.size, self.model.dtype)
        if self._noise is not None:
            self.algorithm = with_client_noise(self.algorithm, self._noise)
        check_fit(self._task)
        check_protection(policy, Declaration(spec.composed_algorithm, self.model.layers))
        self._guard = ClientGuard(deployment, spec.composed_algorithm, policy, self.samples, own / "requests.sqlite")
        self._protect = UploadProtection(policy, secret)
        self._audit = AuditLog(own, self.name)
        m = cohort_size(spec.selection, spec.system, len(names))
        with arithmetic(self.model.precision):
            self._plan = choose_plan(deployment.engine, self._task, m)
        if self.model.size * self.model.dtype.itemsize >= wire.LARGE:
            trim_memory()  # what was needed to receive the message and to check the model

    @property
    def samples(self) -> int:
        """Number of the client's samples."""
        return int(self._task.data.sizes[0])

    @property
    def data(self) -> FederatedData:
        """The client's samples, as a federation of one."""
        return self._task.data

    def allows(self, kind: str) -> bool:
        """Whether the client's policy allows a kind of request."""
        return self._guard.allows(kind)

    @torch.no_grad()
    def metrics(self, x: Tensor) -> Vectors:
        """Return the metrics of a model on the client's samples, each (1,)."""
        evaluator = Evaluator([self._task])
        return dict(zip(evaluator.names, evaluator(x[None])[0].split(1), strict=True))

    @torch.no_grad()
    def handle(self, kind: str, content: RecordDict) -> RecordDict:
        """Execute a request and write a line of the audit log; returns the content of the reply.

        Raises:
            wire.RefusedError: If the request is invalid, or the client's policy does not allow it.
            ValueError: If the client's stored state is missing, or its update is not finite.
        """
        try:
            header = wire.header_down(kind, content)
            reply = {"run": header["run"], "round": header["round"], "client": self.number, "samples": self.samples}
            if kind == wire.HELLO:
                compatibility_hash = self._deployment.compatibility_hash(self.model)
                reply |= {
                    "name": self.name,
                    wire.COMPATIBILITY_HASH: compatibility_hash,
                    wire.INPUTS_HASH: self._inputs,
                }
            payload = _Payload({}, {}) if kind == wire.HELLO else self._answer(kind, header, content)
            vectors = wire.pack(payload.vectors, self._deployment.deploy.compress)
            composed = wire.compose(reply, vectors, wire.pack(payload.numbers))
        except Exception as error:
            self._audit.refused(kind, content, error)
            raise
        self._audit.sent(kind, content, payload.vectors, payload.numbers, composed)
        return composed

    def _answer(self, kind: str, header: Mapping[str, Any], content: RecordDict) -> _Payload:
        """Return the tensors of the reply to a request for work."""
        wire.check_equal(header, client=self.number)
        if not RUN_ID.fullmatch(header["run"]) or not 0 <= header["round"] < _MAX_ROUND:
            raise wire.RefusedError(f"there is no round {header['round']} of run {format_value(header['run'])}")
        self._guard.check(kind, header)
        make_private_folder(self._root / self.name)
        with arithmetic(self.model.precision):
            if kind in (wire.PREPARE, wire.TRAIN, wire.REPORT, wire.KEYS):
                return self._run_phase(kind, header, content)
            if kind in (wire.SHARES, wire.MASKED, wire.UNMASK):
                return _Payload(self._secure(header).answer(kind, header, content), {})
            if kind == wire.UPLOAD:
                return self._send_upload(header, content)
            if kind == wire.SCORES:
                return _Payload({}, self._scores(header, content))
            return self._query(kind, header, content)

    def _secure(self, header: Mapping[str, Any]) -> SecureClient:
        assert self._rule is not None
        return SecureClient(
            self._rule, self.number, self._folder(header), distributed_part(self.algorithm, self._guard)
        )

    def _query(self, kind: str, header: Mapping[str, Any], content: RecordDict) -> _Payload:
        """Evaluate losses, gradients or metrics at x, without training."""
        x, _, asked = self._receive(kind, header, content)
        if kind == wire.EVALUATE:
            return _Payload({}, self.metrics(x))
        backend, t = self._backend(), header["round"]
        if kind == wire.LOSSES:
            return _Payload({}, {"loss": backend.losses(x, t, _ONLY_CLIENT, header["batch"]).to(x.dtype)})
        return _Payload(self._protect({"gradient": backend.gradients(x, t, _ONLY_CLIENT)[0]}, asked), {})

    def _scores(self, header: Mapping[str, Any], content: RecordDict) -> Vectors:
        """Evaluate the client on its own test samples."""
        task = self._backend(header["p"]).task
        fewest = self._guard.policy.min_samples
        scoring = ClientScoring(self._deployment.spec, task, self.algorithm, self._plan, fewest)
        shapes = scoring.shapes(dict.fromkeys(wire.names_in(content)))
        received = wire.vectors_in(content, shapes, self.model.dtype)
        own = self._state_before(header)
        self._guard.admit(wire.SCORES, header, received)
        return scoring.scores({name: v.to(self.model.device) for name, v in received.items()}, own, header)

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
        state = self._state_before(header)
        x, msg, asked = self._receive(kind, header, content, message, needs_x="x" in declaration.down, own=state)
        backend = self._backend(header["p"])
        if self._noise is not None:
            self._noise.asked = asked
        trained = in_training(reports)
        result = backend.executor.execute(self._make_job(phase, header, x, msg, state)._replace(reports=trained))
        if not bool(result.report[0, 0].isfinite()):
            raise ClientError(
                ClientErrorCode.NOT_FINITE, f"The update of client {self.name} in round {t + 1} is not finite"
            )
        numbers = {name: v.to(x.dtype) for name, v in backend.reports(x, _ONLY_CLIENT, reports).items()}
        for row, name in enumerate(trained, start=1):
            numbers[name] = result.report[row, :1].to(x.dtype)
        uploads = self._protect(as_sent({name: v[0] for name, v in result.uploads.items()}), asked)
        if phase == "train":
            folder.save_state(t, last, state | {name: v[0] for name, v in result.own.items()})
        if kind == wire.KEYS:
            return _Payload(self._secure(header).keys(header, declaration, phase, uploads, asked), numbers)
        if kind == wire.REPORT:
            folder.save_upload(t, uploads)
            return _Payload({}, numbers)
        folder.drop_upload()
        return _Payload(uploads, numbers)

    def _state_before(self, header: Mapping[str, Any]) -> Vectors:
        """Return the state that the client starts from, as far as it does not begin anew."""
        initial, stored = initial_client_state(self.algorithm, self.model), header["stored"]
        if stored and not RUN_ID.fullmatch(stored):
            raise wire.RefusedError(f"there is no run {format_value(stored)}")
        folder = ClientFolder(self._root, self.name, stored or header["run"])
        anew = [name for name in header["restart"].split(",") if name]
        if not set(anew) <= set(self.algorithm.population_sums.values()):
            raise wire.RefusedError(f"there is no state {format_value(header['restart'])} that begins anew")
        return folder.load_state(header["last"], initial) | {name: initial[name] for name in anew}

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
        kind: str,
        header: Mapping[str, Any],
        content: RecordDict,
        message: Shapes | None = None,
        needs_x: bool = True,
        own: Vectors | None = None,
    ) -> tuple[Tensor, Vectors, Question]:
        """Return x and the other tensors of a request, after it is entered in the journal of answered requests.

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
        if has_x:
            x = received.pop("x")
        else:
            initial = self.model.initial()
            x = self._folder(header).load_model(header["round"], initial) if needs_x else initial
        asked = self._guard.admit(kind, header, received | ({"x": x} if has_x or needs_x else {}))
        if has_x and header.get("keep"):
            self._folder(header).save_model(header["round"], x)
        return x, received, asked

    def _folder(self, header: Mapping[str, Any]) -> ClientFolder:
        return ClientFolder(self._root, self.name, header["run"], self._deployment.deploy.keep_checkpoints)

    def _backend(self, importance: float = 1.0) -> LocalBackend:
        data = replace(self._task.data, importance=torch.tensor([importance], dtype=torch.float64))
        return LocalBackend(replace(self._task, data=data), self.algorithm, self._plan, clients=ClientStore({}, 1))


def _parse_reports(text: str, declaration: Declaration) -> list[str]:
    reports = text.split(",") if text else []
    if not set(reports) <= {*REPORTS, *uploaded_numbers(declaration)}:
        raise wire.RefusedError(f"there are no reports {format_value(text)}")
    return reports
