"""The checks of an algorithm, which also serve a local optimiser."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..algorithm import Algorithm
from ..codecs import Float16
from ..core.declared_fields import names_of
from ..engine.backend import Backend
from ..engine.cohort import Cohort
from ..engine.declaration import check_declaration, check_model
from ..engine.personal_models import personal_models
from ..engine.watch import defined_methods, watched
from ..local.chain import Local
from ..run.backends import BackendSetting, local_backend
from ..run.many import run_many
from ..run.result import Result
from ..run.spec import RunSpec
from .findings import Findings
from .trial import ROUNDS, SIZES, TrialRun, independent_copy, options
from .watcher import MethodWatcher

_TOLERANCE = 1e-6
"""Relative difference that rounding explains, also where a method computes in float32."""

Check = tuple[str, Callable[[], None]]
"""The title of a check, and what it does."""


@dataclass
class AlgorithmChecks:
    """Trains an algorithm in several ways that must agree."""

    algorithm: Algorithm
    findings: Findings
    local_steps: int | None
    local: Local | None = None
    """The local optimiser that is checked; None to check the algorithm."""

    def __post_init__(self) -> None:
        self._results: dict[str, Result] = {}
        self._runs: dict[str, TrialRun] = {}
        self._watchers: dict[str, MethodWatcher] = {}
        self._owner = type(self.algorithm if self.local is None else self.local).__name__

    def checks(self) -> list[Check]:
        """Return the checks in their order."""
        return [
            ("declaration", lambda: check_declaration(self.algorithm)),
            ("methods, one client at a time", lambda: self._watch("loop")),
            ("methods, a cohort at a time", lambda: self._watch("batched")),
            ("a client alone against a cohort", self._compare_engines),
            ("bytes", self._check_bytes),
            ("personal model, gradient estimate", self._check_models),
            ("blocks of a cohort, as on several ranks", self._compare_blocks),
            ("the same run again, resumed", self._compare_resumed),
            ("merged runs", self._compare_merged),
            ("coded uploads", self._compare_coded),
            ("uploads that no sum contains", self._check_unused),
        ]

    def _spec(self, algorithm: Algorithm | None = None, **changes: Any) -> RunSpec:
        local = {} if self.local is None else {"local": independent_copy(self.local)}
        chosen = independent_copy(self.algorithm) if algorithm is None else algorithm
        return RunSpec(algorithm=chosen, **options(self.local_steps, **local, **changes))

    def _watch(self, engine: str) -> None:
        """Train with a watcher of all methods."""
        watcher = MethodWatcher(self.findings)
        algorithm, local = watched(independent_copy(self.algorithm), watcher), self.local
        if local is not None and not isinstance(local, tuple | list) and defined_methods(type(local)):
            local = watched(independent_copy(local), watcher)
        changes: dict[str, Any] = {"engine": engine} | ({} if local is None else {"local": local})
        run = TrialRun(RunSpec(algorithm=algorithm, **options(self.local_steps, **changes)))
        self._results[engine] = run.play()
        self._runs[engine], self._watchers[engine] = run, watcher

    def _compare_engines(self) -> None:
        """Compare what methods return for a client in a cohort with what they return for the client alone."""
        if len(self._results) < 2 or self.findings.any_of("draws", "varies"):
            return
        batched = self._watchers["batched"].trace
        for key, alone in self._watchers["loop"].trace.items():
            for name, v in alone.items():
                other = batched.get(key, {}).get(name)
                if other is None or not _close(v, other):
                    step = f", step {key.k + 1}" if key.k >= 0 else ""
                    self.findings.add(
                        f"{self._owner}: '{key.method}' must return for a client in a cohort what it returns for the "
                        f"client alone, but {name} differs (client {key.client}, round {key.t + 1}{step}); reduce "
                        "each client's row only, with dim=-1, keepdim=True, and do not use the number of rows",
                        "cohort",
                    )
                    return
        difference = _difference(self._results["loop"], self._results["batched"])
        if difference is not None:
            self.findings.add(
                f"{self._owner}: {self._methods()} must compute for a client in a cohort what is computed for the "
                f"client alone, but {difference} differs; use dim=-1, keepdim=True to reduce",
                "cohort",
            )

    def _methods(self) -> str:
        own = defined_methods(type(self.algorithm if self.local is None else self.local))
        return " and ".join(f"'{name}'" for name in own) or "the algorithm"

    def _check_bytes(self) -> None:
        """Compare the recorded bytes with those of the tensors that were sent."""
        if "loop" not in self._results or self.local is not None:
            return
        result, watcher = self._results["loop"], self._watchers["loop"]
        D, number = result.params.numel(), result.params.itemsize
        model = D if "x" in names_of(self.algorithm.down) else 0
        for record in result.history:
            t, M = record.round - 1, len(record.cohort)
            up = number * (self._uploaded(t) + (0 if "finish" in defined_methods(type(self.algorithm)) else M * D))
            down = number * M * (watcher.messages[t] + model) if t in watcher.messages else record.bytes_down
            for field, counted, sent in (("up", record.bytes_up, up), ("down", record.bytes_down, down)):
                if counted != sent:
                    self.findings.add(
                        f"{self._owner}: '{field}' must declare what is sent, but round {record.round} counts "
                        f"{counted} bytes for {sent}; return tensors of the declared shapes, the same in every round"
                    )

    def _uploaded(self, t: int) -> int:
        """Return how many numbers methods returned as uploads in round t."""
        return sum(
            v.numel()
            for key, values in self._watchers["loop"].trace.items()
            for name, v in values.items()
            if key.t == t and name.startswith("upload")
        )

    def _check_models(self) -> None:
        """Check what is called after a run only: its shapes, and clients' own models one by one and together."""
        run, own = self._runs.get("batched"), defined_methods(type(self.algorithm))
        if run is None:
            return
        if "personal" in own:
            ids = torch.tensor(run.state.history[-1].cohort)
            alone, together = (personal_models(run.state, ids, vectorised) for vectorised in (False, True))
            if not self.findings.any_of("draws", "varies"):
                self._compare_models(alone, together)
        if "gradient_estimate" in own:
            cohort = Cohort.of(torch.arange(3), torch.ones(3, dtype=torch.float64), run.task.data)
            estimate = run.state.gradient_estimate(cohort)
            if estimate is not None:
                check_model(self.algorithm, "gradient_estimate", estimate, run.state.x.shape)

    def _compare_models(self, alone: Tensor | None, together: Tensor | None) -> None:
        """Compare the models of clients' own, computed for one client after another and for all at once."""
        same = (alone is None) == (together is None)
        if not same or (alone is not None and together is not None and not _close(alone, together)):
            self.findings.add(
                f"{self._owner}: 'personal' must return for a client in a cohort what it returns for the client alone; "
                "reduce each client's row only, with dim=-1, keepdim=True, and do not use the number of rows",
                "cohort",
            )

    def _compare_blocks(self) -> None:
        """Compute a cohort in blocks of two clients, as several ranks do."""
        if "batched" not in self._results or self.findings.any_of("draws", "varies", "cohort"):
            return

        def in_blocks(given: BackendSetting) -> Backend:
            return local_backend(given._replace(plan=replace(given.plan, chunk=2, blockwise=True)))

        self._compare(
            TrialRun(self._spec(), make_backend=in_blocks).play(),
            "a cohort in blocks, as on several ranks, must come to the result of the whole cohort",
            "do not use the number of rows, and keep nothing outside of the declared state",
        )

    def _compare_resumed(self) -> None:
        """Compare the bits of a run of two parts with those of the same run in one."""
        if "batched" not in self._results or self.findings.any_of("draws", "varies", "keeps"):
            return
        with tempfile.TemporaryDirectory(prefix="fedmos-check-") as folder:
            out = Path(folder) / "run"
            TrialRun(self._spec(rounds=ROUNDS // 2, out=out)).play()
            resumed = TrialRun(self._spec(out=out, resume=True)).play()
        if _difference(self._results["batched"], resumed, 0.0) is None:
            return
        again = TrialRun(self._spec()).play()
        advice = "keep everything that later rounds need in the declared state, and draw from fedmos.rng"
        self._compare(again, "the same run must come to the same bits", advice, exact=True)
        rule = "a resumed run must come to the bits of a run without a break"
        self._compare(resumed, rule, advice, reference=again, exact=True)

    def _compare_merged(self) -> None:
        """Compare two runs side by side, whose numbers differ, with each of them alone."""
        varied = self._varied()
        if varied is None or "batched" not in self._results or self.findings.any_of("draws", "varies", "cohort"):
            return
        local = {} if self.local is None else {"local": self.local}
        runs = [{"algorithm": independent_copy(self.algorithm)}, {"algorithm": independent_copy(varied)}]
        merged = run_many(runs, **options(self.local_steps, **local))
        alone = [self._results["batched"], TrialRun(self._spec(varied)).play()]
        for together, single in zip(merged, alone, strict=True):
            self._compare(
                together,
                "a run beside another (fm.run_many) must come to the result of the run alone",
                "compute with the fields of self as with numbers, without float() or if",
                single,
            )

    def _compare_coded(self) -> None:
        """Compare engines where uploads are coded, which is when `delivered` is called."""
        if "delivered" not in defined_methods(type(self.algorithm)) or self.findings.any_of(
            "draws", "varies", "cohort"
        ):
            return
        loop, batched = (TrialRun(self._spec(engine=engine, uplink=Float16())).play() for engine in ("loop", "batched"))
        self._compare(
            batched,
            "'delivered' must return for a client in a cohort what it returns for the client alone",
            "reduce each client's row only, with dim=-1, keepdim=True",
            reference=loop,
        )

    def _check_unused(self) -> None:
        """Find uploads that nothing reads. Numbers may be reports of a selector."""
        if self.local is not None or len(self.findings):
            return
        algorithm = self.algorithm
        vectors = [field for field in algorithm.up if isinstance(field, str) or field[1] != ()]
        for field, uploads, reduce in (
            ("reduce", names_of(vectors), algorithm.reduce),
            ("prepare_reduce", names_of(algorithm.prepare_up), algorithm.prepare_reduce),
        ):
            used = {upload for upload, _ in reduce.values()}
            for name in (name for name in uploads if name not in used):
                up = field.replace("reduce", "up")
                self.findings.add(
                    f"{self._owner}: '{field}' must name the upload '{name}' because nothing else uses it; add a sum, "
                    f"e.g. {{'{name}': ('{name}', 'avg')}}, or leave it out of '{up}'"
                )

    def _varied(self) -> Algorithm | None:
        """Return the algorithm with other numbers; None if it has no fields that can be replaced."""
        if not is_dataclass(self.algorithm):
            return None
        numbers = {f.name: getattr(self.algorithm, f.name) for f in fields(self.algorithm) if f.init}
        floats = {name: v for name, v in numbers.items() if isinstance(v, float)}
        for changed in (floats, {"lr": self.algorithm.lr}):
            with suppress(Exception):  # a rule of the class
                return replace(independent_copy(self.algorithm), **{name: 0.9 * v for name, v in changed.items()})
        return None

    def _compare(
        self, result: Result, rule: str, advice: str, reference: Result | None = None, exact: bool = False
    ) -> None:
        """Compare a result with a reference: by default that of the watched run on the same engine."""
        reference = self._results["batched"] if reference is None else reference
        difference = _difference(reference, result, 0.0 if exact else _TOLERANCE)
        if difference is not None:
            self.findings.add(f"{self._owner}: {rule}, but {difference} differs; {advice}")


def _difference(a: Result, b: Result, tolerance: float = _TOLERANCE) -> str | None:
    """Return the name of what differs between two results; None if nothing does."""
    return next((name for name, v, w in _pairs(a, b) if not _close(v, w, tolerance)), None)


def _pairs(a: Result, b: Result) -> Iterator[tuple[str, Tensor, Tensor]]:
    yield "the model", a.params, b.params
    for name, v in a.server_state.items():
        yield f"state['{name}']", v, b.server_state[name]
    for i in range(len(SIZES)):
        own, other = a.client_state(i), b.client_state(i)
        yield from ((f"state '{name}' of client {i}", v, other[name]) for name, v in own.items())


def _close(a: Tensor, b: Tensor, tolerance: float = _TOLERANCE) -> bool:
    """Whether two tensors agree, relative to their largest value."""
    if a.shape != b.shape:
        return False
    a, b = a.double(), b.double()
    scale = max(1.0, float(a.abs().max())) if a.numel() else 1.0
    return torch.allclose(a, b, rtol=0, atol=tolerance * scale, equal_nan=True)
