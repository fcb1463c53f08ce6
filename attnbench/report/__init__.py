"""Tables, plots and the page, made from a run's records alone. Imports no torch and no pyplot.

Every plot is a function from the tables of `attnbench.analysis.tables` to a matplotlib Figure.
"""

from attnbench.report.accuracy import accuracy_plot
from attnbench.report.canvas import save
from attnbench.report.compared import comparison_plot
from attnbench.report.figures import Plot, figures
from attnbench.report.gallery import gallery_plot
from attnbench.report.growth import memory_plot, operations_plot, state_plot, time_plot
from attnbench.report.learning import accuracy_length_plot, budget_plot, curves_plot, slices_plot
from attnbench.report.markdown import markdown_table
from attnbench.report.speedup import heatmap_plot, speedup_plot
from attnbench.report.style import look_of
from attnbench.report.summary import summary
from attnbench.report.tradeoff import bubble_plot, memory_speed_plot, operating_plot
from attnbench.report.write import FORMATS, write_report

__all__ = [
    "FORMATS",
    "Plot",
    "accuracy_length_plot",
    "accuracy_plot",
    "bubble_plot",
    "budget_plot",
    "comparison_plot",
    "curves_plot",
    "figures",
    "gallery_plot",
    "heatmap_plot",
    "look_of",
    "markdown_table",
    "memory_plot",
    "memory_speed_plot",
    "operating_plot",
    "operations_plot",
    "save",
    "slices_plot",
    "speedup_plot",
    "state_plot",
    "summary",
    "time_plot",
    "write_report",
]
