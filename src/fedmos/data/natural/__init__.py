"""Naturally federated tables: patients by hospital, pupils by school, ratings by person.

They are fetched once, as NAME.npz, and never shipped with fedmos.
"""

from __future__ import annotations

from . import flamby, multilevel
from .archive import fetch, find
from .table import NaturalArrays, NaturalTable

__all__ = ["NATURAL", "NaturalArrays", "NaturalTable", "fetch", "find"]

NATURAL: dict[str, NaturalTable] = {table.name: table for table in (*flamby.TABLES, *multilevel.TABLES)}
"""The tables by name."""
