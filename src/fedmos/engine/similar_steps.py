"""Groups of clients with similar numbers of local steps.

Clients that train together take as many steps as the one with the most; the others keep their models in the rest of
them. Where a cohort is divided into groups that train one after another, each group ends with its own last step.
"""

from __future__ import annotations

from torch import Tensor

_STEP = 8
"""The time of a step that does not depend on the number of clients, in times of a client. Measured on CPUs: 1 for a
convolutional network, 2 for a network of linear layers, 15 for logistic regression."""
_LEAST_GAIN = 1.1


def round_up(n: int) -> int:
    """Return n, or the next number with three leading bits: few shapes for many sizes."""
    step = 1 << max(0, n.bit_length() - 3)
    return -(n // -step) * step


def may_gain(steps: Tensor) -> bool:
    """Whether clients with these numbers of steps could train in much less time if none waited for another."""
    M, most = len(steps), int(steps.max())
    return most * (_STEP + M) > _LEAST_GAIN * (most * _STEP + int(steps.sum()))


def similar_steps(steps: Tensor) -> list[Tensor] | None:
    """Divide clients into the groups that train in the least time, estimated from their numbers of steps.

    The size of a group is one of few.

    Args:
        steps: The number of steps of each client, (M,).

    Returns:
        The positions of the clients of each group, in ascending order; None where one group is nearly as fast.

    Example:
        >>> similar_steps(torch.tensor([90, 5, 6, 4, 100, 5, 4, 6, 5, 5]))
        [tensor([0, 4]), tensor([1, 2, 3, 5, 6, 7, 8, 9])]
    """
    if not may_gain(steps):
        return None
    M = len(steps)
    order = steps.argsort(descending=True, stable=True)
    sizes = [n for n in range(1, M + 1) if round_up(n) == n]
    time, first = _best_cuts(steps[order].tolist(), sizes)
    if int(steps.max()) * (_STEP + M) <= _LEAST_GAIN * time:
        return None
    groups, end = [], M
    while end:
        groups.append(order[first[end] : end].sort().values)
        end = first[end]
    return groups[::-1]


def _best_cuts(steps: list[int], sizes: list[int]) -> tuple[int, list[int]]:
    """Cut a descending list into parts of these sizes in the least time.

    Returns:
        The time, and for each end of a part its start.
    """
    times, first = [0], [0]
    for end in range(1, len(steps) + 1):
        ways = ((times[end - n] + steps[end - n] * (_STEP + n), end - n) for n in sizes if n <= end)
        time, start = min(ways)
        times.append(time)
        first.append(start)
    return times[-1], first
