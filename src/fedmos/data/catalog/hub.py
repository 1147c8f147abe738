"""Data sets of the Hugging Face hub, through the library `datasets`."""

from __future__ import annotations

import importlib.util
import os
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from .chunks import PARTS, Items, Origin, Part
from .entries import CatalogEntry
from .errors import UnreachableError, invalid_data
from .tables import SampleTable, items

_SECONDS = 5
_OLDEST = 3
"""Older versions of `datasets` may run code that a data set brings."""


def origin(entry: CatalogEntry, name: str, config: str | None = None, online: bool = True) -> Origin:
    """A data set of the hub's, OWNER/NAME. Nothing is asked of the hub before it is read, which the store may save."""
    place = f"hf://{name}"

    def read() -> Items:
        if not online:
            raise UnreachableError("not asked")
        yield from items(_HubTable(place, fetch(name, config)), entry)

    return Origin(place, [[place, config]], read)


def fetch(name: str, config: str | None) -> Any:
    """A DatasetDict, or UnreachableError with the reason."""
    spec = importlib.util.find_spec("datasets")
    if spec is None or spec.origin is None:
        raise UnreachableError("the library `datasets` is not installed (pip install datasets)")
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        if os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE"):
            raise UnreachableError(f"{variable} is set")
    check_reachable()
    import datasets

    if int(datasets.__version__.split(".")[0]) < _OLDEST:
        raise UnreachableError(f"`datasets` {datasets.__version__} may run others' code; use {_OLDEST}.0 or later")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the library thinks of its own dependencies
            return datasets.load_dataset(name, config)
    except Exception as error:  # it passes on whatever its many back ends raise
        raise UnreachableError(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error


def check_reachable() -> None:
    """See whether the hub answers, whatever it says: without a network, `datasets` itself tries for half a minute."""
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    request = urllib.request.Request(endpoint, method="HEAD")
    answer: list[str | None] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(request, timeout=_SECONDS).close()
            answer.append(None)
        except urllib.error.HTTPError as error:
            error.close()
            answer.append(None)
        except (OSError, ValueError) as error:
            answer.append(f"{endpoint} cannot be reached: {getattr(error, 'reason', error)}")

    asking = threading.Thread(target=ask, daemon=True)  # a resolver may take longer than any timeout of ours
    asking.start()
    asking.join(2 * _SECONDS)
    reason = answer[0] if answer else f"{endpoint} did not answer within {2 * _SECONDS} seconds"
    if reason is not None:
        raise UnreachableError(reason)


class _HubTable(SampleTable):
    """A DatasetDict as a table; images stay encoded, as they lie in the files."""

    def __init__(self, place: str, splits: Any) -> None:
        self.place = place
        if not isinstance(splits, dict) or "train" not in splits:
            raise invalid_data(place, "it has no split called train")
        self.splits = splits
        self.parts = tuple(part for part in PARTS if part in splits)
        self.columns = tuple(splits["train"].column_names)

    def rows(self, part: Part) -> int:
        return len(self.splits[part])

    def batches(self, part: Part, columns: Sequence[str], size: int) -> Iterator[Any]:
        chosen = self.splits[part].select_columns(list(columns)).with_format("arrow")
        for table in chosen.iter(batch_size=size):
            yield from table.combine_chunks().to_batches()
