"""The tables of FLamby (du Terrail et al., NeurIPS 2022): Fed-Heart-Disease and Fed-TCGA-BRCA, as it prepares them."""

from __future__ import annotations

import csv
import hashlib
import io
from functools import partial

import numpy as np

from .sources import Files, WebServer
from .table import NaturalArrays, NaturalTable, read_csv

_HOSPITALS = {
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}
"""The hospitals, and the MD5 sum of each file of the UCI repository (also with other line ends)."""
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
_FLAMBY = "https://raw.githubusercontent.com/owkin/FLamby/main/flamby/datasets/fed_tcga_brca"
_REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")

_PLAIN, _CHEST_PAIN, _ECG = (0, 1, 3, 4, 5, 7, 8, 9), 2, 6
"""Columns of numbers and of classes; columns 10 to 12 are left out because most hospitals lack them."""


def heart_disease(files: Files, pooled: bool) -> NaturalArrays:
    """Return 13 features of each patient without missing values, and whether the patient has the disease.

    Features are standardised with the training samples of the hospital or, if `pooled`, of all hospitals; those of the
    server's test samples always with those of all hospitals, as in FLamby. A third of the patients are test samples.
    """
    from sklearn.model_selection import train_test_split

    rows, owner, held_out = [], [], []
    for number, hospital in enumerate(_HOSPITALS):
        found = _patients(files[f"processed.{hospital}.data"], hospital)
        sick = found[:, -1] > 0
        stratify = sick if min(sick.sum(), (~sick).sum()) > 2 else None
        _, test = train_test_split(
            np.arange(len(found)), test_size=1 - 0.66, train_size=0.66, random_state=43, stratify=stratify
        )
        rows.append(found)
        owner.append(np.full(len(found), number))
        held_out.append(np.isin(np.arange(len(found)), test))
    table, hospital_of, held = np.concatenate(rows), np.concatenate(owner), np.concatenate(held_out)
    x = np.concatenate([table[:, _PLAIN], _indicators(table[:, _CHEST_PAIN]), _indicators(table[:, _ECG])], axis=1)
    y = (table[:, -1:] > 0).astype(np.float32)
    over_all = _standardised(x, np.zeros_like(hospital_of), ~held).astype(np.float32)
    by_hospital = _standardised(x, hospital_of, ~held).astype(np.float32)
    return NaturalArrays(
        over_all if pooled else by_hospital, y, hospital_of, list(_HOSPITALS), held, x_test=over_all[held]
    )


def _patients(raw: bytes, hospital: str) -> np.ndarray:
    """Return the rows of a file without missing values in the first ten columns: these columns and the diagnosis."""
    raw = raw.replace(b"\r", b"")
    if hashlib.md5(raw, usedforsecurity=False).hexdigest() != _HOSPITALS[hospital]:
        raise ValueError(f"processed.{hospital}.data is not the published file")
    rows = [[*row[:10], row[13]] for row in csv.reader(io.StringIO(raw.decode()))]
    return np.array([[float(v) for v in row] for row in rows if "?" not in row])


def _indicators(column: np.ndarray) -> np.ndarray:
    """Return one column for each class but the first."""
    found: np.ndarray = (column[:, None] == np.unique(column)[1:]).astype(np.float64)
    return found


def _standardised(x: np.ndarray, group: np.ndarray, train: np.ndarray) -> np.ndarray:
    result = np.empty_like(x)
    for one in np.unique(group):
        of_training = x[(group == one) & train]
        result[group == one] = (x[group == one] - of_training.mean(0)) / (of_training.std(0, ddof=1) + 1e-9)
    return result


def tcga_brca(files: Files) -> NaturalArrays:
    """Return 39 clinical features of each patient with a region, and (time in days, whether the patient died)."""
    folds = {row["pid"]: row["fold2"] for row in read_csv(files["train_test_split.csv"])}
    rows = [row for row in read_csv(files["brca.csv"]) if row["pid"] in folds]
    columns = [name for name in rows[0] if name not in ("pid", "E", "T")]
    x = np.array([[float(row[name]) for name in columns] for row in rows], dtype=np.float32)
    y = np.array([[float(row["T"]), float(row["E"])] for row in rows], dtype=np.float32)
    parts = [folds[row["pid"]].split("_") for row in rows]
    owner = np.array([int(region) for _, region in parts])
    return NaturalArrays(x, y, owner, list(_REGIONS), np.array([fold == "test" for fold, _ in parts]))


_HEART_FILES = tuple(f"processed.{hospital}.data" for hospital in _HOSPITALS)
_HEART_SOURCES = (WebServer({name: f"{_UCI}/{name}" for name in _HEART_FILES}),)
_BRCA_FILES = {
    "brca.csv": f"{_FLAMBY}/brca.csv",
    "train_test_split.csv": f"{_FLAMBY}/dataset_creation_scripts/train_test_split.csv",
}

TABLES = (
    NaturalTable(
        name="heart_disease",
        files=_HEART_FILES,
        sources=_HEART_SOURCES,
        convert=partial(heart_disease, pooled=False),
        samples=740,
        clients=4,
    ),
    NaturalTable(
        name="heart_disease_pooled",
        files=_HEART_FILES,
        sources=_HEART_SOURCES,
        convert=partial(heart_disease, pooled=True),
        samples=740,
        clients=4,
    ),
    NaturalTable(
        name="tcga_brca",
        files=tuple(_BRCA_FILES),
        sources=(WebServer(_BRCA_FILES),),
        convert=tcga_brca,
        samples=1088,
        clients=6,
        checksum="c3a12728e295d889010a30dcbb0d21479d9c853aae8fe8af28ce867d01d50771",
    ),
)
