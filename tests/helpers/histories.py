"""Histories with given values."""

from fedmos.core.history import History, Record


def history(values, metric="accuracy", clock=True):
    return History(
        [
            Record(
                round=t,
                cohort=[0],
                weights=[1.0],
                bytes_down=10**6,
                bytes_up=2 * 10**6,
                seconds=0.0,
                clock=t * 2.0 if clock else None,
                **{metric: v},
            )
            for t, v in enumerate(values, 1)
        ]
    )
