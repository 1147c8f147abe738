"""`RunSpec`: every option of a run, validated once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import nn

from ..aggregation import Aggregation
from ..algorithm import Algorithm
from ..attacks import Attack
from ..codecs.compose import coding_of, with_codecs
from ..codecs.links import Link, convert_link, is_link, record_link
from ..core.callback import Callback
from ..core.losses import Loss, LossFunction, class_weights_rule
from ..core.metric_functions import Metrics, named_metrics
from ..core.model_outputs import OutputFunction
from ..core.module_kind import plain_module
from ..core.personal_parameters import Personal, as_personal, is_personal, personal_names, record_personal
from ..core.precision import Precision
from ..core.statistics_layout import CLIENT_MODES, BatchNormMode
from ..core.validation import (
    LARGE,
    LOCAL,
    Rule,
    boolean,
    count,
    non_negative,
    one_of,
    path,
    positive,
    require,
    text_up_to,
)
from ..core.validation import seed as seed_rule
from ..data.federated import FederatedData
from ..engine.buffer import Buffer
from ..engine.lr_schedule import Decay
from ..engine.simulated_clock import System
from ..evaluation.evaluate_clients import EvaluateClients
from ..local.batch_norm import with_batch_norm
from ..local.chain import Local, is_local
from ..local.compose import with_local
from ..local.personal import with_personal
from ..privacy.mechanism import Mechanism
from ..selection.availability import Availability
from ..selection.selector import Selector
from ..storage.checkpoint_schedule import CheckpointInterval, interval_rule
from .batchnorm import apply_batchnorm
from .callback_list import OnRound, check_callback
from .decay import compare_decay, convert_decay, is_decay, record_decay
from .options import instance_of, option, options, options_of
from .private import compose_at_clients, compose_privately
from .robust import compose_robustly


def _record_target(v: Any) -> Any:
    return {str(metric): float(value) for metric, value in v.items()} if isinstance(v, Mapping) else None


def _record_dtype(v: torch.dtype) -> str:
    return str(v).removeprefix("torch.")


def _convert_class_weights(v: Any) -> Any:
    return v if isinstance(v, str) else tuple(float(w) for w in v)


def _convert_local(v: Any) -> Local:
    return tuple(v) if isinstance(v, Sequence) else v


def _record_local(v: Local | None) -> str | list[str] | None:
    return [repr(one) for one in v] if isinstance(v, Sequence) else None if v is None else repr(v)


def _record_object(v: Any) -> str | None:
    return None if v is None else repr(v)


def _is_metrics(v: Any) -> bool:
    return isinstance(v, Mapping | Sequence) and not isinstance(v, str)


def _record_loss(v: str | LossFunction) -> str:
    return Loss(v).name


def _record_function(v: Callable[..., Any] | None) -> str | None:
    return None if v is None else getattr(v, "__qualname__", type(v).__qualname__)


@options
class RunSpec:
    """Every option of a run; the arguments of `fm.run`.

    The arguments of `fm.run` and `fm.run_many`, the keys of configuration files, the record in a run's folder, the
    comparison when a run is resumed, and the deployment follow from the fields of this class.
    """

    model: nn.Module = option(
        "Any module; docs/models.md says what is refused. The run starts from its weights and leaves it unchanged.",
        instance_of(nn.Module, "a torch.nn.Module"),
        convert=plain_module,
        kw_only=False,
        resume="not recorded",  # RunInfo holds its fingerprint
    )
    data: FederatedData = option(
        "The federation, from `fm.datasets.load(...).partition(...)` or `FederatedData.from_arrays`.",
        instance_of(
            FederatedData, "a fedmos.FederatedData", "dataset.partition(...) or fm.FederatedData.from_arrays(...)"
        ),
        kw_only=False,
        resume="not recorded",  # RunInfo holds its fingerprint
    )
    algorithm: Algorithm = option(
        "What clients and server compute, e.g. `fm.FedMoS(lr=0.01)`.",
        instance_of(Algorithm, "a fedmos.Algorithm"),
        kw_only=False,
        record=repr,
        shared=True,
        per_run=True,
    )
    selection: Selector = option(
        "Which clients take part in a round, e.g. `fm.ACS(m=25)`.",
        instance_of(Selector, "a fedmos.Selector"),
        kw_only=False,
        record=repr,
        per_run=True,
    )
    rounds: int = option("Maximum number of rounds.", count, convert=int, resume="may change")
    local_steps: int | None = option(
        "Local steps per round; give exactly one of `local_steps` and `local_epochs`.",
        count.up_to(LOCAL),
        default=None,
        convert=int,
        shared=True,
    )
    local_epochs: int | None = option(
        "Passes over the local data per round.", count.up_to(LOCAL), default=None, convert=int, shared=True
    )
    batch_size: int | None = option(
        "Samples per step; None uses all local data, so that only client selection is random.",
        count,
        default=None,
        convert=int,
        shared=True,
    )
    loss: str | LossFunction = option(
        '"cross_entropy", "mse", "bce", a loss of PyTorch with any reduction, a callable (outputs, targets) → mean '
        "over the batch, or `fm.losses.Batch(f)` for a loss that is no mean over samples.",
        default="cross_entropy",
        record=_record_loss,
        shared=True,
    )
    outputs: OutputFunction | None = option(
        "Takes the tensor of outputs from what the model returns; by default `.logits` of Hugging Face outputs, or the "
        "only tensor of a tuple or dictionary.",
        Rule("a function from what the model returns to a tensor", callable),
        default=None,
        record=_record_function,
        toml=False,
        shared=True,
    )
    batchnorm: BatchNormMode | None = option(
        'What becomes of BatchNorm layers: "group" (converted to GroupNorm), "local" (each client keeps its running '
        'statistics), "local-affine" (and its scales and shifts), "frozen" (the statistics that the model was given); '
        "None refuses them in training mode. See docs/models.md.",
        one_of("group", "local", "local-affine", "frozen"),
        default=None,
        shared=True,
    )
    class_weights: Literal["balanced"] | Sequence[float] | None = option(
        'Weights of the classes in the loss `cross_entropy`, as a list or as "balanced": inversely proportional to '
        'their frequency in the training data of all clients. With `bce`, "balanced" weights the positive targets.',
        class_weights_rule,
        default=None,
        convert=_convert_class_weights,
        shared=True,
    )
    lr_decay: Decay = option(
        "Factor of the step size per round; a mapping from round (from 0) to a factor that applies from that round on, "
        "on top of earlier ones: `{150: .5, 300: .5}`; or a function from the round to the factor in it, such as "
        "`fm.schedules.Cosine(rounds=500)`.",
        Rule("> 0, or factors > 0 by round", is_decay),
        default=1.0,
        convert=convert_decay,
        record=record_decay,
        compare=compare_decay,
    )
    weight_decay: float = option(
        "Every gradient g at y becomes clip(g) + weight_decay · y.",
        non_negative.up_to(LARGE),
        default=0.0,
        convert=float,
        shared=True,
    )
    clip: float | None = option(
        "Maximum norm of a gradient; None for no clipping.",
        positive.up_to(LARGE),
        default=None,
        convert=float,
        shared=True,
    )
    local: Local | None = option(
        "The local optimiser, e.g. `fm.local.AdamW()`, or a list of them from left to right: what clients make of the "
        "algorithm's direction; see docs/local.md.",
        Rule("an optimiser of fm.local or a list of them", is_local),
        default=None,
        convert=_convert_local,
        record=_record_local,
        shared=True,
    )
    personal: Personal | Sequence[str] | None = option(
        'Parameters that stay with each client and are not sent: patterns of names such as `["head.*"]`, or '
        '`fm.Personal(["head.*"], steps=…)`, which trains them first; see docs/personal.md.',
        Rule("patterns of names such as ['head.*'], or an fm.Personal", is_personal),
        default=None,
        convert=as_personal,
        record=record_personal,
        shared=True,
    )
    uplink: Link | None = option(
        "The codec of uploads, e.g. `fm.codecs.TopK(0.01)`, a list of codecs from left to right, or a mapping of names "
        "of uploads to those, where other uploads are sent as they are; see docs/codecs.md.",
        Rule("a codec of fm.codecs, a list of them, or a mapping of names to those", is_link),
        default=None,
        convert=convert_link,
        record=record_link,
        shared=True,
    )
    downlink: Link | None = option(
        "The codec of what the server sends, as `uplink`: clients are sent the coded difference to what they hold.",
        Rule("a codec of fm.codecs, a list of them, or a mapping of names to those", is_link),
        default=None,
        convert=convert_link,
        record=record_link,
        shared=True,
    )
    privacy: Mechanism | None = option(
        "Differential privacy of each client, e.g. `fm.privacy.Gaussian(clip=1.0, noise_multiplier=1.0, delta=1e-5)`: "
        "uploads are clipped and sums, or uploads, get noise; see docs/privacy.md.",
        instance_of(Mechanism, "a mechanism of fedmos.privacy"),
        default=None,
        record=_record_object,
        shared=True,
    )
    aggregation: Aggregation | None = option(
        "What the server takes in place of weighted means of uploads, e.g. `fm.aggregation.Median()`; None for the "
        "means. See docs/robust.md.",
        instance_of(Aggregation, "a fedmos.aggregation.Aggregation"),
        default=None,
        record=_record_object,
        shared=True,
    )
    attack: Attack | None = option(
        "What hostile clients of the simulation do, e.g. `fm.attacks.SignFlip(share=0.2)`; None for no attack.",
        instance_of(Attack, "a fedmos.attacks.Attack"),
        default=None,
        record=_record_object,
    )
    eval_every: int = option(
        "Evaluate after every so many rounds, and after the last.",
        count,
        default=1,
        convert=int,
        resume="not recorded",
    )
    evaluate_clients: EvaluateClients | int | None = option(
        "Evaluate every client on its own test samples after every so many rounds, and after the last, or as "
        "`fm.EvaluateClients(every=10, sample=100, finetune_steps=5)` says; None for no such evaluation.",
        Rule("an integer ≥ 1 or a fedmos.EvaluateClients", lambda v: count.test(v) or isinstance(v, EvaluateClients)),
        default=None,
        convert=lambda v: v if isinstance(v, EvaluateClients) else EvaluateClients(every=int(v)),
        resume="not recorded",
    )
    target: Mapping[str, float] | None = option(
        'Metrics to reach, e.g. `{"accuracy": 0.95}`; the run ends when all are reached.',
        default=None,
        record=_record_target,
        resume="may change",
        per_run=True,
    )
    keep_best: str | None = option(
        'A metric, e.g. "accuracy": the model of the round with its best value is kept as `result.best_model`.',
        text_up_to(200),
        default=None,
    )
    metrics: Metrics | None = option(
        "Metrics on the test set beside loss and accuracy: a mapping of names to functions (outputs, targets) → number "
        "or a list such as `[fm.metrics.AUC()]`; None for those that suit the task (regression, labels, two classes).",
        Rule("a mapping of names to functions, or a list of fm.metrics", _is_metrics),
        default=None,
        resume="not recorded",
    )
    update_norms: bool = option(
        "Whether to record the norm of every client's update, as `record.update_norms`, where clients send one.",
        boolean,
        default=False,
        resume="not recorded",
    )
    seed: int = option(
        "Determines every random number of the run.", seed_rule, default=0, convert=int, shared=True, per_run=True
    )
    device: str | torch.device = option(
        '"auto" (CUDA if available), or a device.', default="auto", resume="not recorded"
    )  # RunInfo holds the device that was found
    dtype: torch.dtype = option(
        "torch.float32 or torch.float64.",
        one_of(torch.float32, torch.float64),
        default=torch.float32,
        record=_record_dtype,
        shared=True,
    )
    precision: Precision = option(
        'None for the arithmetic of `dtype`; "tf32" (GPU) or "bf16" for faster, less exact products.',
        one_of("tf32", "bf16"),
        default=None,
        shared=True,
    )
    engine: Literal["auto", "loop", "batched"] = option(
        '"loop" (the plain reference), "batched" (the cohort as one program), or "auto".',
        one_of("auto", "loop", "batched"),
        default="auto",
        resume="not recorded",  # RunInfo holds the engine that was chosen
    )
    availability: Availability | None = option(
        "Which clients are available in which round, e.g. `fm.Alternating()`; None for all.",
        instance_of(Availability, "a fedmos.Availability"),
        default=None,
        record=repr,
    )
    system: System | None = option(
        "Simulated clock with deadlines, e.g. `fm.System(deadline=60, over_select=1.3)`; None for no clock.",
        instance_of(System, "a fedmos.System"),
        default=None,
        record=repr,
    )
    buffer: Buffer | None = option(
        "Asynchronous rounds on the simulated clock, e.g. `fm.Buffer(size=10, concurrency=50)`: the server steps when "
        "so many updates have arrived; None for synchronous rounds. See docs/asynchronous.md.",
        instance_of(Buffer, "a fedmos.Buffer"),
        default=None,
        record=_record_object,
    )
    out: str | os.PathLike[str] | None = option(
        "Folder of the run: its configuration, metrics, log and checkpoints; see docs/reliability.md.",
        path,
        default=None,
        resume="not recorded",
        per_run=True,
    )
    resume: bool = option(
        "Continue the run in `out`; start anew if there is none, return the result if it is finished.",
        boolean,
        default=False,
        resume="not recorded",
        toml=False,
    )
    checkpoint_every: CheckpointInterval = option(
        'Save in `out` after every so many rounds, or after a time such as "30s" or "5min"; None spends a twentieth of '
        "the time on checkpoints and saves at most every ten seconds.",
        interval_rule,
        default=None,
        resume="not recorded",
        per_run=True,
    )
    on_bad_update: Literal["stop", "drop"] = option(
        'At a non-finite update, "stop" (DivergenceError) or "drop" the client for the round.',
        one_of("stop", "drop"),
        default="stop",
    )
    label: str | None = option(
        "Label of the run in its progress bar and in reports; by default the name of the algorithm.",
        text_up_to(200),
        default=None,
        resume="may change",
        per_run=True,
    )
    progress: bool | None = option(
        "Whether to show the progress on the standard error: a bar on a terminal, else a line every few seconds. None "
        "shows the bar on a terminal, and lines only in a log of level INFO (`logging`).",
        boolean,
        default=None,
        resume="not recorded",
        toml=False,
    )
    callbacks: Sequence[Callback | OnRound] = option(
        "`Callback` objects such as `fm.EarlyStopping()`, or functions of a round's record, or of the record and the "
        "model.",
        Rule("a sequence of callbacks", lambda v: isinstance(v, Sequence) and not isinstance(v, str | bytes)),
        default=(),
        resume="not recorded",
        toml=False,
    )

    def __post_init__(self) -> None:
        for name, described in options_of(self).items():
            object.__setattr__(self, name, described.checked("run", name, getattr(self, name)))
        require(type(self.algorithm).__name__, "lr", getattr(self.algorithm, "lr", None), positive)
        Loss(self.loss)
        self._check_class_weights()
        _ = self.composed_algorithm
        named_metrics(self.metrics or {})
        for callback in self.callbacks:
            check_callback(callback)
        if (self.local_steps is None) == (self.local_epochs is None):
            got = "both" if self.local_steps is not None else "neither"
            raise ValueError(f"run: exactly one of 'local_steps' and 'local_epochs' must be given, got {got}")
        if self.out is None and (self.resume or self.checkpoint_every is not None):
            raise ValueError("run: 'out' must be a folder where 'resume' or 'checkpoint_every' is given, got None")

    def _check_class_weights(self) -> None:
        weights, loss = self.class_weights, self.loss
        if weights is None or loss == "cross_entropy" or (loss == "bce" and weights == "balanced"):
            return
        name = loss if isinstance(loss, str) else Loss(loss).name
        raise ValueError(
            f"Cannot use class_weights with the loss {name}; use loss='cross_entropy', 'balanced' with loss='bce', or "
            "a loss with weights of its own"
        )

    @cached_property
    def trained_model(self) -> nn.Module:
        """The model with its BatchNorm layers as the option `batchnorm` says."""
        return apply_batchnorm(self.model, self.batchnorm)

    @property
    def _personal(self) -> Personal | None:
        return None if self.personal is None else as_personal(self.personal)

    @cached_property
    def personal_names(self) -> list[str]:
        """The names of the parameters that stay with each client."""
        return personal_names(self.trained_model, self._personal)

    @property
    def has_client_statistics(self) -> bool:
        """Whether clients keep running statistics of BatchNorm layers."""
        return self.batchnorm in CLIENT_MODES

    @property
    def clocked(self) -> System | None:
        """The simulated system; an asynchronous run has one in any case."""
        return System() if self.system is None and self.buffer is not None else self.system

    @cached_property
    def composed_algorithm(self) -> Algorithm:
        """The algorithm with all options that change what clients and server compute, as the engine runs it."""
        return compose_robustly(self, compose_privately(self, self.algorithm_before_noise))

    @cached_property
    def algorithm_before_noise(self) -> Algorithm:
        """The algorithm with all but noise on sums, aggregation rules and attacks.

        That is with local optimisers, personal parameters, local privacy, codecs and BatchNorm state.
        """
        shared = with_personal(
            with_local(self.algorithm, self.local), self.trained_model, self._personal, self.local_steps
        )
        coded = with_codecs(compose_at_clients(self, shared), self.uplink, self.downlink)
        if self.batchnorm == "local-affine" and any(vector.name == "x" for vector in coding_of(coded).down):
            raise ValueError(
                "Cannot use 'downlink' with batchnorm='local-affine' because what a client holds of x contains its own "
                "scales and shifts, which the server does not know; use batchnorm='local'"
            )
        return with_batch_norm(coded, self.model, self.batchnorm, self.personal_names)

    def recorded(self) -> dict[str, Any]:
        """Return the options that a run's folder records, as JSON to read."""
        return {
            name: getattr(self, name) if described.record is None else described.record(getattr(self, name))
            for name, described in options_of(self).items()
            if described.resume != "not recorded"
        }

    def values_to_compare(self) -> dict[str, Any]:
        """Return the options that must be the same when the run is resumed, by value."""
        return {name: o.comparable(getattr(self, name)) for name, o in options_of(self).items() if o.resume == "same"}

    def shared_values(self) -> dict[str, Any]:
        """Return the options that clients and server of a deployment must have in common, by value."""
        return {name: o.comparable(getattr(self, name)) for name, o in options_of(self).items() if o.shared}
