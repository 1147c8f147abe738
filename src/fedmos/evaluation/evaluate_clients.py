"""`fm.EvaluateClients`: when and how clients are evaluated on their own test samples."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.validation import LOCAL, check, count, none, whole_number


@dataclass(frozen=True, kw_only=True)
class EvaluateClients:
    """How clients are evaluated on their own test samples; a value of the option `evaluate_clients`.

    Args:
        every: Evaluate after every so many rounds, and after the last.
        sample: Evaluate a random sample of so many clients, the same in all rounds; None for all clients.
        finetune_steps: Also evaluate the model after so many local steps on the client's training samples, with the
            run's step size, batch size and local optimiser; 0 for no fine-tuning.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> data = fm.datasets.load("digits").partition(fm.partition.IID(), clients=10, holdout=0.2)
        >>> result = fm.run(
        ...     model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=4, local_steps=1, batch_size=8,
        ...     evaluate_clients=fm.EvaluateClients(every=2, finetune_steps=5),
        ... )
        >>> [record.client_accuracy is not None for record in result.history]
        [False, True, False, True]
        >>> result.client_accuracy.shape
        torch.Size([10])
        >>> result.history[-1].client_metrics["finetuned_accuracy"] > 0
        True
    """

    every: int = 1
    sample: int | None = None
    finetune_steps: int = 0

    def __post_init__(self) -> None:
        check(self, every=count, sample=count | none, finetune_steps=whole_number.up_to(LOCAL))
