"""Tables, plots and the page, made from a run's records alone. Imports no torch and no pyplot."""

from attnbench.report.accuracy import accuracy_plot
from attnbench.report.growth import memory_plot, operations_plot, state_plot, time_plot
from attnbench.report.write import FORMATS, write_report

__all__ = ["FORMATS", "accuracy_plot", "memory_plot", "operations_plot", "state_plot", "time_plot", "write_report"]
