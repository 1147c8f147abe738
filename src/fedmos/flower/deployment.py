"""The options of a deployed run, which server and clients derive from the same configuration."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..aggregation import Secure
from ..codecs.compose import coding_of
from ..config.deploy import Deploy, names_rule
from ..config.schema import RunConfig, load
from ..core.declared_fields import names_of
from ..core.flat_model import FlatModel
from ..core.formatting import format_value
from ..core.own_code import own_files
from ..core.version import __version__
from ..data.arrays import importance_of, offsets_of
from ..data.federated import FederatedData
from ..engine.execution_plan import override
from ..privacy.compose import follows_deliveries
from ..privacy.discrete import DiscreteGaussian
from ..privacy.gaussian import Gaussian
from ..privacy.local import Local
from ..privacy.matrix_factorization import MatrixFactorization
from ..privacy.sums import BELOW
from ..run.options import call_with_options, options_of
from ..run.spec import RunSpec

Given = str | os.PathLike[str] | RunConfig | Mapping[str, Any]
"""The path of a configuration file, a `RunConfig`, or a mapping of `fm.run`'s arguments and "deploy"."""

_NO_DATA = FederatedData(
    x=torch.empty(0),
    y=torch.empty(0),
    index=None,
    offsets=torch.zeros(1, dtype=torch.int64),
    importance=torch.empty(0, dtype=torch.float64),
)
"""Placeholder for data that only the clients have."""

_BY_SERVER = ("resume", "checkpoint_every")
"""Options that the server always sets itself."""


@dataclass(frozen=True)
class Deployment:
    """The options of a run, and of its deployment."""

    spec: RunSpec
    deploy: Deploy
    config: Mapping[str, Any] | None = None
    """The configuration to store in the run folder, if the run has one."""
    agreed: Mapping[str, Any] = field(default_factory=dict)
    """What all clients agree on of their own data, for the tables of data in their own files."""

    @classmethod
    def of(cls, given: Given) -> Deployment:
        """Create a deployment. The result for a configuration is cached in this process."""
        if isinstance(given, Mapping):
            return cls._of_arguments(given)
        settings = given if isinstance(given, RunConfig) else load(RunConfig, Path(given))
        text = settings.model_dump_json()
        if text not in _CACHE:
            _CACHE[text] = cls._of_settings(settings)
        return _CACHE[text]

    @classmethod
    def _of_settings(cls, settings: RunConfig) -> Deployment:
        if settings.diagnostics is not None:
            raise ValueError("Cannot measure diagnostics in a deployment because clients keep their data; simulate it")
        deploy = settings.deploy.make() if settings.deploy else Deploy()
        data = _stand_in(deploy) if settings.data.of_clients else None
        parts = settings.arguments(settings.algorithm, settings.selection, settings.seed, data, out=settings.out)
        if data is not None:
            del parts["data"]
        made = cls._of_arguments(parts | {"deploy": deploy})
        agreed = (settings.data.arguments or {}) if settings.data.of_clients else {}
        return replace(made, config=settings.kept(exclude={"out"}), agreed=agreed)

    @classmethod
    def _of_arguments(cls, given: Mapping[str, Any]) -> Deployment:
        deploy = given.get("deploy", Deploy())
        if not isinstance(deploy, Deploy):
            raise ValueError(f"deployment: 'deploy' must be a fedmos.flower.Deploy, got {format_value(deploy)}")
        chosen = {name: value for name, value in given.items() if name not in (*_BY_SERVER, "deploy")}
        parts = {"data": _no_data(deploy)} | chosen
        made = cls(call_with_options("deployment", RunSpec, (), parts), deploy)
        if made.spec.class_weights == "balanced":
            raise ValueError(
                "Cannot balance the classes in a deployment because the server does not see the clients' labels; use a "
                "list of weights"
            )
        if made.spec.buffer is not None:
            _check_buffered(made.spec, deploy)
        if made.spec.attack is not None:
            raise ValueError(
                f"Cannot use attack={made.spec.attack!r} in a deployment because hostile clients are simulated; use "
                "fm.run"
            )
        if made.spec.privacy is not None:
            _check_private(made.spec, deploy)
        if isinstance(made.spec.aggregation, Secure) and isinstance(deploy.norm_bound, int | float):
            raise ValueError(
                "Cannot use norm_bound with secure aggregation because the server sees no single update; use 'bound' "
                "of fm.aggregation.Secure"
            )
        if made.data is None and deploy.clients is None:
            raise ValueError("deployment: 'deploy' must name the clients where there is no 'data'")
        if made.data is not None and deploy.clients is not None and len(deploy.clients) != len(made.data):
            raise ValueError(
                f"Deploy: 'clients' must be a name for each of {len(made.data)} clients, got {len(deploy.clients)}"
            )
        return made

    @property
    def data(self) -> FederatedData | None:
        """The federated data, or None if only the clients have it."""
        return None if self.spec.data.x is _NO_DATA.x else self.spec.data

    @property
    def names(self) -> Sequence[str]:
        """Names of the clients, in the order of their numbers."""
        if self.deploy.clients is not None:
            return self.deploy.clients
        assert self.data is not None
        given = self.data.names
        return given if given and names_rule.test(given) else [str(i) for i in range(len(self.data))]

    @property
    def engine(self) -> Literal["loop", "batched"]:
        """The engine of every client. It does not depend on the client's machine, so that results are reproducible."""
        return "loop" if self.spec.engine == "auto" else self.spec.engine

    def compatibility_hash(self, model: FlatModel) -> str:
        """Hash of the options, model and fedmos version that every client must share with the server.

        Names are no part of it: a client states its own name and number, and others can be admitted later.
        """
        parts = [
            __version__,
            self.spec.shared_values(),
            model.fingerprint(),
            override(self.engine),
            self._initial_state_hash(model),
            *self._own_code_hashes(),
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    def _own_code_hashes(self) -> list[str]:
        """Hashes of the files of own classes that clients use."""
        used = [name for name, option in options_of(self.spec).items() if option.shared or name == "model"]
        return sorted(own_files(getattr(self.spec, name) for name in used).values())

    def _initial_state_hash(self, model: FlatModel) -> str:
        """Hash of the clients' state before the first round, where the algorithm initialises it."""
        algorithm, digest = self.spec.composed_algorithm, hashlib.sha256()
        given = algorithm.init(model.initial())
        for name in names_of(algorithm.client_state):
            if name in given:
                digest.update(given[name].cpu().numpy().tobytes())
        return digest.hexdigest()


_CACHE: dict[str, Deployment] = {}
"""Deployments created in this process, by their configuration as JSON."""


def _no_data(deploy: Deploy) -> FederatedData:
    """Return the placeholder for the data of the named clients."""
    N = len(deploy.clients or ())
    p = torch.full((N,), 1 / max(1, N), dtype=torch.float64)
    return replace(_NO_DATA, offsets=torch.zeros(N + 1, dtype=torch.int64), importance=p)


def _check_buffered(spec: RunSpec, deploy: Deploy) -> None:
    """Refuse questions to all clients, for whose answers an asynchronous server would wait."""
    if deploy.train_metrics or spec.evaluate_clients is not None:
        name, instead = (
            ("train_metrics=True", "train_metrics=False") if deploy.train_metrics else ("evaluate_clients", "no buffer")
        )
        raise ValueError(
            f"Cannot use buffer={spec.buffer!r} with {name} in a deployment because the server would wait for the "
            f"metrics of all clients; use {instead}, or a test set at the server"
        )


def _stand_in(deploy: Deploy) -> FederatedData:
    """Return a federation of the named clients with a sample each, to check everything else with."""
    if deploy.clients is None:
        raise ValueError("deployment: 'deploy' must name the clients where there is no 'data'")
    return FederatedData.from_arrays([(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))] * len(deploy.clients))


