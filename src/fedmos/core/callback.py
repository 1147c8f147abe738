"""The base class of callbacks."""

from __future__ import annotations

from typing import Any

from .history import History, Record


class Callback:
    """Base class of callbacks. Override the methods that you need.

    A plain function of a `Record`, or of a `Record` and the model, can be passed instead of a callback; it is called
    after each round.

    Example:
        >>> class PrintCohort(fm.Callback):
        ...     def on_round(self, record):
        ...         print(f"round {record.round}: {len(record.cohort)} clients")
        >>> result = fm.run(
        ...     model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=2, local_steps=1, batch_size=8,
        ...     callbacks=[PrintCohort()],
        ... )
        round 1: 3 clients
        round 2: 3 clients
    """

    def on_start(self, rounds: int, done: int) -> None:
        """Called before the first round.

        Args:
            rounds: The number of rounds of the run.
            done: The number of rounds that are complete already if the run is resumed, else 0.
        """

    def on_round(self, record: Record, *args: Any, **kwargs: Any) -> None:
        """Called after each round.

        An override has the parameter `record`, or `record` and `model`. The model is only made for overrides that take
        it: a copy of the module on the CPU, in evaluation mode, with the weights after the round.

        Args:
            record: The record of the round.
            args: The model, for an override with two parameters.
            kwargs: Not used.
        """

    def should_stop(self, history: History) -> bool:
        """Return whether the run is complete. Called after each round, and before the first round of a resumed run.

        A run that ends in this way is finished: its result is not `interrupted`.

        Args:
            history: The records of all rounds so far.
        """
        return False

    def on_end(self, result: Any) -> None:
        """Called after the last round or after an interruption.

        Args:
            result: The `Result` of the run.
        """
