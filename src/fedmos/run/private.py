"""The option `privacy` in a run: what it refuses, how cohorts are drawn, and the ε of each round."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..aggregation.secure import Secure
from ..algorithm import Algorithm
from ..core.metric_names import is_client_metric
from ..engine.cohort_size import cohort_size, over_selecting
from ..engine.private_run import PrivateRun
from ..local.adam import Adam
from ..privacy.accountants import Accountant, accountant, check_accountant
from ..privacy.at_clients import with_local_privacy
from ..privacy.compose import is_stateful, with_privacy
from ..privacy.discrete import DiscreteGaussian
from ..privacy.distributed import distributed_noise, with_distributed_noise
from ..privacy.gaussian import Gaussian
from ..privacy.local import Local
from ..privacy.matrix_factorization import MatrixFactorization
from ..privacy.noise import SecretStreams
from ..privacy.participation import cohort_sizes, scheduled
from ..privacy.sampling import CohortSampling, private_selector, sampling_of
from ..selection.availability import Always
from ..selection.selector import Selector
from .early_stopping import EarlyStopping

if TYPE_CHECKING:
    from .spec import RunSpec

_log = logging.getLogger("fedmos")
_MEANINGS = {Local: "local, any data", DiscreteGaussian: "with or without the uploads of one client"}


def compose_at_clients(spec: RunSpec, algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with local privacy, if the run has it: noise comes before codecs, on what clients send."""
    if not isinstance(spec.privacy, Local):
        return algorithm
    _check_data(spec)
    _sampling(spec, algorithm)
    return with_local_privacy(algorithm, spec.privacy)


def compose_privately(spec: RunSpec, algorithm: Algorithm) -> Algorithm:
    """Return the algorithm, which is composed with all other options, with noise on its sums, if the run has it."""
    if spec.privacy is None or isinstance(spec.privacy, Local):
        return algorithm
    _check_data(spec)
    if isinstance(spec.privacy, DiscreteGaussian):
        return _compose_distributed(spec, spec.privacy, algorithm)
    _check_cohorts(spec)
    sampling = _sampling(spec, algorithm)
    check_accountant(spec.privacy, sampling, spec.selection)
    if isinstance(spec.privacy, MatrixFactorization):
        scheduled(_selector(spec), sampling.clients)
    return with_privacy(algorithm, spec.privacy, size=sampling.size, clients=sampling.clients, steps=spec.local_steps)


