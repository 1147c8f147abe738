"""Reader of data sets of the Hugging Face hub, with the library `datasets`."""

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

_TIMEOUT = 5
_OLDEST = 3
"""Minimum major version of `datasets`; older versions can execute code of a data set."""


def origin(entry: CatalogEntry, name: str, config: str | None = None, online: bool = True) -> Origin:
    """Return the origin of a data set of the hub, OWNER/NAME. The hub is not contacted before the data are read."""
    place = f"hf://{name}"

    def read() -> Items:
        if not online:
            raise UnreachableError("it was not contacted")
        yield from items(_HubTable(place, fetch(name, config)), entry)

    return Origin(place, [[place, config]], read)


def fetch(name: str, config: str | None) -> Any:
    """Download a DatasetDict. Raises UnreachableError if that is not possible."""
    spec = importlib.util.find_spec("datasets")
    if spec is None or spec.origin is None:
        raise UnreachableError("the library `datasets` is not installed (pip install datasets)")
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        if os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE"):
            raise UnreachableError(f"{variable} is set")
    check_reachable()
    import datasets

    version = datasets.__version__
    if int(version.split(".")[0]) < _OLDEST:
        raise UnreachableError(f"`datasets` {version} can execute code of a data set; use {_OLDEST}.0 or later")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of the library about its dependencies
            return datasets.load_dataset(name, config)
    except Exception as error:  # the library's many backends raise exceptions of any type
        raise UnreachableError(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error


def check_reachable() -> None:
    """Raise UnreachableError unless the hub responds. Without a network, `datasets` itself retries for 30 seconds."""
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    request = urllib.request.Request(endpoint, method="HEAD")
    outcome: list[str | None] = []

    def connect() -> None:
        try:
            urllib.request.urlopen(request, timeout=_TIMEOUT).close()
            outcome.append(None)
        except urllib.error.HTTPError as error:
            error.close()
            outcome.append(None)
        except (OSError, ValueError) as error:
            outcome.append(f"{endpoint} cannot be reached: {getattr(error, 'reason', error)}")

    thread = threading.Thread(target=connect, daemon=True)  # name resolution can exceed the timeout
    thread.start()
    thread.join(2 * _TIMEOUT)
    reason = outcome[0] if outcome else f"{endpoint} did not answer within {2 * _TIMEOUT} seconds"
    if reason is not None:
        raise UnreachableError(reason)


class _HubTable(SampleTable):
    """A DatasetDict as a table; images stay encoded, as in the files."""

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
