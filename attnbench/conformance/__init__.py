"""The conformance kit: one named check for each promise that the contract of a variant makes.

    report = attnbench.conformance.check("mine")        # every promise, in every direction that is declared
    report.ok, report.failures, report.table(), report.as_dict()

Under pytest, a plugin's whole test:

    @pytest.mark.parametrize("case", attnbench.conformance.cases("mine"))
    def test_contract(case):
        case()

`CHECKS` maps the name of each property to its check, whose docstring states the promise. `gate` is the few that a
measurement relies on.
"""

# The order of the families is the order in which a report lists them.
from attnbench.conformance import (  # noqa: F401  isort: skip
    shapes,
    oracle,
    causality,
    padding,
    determinism,
    layout,
    precision,
    state,
    training,
    decoding,
    refusals,
    cost,
    compiling,
)
from attnbench.conformance.core import CHECKS, Failure, Skip, family
from attnbench.conformance.gate import gate
from attnbench.conformance.report import Report, Result
from attnbench.conformance.runner import Case, cases, check, families
from attnbench.conformance.subject import Inputs, Subject

__all__ = [
    "CHECKS",
    "Case",
    "Failure",
    "Inputs",
    "Report",
    "Result",
    "Skip",
    "Subject",
    "cases",
    "check",
    "families",
    "family",
    "gate",
]