def _compose_distributed(spec: RunSpec, privacy: DiscreteGaussian, algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with integer noise at clients."""
    secure = spec.aggregation
    if not isinstance(secure, Secure):
        raise ValueError(
            "Cannot use DiscreteGaussian without secure aggregation because the noise of a single client is too small "
            "to protect its upload; use aggregation=fm.aggregation.Secure()"
        )
    if not isinstance(spec.availability, Always | None):
        raise ValueError(
            "Cannot use DiscreteGaussian with 'availability' because smaller cohorts add less noise; leave it out"
        )
    sampling, trained = _sampling(spec, algorithm), [p for p in spec.trained_model.parameters() if p.requires_grad]
    sizes = cohort_sizes(_selector(spec), sampling.clients)
    return with_distributed_noise(
        algorithm,
        privacy,
        parameters=sum(p.numel() for p in trained),
        layers=len(trained),
        size=sizes.most,
        clients=sampling.clients,
        steps=spec.local_steps,
        bits=secure.bits,
        least=secure.needed(sizes.least),
    )


def private_run(spec: RunSpec, secret: SecretStreams | None = None) -> PrivateRun | None:
    """Return what the engine needs to know of a private run."""
    if (account := _accountant(spec)) is None:
        return None
    size = None if isinstance(spec.privacy, Local) else account.sampling.size
    # Without amplification cohorts need not be hidden, and may follow a schedule that depends on one seed.
    seed = None if secret is None or account.sampling.law == "none" else secret.cohort_seed
    return PrivateRun(size, account.epsilon, seed)


def has_noisy_sums(spec: RunSpec) -> bool:
    """Return whether sums are private as a whole: cohorts are hidden, and what clients upload is clipped only."""
    return spec.privacy is not None and not isinstance(spec.privacy, Local)


def selector_of(spec: RunSpec) -> Selector:
    """Return the selector of the run: under noise on sums, the one whose cohorts the accountant assumes."""
    return private_selector(spec.selection) if has_noisy_sums(spec) else spec.selection


def affordable_rounds(spec: RunSpec) -> int:
    """Return the number of rounds of the run: `rounds`, or fewer where more would exceed the privacy budget.

    Raises:
        ValueError: If the first round exceeds the budget.
    """
    account, budget = _accountant(spec), None if spec.privacy is None else spec.privacy.budget
    if account is None or budget is None or account.epsilon(spec.rounds) <= budget:
        return spec.rounds
    if (first := account.epsilon(1)) > budget:
        raise ValueError(
            f"Cannot keep the privacy budget of ε = {budget:g} because the first round spends {first:.3g}; use a "
            "larger 'noise_multiplier', see `fedmos privacy plan`"
        )
    low, high = 1, spec.rounds  # ε(low) ≤ budget < ε(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if account.epsilon(middle) <= budget else (low, middle)
    return low


def describe_privacy(spec: RunSpec) -> None:
    """Log what the guarantee of a private run is about, and what weakens it."""
    if (account := _accountant(spec)) is None or spec.privacy is None:
        return
    sampling, spent = account.sampling, account.epsilon(affordable_rounds(spec))
    if sampling.law == "none" and isinstance(spec.privacy, Gaussian):
        _log.warning("Privacy is not amplified by sampling because %s", sampling.why)
    if spec.privacy.delta * sampling.clients >= 1:
        _log.warning("Privacy: 'delta' should be less than 1/N = %.2g, got %g", 1 / sampling.clients, account.delta)
    for metric in _deciding_metrics(spec):
        if metric.startswith("train_") or is_client_metric(metric):
            _log.warning(
                "Privacy: ε does not count that %s, computed from the clients' data, decides on a model", metric
            )
    text = "∞" if math.isinf(spent) else f"{spent:.3g}"
    meaning = _MEANINGS.get(type(spec.privacy), f"{sampling.adjacency} one client")
    _log.info("Privacy: ε = %s at δ = %g (%s)", text, account.delta, meaning)


def _deciding_metrics(spec: RunSpec) -> list[str]:
    """Return the metrics that end the run or choose its best model."""
    stopping = [callback.metric for callback in spec.callbacks or () if isinstance(callback, EarlyStopping)]
    return list(dict.fromkeys([*(spec.target or ()), *stopping, *([spec.keep_best] if spec.keep_best else [])]))


def _accountant(spec: RunSpec) -> Accountant | None:
    if spec.privacy is None:
        return None
    noise = distributed_noise(spec.composed_algorithm)
    loss = None if noise is None else noise.loss
    return accountant(spec.privacy, _sampling(spec, spec.algorithm_before_noise), _selector(spec), loss)


def _selector(spec: RunSpec) -> Selector:
    """Return the selector with over-selection."""
    return spec.selection if spec.system is None else over_selecting(spec.selection, spec.system, len(spec.data))


def _sampling(spec: RunSpec, algorithm: Algorithm) -> CohortSampling:
    N = len(spec.data)
    return sampling_of(
        spec.selection,
        N,
        size=cohort_size(spec.selection, spec.system, N),
        stateful=is_stateful(algorithm),
        availability=not isinstance(spec.availability, Always | None),
    )


def _check_cohorts(spec: RunSpec) -> None:
    """Refuse options that reveal more of a cohort than the noisy sums."""
    if spec.update_norms:
        raise ValueError(
            "Cannot use privacy= with update_norms because the norms of single updates would be recorded without "
            "noise; use update_norms=False"
        )
    if spec.system is not None and spec.system.quorum > 0:
        raise ValueError(
            "Cannot use privacy= with a quorum because an abandoned round reveals how many clients took part; use "
            "System(quorum=0)"
        )


def _check_data(spec: RunSpec) -> None:
    """Refuse options by which clients' data are used without noise."""
    if spec.class_weights == "balanced":
        raise ValueError(
            "Cannot use privacy= with class_weights='balanced' because the numbers of samples of each class would be "
            "used without noise; use a list of weights"
        )
    chain = spec.local if isinstance(spec.local, Sequence) else [spec.local]
    if any(isinstance(one, Adam) and one.average for one in chain) and spec.privacy and spec.privacy.noise_multiplier:
        raise ValueError(
            "Cannot use privacy= with an averaged Adam or AdamW because noise makes the means of squares negative; use "
            "average=False, or keep=True"
        )
    if spec.has_client_statistics:
        raise ValueError(
            f"Cannot use privacy= with batchnorm={spec.batchnorm!r} because clients upload running statistics, which "
            "are no updates that can be clipped; use batchnorm='group' or 'frozen'"
        )
