"""Plan files: the schema, the writer and the reader under one import path."""

from __future__ import annotations

from engine.plan.file_reader import PlanReader, Tables, from_bytes, load
from engine.plan.file_schema import MAGIC, STRIPPED, VERSION, Column, Rule, make_schema
from engine.plan.file_writer import Writer, to_bytes

__all__ = [
    "MAGIC",
    "STRIPPED",
    "VERSION",
    "Column",
    "PlanReader",
    "Rule",
    "Tables",
    "Writer",
    "from_bytes",
    "load",
    "make_schema",
    "to_bytes",
]
