"""Statistics over a run's records. Imports no torch: a run can be read on any machine."""

from attnbench.analysis.comparison import Comparison, compare
from attnbench.analysis.complexity import path_length, patterns, reach
from attnbench.analysis.files import read_table, write_table
from attnbench.analysis.imports import import_results
from attnbench.analysis.loading import Run, load
from attnbench.analysis.recommendation import Recommendation, recommend
from attnbench.analysis.reference import reference_tables
from attnbench.analysis.tabulate import tables, write_tables

__all__ = [
    "Comparison",
    "Recommendation",
    "Run",
    "compare",
    "import_results",
    "load",
    "path_length",
    "patterns",
    "reach",
    "read_table",
    "recommend",
    "reference_tables",
    "tables",
    "write_table",
    "write_tables",
]
