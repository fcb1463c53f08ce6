"""Statistics over a run's records. Imports no torch: a run can be read on any machine."""

from attnbench.analysis.complexity import path_length, patterns, reach
from attnbench.analysis.files import read_table, write_table
from attnbench.analysis.loading import Run, load
from attnbench.analysis.tabulate import tables, write_tables

__all__ = ["Run", "load", "path_length", "patterns", "reach", "read_table", "tables", "write_table", "write_tables"]