def _check_private(spec: RunSpec, deploy: Deploy) -> None:
    """Refuse mechanisms without noise of the operating system, and options with which clients would send more."""
    if type(spec.privacy) not in (Gaussian, MatrixFactorization, Local, DiscreteGaussian):
        raise ValueError(
            f"Cannot use privacy={spec.privacy} in a deployment because its noise follows from the seed, which every "
            "client knows; use a mechanism of fm.privacy"
        )
    if spec.evaluate_clients is not None:
        raise ValueError(
            "Cannot use privacy= with evaluate_clients in a deployment because clients would send losses and "
            "accuracies without noise; use a test set at the server"
        )
    if deploy.train_metrics:
        raise ValueError(
            "Cannot use privacy= with train_metrics=True because clients would send losses and accuracies without "
            "noise; use train_metrics=False and a test set at the server"
        )
    if spec.uplink is not None and not isinstance(spec.privacy, Local):  # noise comes before codecs
        algorithm = spec.composed_algorithm
        coded = {vector.name for vector in coding_of(algorithm).up} | {BELOW}
        others = [name for name in names_of((*algorithm.up, *algorithm.prepare_up)) if name not in coded]
        if others or follows_deliveries(algorithm):
            why = f"it also sends {', '.join(others)}" if others else "its state depends on them"
            raise ValueError(
                f"Cannot use privacy= with uplink={spec.uplink} and {type(algorithm).__name__} in a deployment because "
                f"the server clips encoded uploads, which a client cannot do, and {why}; use uplink=None"
            )


def preload(config: Given) -> None:
    """Create the model and data of a configuration before its apps need them.

    Processes that are forked from this one share them instead of creating them again.

    Args:
        config: The configuration of `server_app` and `client_app`: a path or a `RunConfig`. A mapping is not cached.

    Raises:
        ValueError: If the configuration is invalid.

    Example:
        >>> from fedmos.flower import preload
        >>> preload("run.toml")  # doctest: +SKIP
    """
    Deployment.of(config)


def server_part(data: FederatedData) -> FederatedData:
    """Return the part that the server needs: the clients' sizes and the test set. One sample replaces all others."""
    n = int(data.offsets[-1])
    x, y = data.stored(0)
    index = torch.zeros(1, dtype=torch.int64).expand(n)
    return replace(data, x=x[:1], y=y[:1], index=index, tests=None, unseen=None, augment=None)


def reported_data(sizes: Sequence[int], test: tuple[Any, Any]) -> FederatedData:
    """Return the server's data if only the clients have samples: the sizes that they report, and the test set."""
    whole = FederatedData.from_arrays([test], test)
    n: Tensor = torch.tensor(list(sizes))
    return replace(
        whole,
        x=whole.x[:1],
        y=whole.y[:1],
        index=torch.zeros(1, dtype=torch.int64).expand(int(n.sum())),
        offsets=offsets_of(n),
        importance=importance_of(n),
    )
