"""ListOps: the value of a nested expression of operators over digits."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnbench.errors import UserError, nearest
from attnbench.tasks.base import Batch, register_task
from attnbench.tasks.generated import Examples, Generated, constant_baseline

__all__ = ["CLOSE", "OPERATORS", "PRESETS", "SYMBOLS", "ListOps", "encode", "evaluate"]

OPERATORS = ("MIN", "MAX", "MED", "SM")
SYMBOLS = ("<pad>", *"0123456789", *(f"[{operator}" for operator in OPERATORS), "]")
DIGIT, OPEN, CLOSE = 1, 11, 15  # first token of each kind
NESTING = 0.25  # probability that a node above the deepest level is an operator

# `shortest` and `longest` are excluded themselves.
PRESETS: dict[str, dict[str, Any]] = {
    "full": {"shortest": 500, "longest": 2000, "depth": 10, "children": 10, "sizes": (96_000, 2_000, 2_000)},
    "short": {"shortest": 10, "longest": 65, "depth": 5, "children": 5, "sizes": (20_000, 1_000, 2_000)},
}


@register_task("listops")
class ListOps(Generated):
    """A label from 0 to 9: the value of an expression such as [MAX 2 9 [MIN 4 7 ] 0 ] = 9.

    A tree's root is at depth 1. Above the deepest level a node is an operator with probability .25 and else a digit,
    uniform in 0 .. 9; on it, always a digit. Operators are uniform over MIN, MAX, MED (the median, truncated to a
    whole number) and SM (the sum modulo 10), with 2 to 10 children, uniform. Trees of a length outside of the bounds
    are drawn again. The closing bracket is a token of its own: without it, nesting would be ambiguous.

    Presets: "full" has lengths between 500 and 2000, depth 10, and 96,000 / 2,000 / 2,000 examples; "short" has
    lengths between 10 and 65, depth 5, at most 5 children, and 20,000 / 1,000 / 2,000. Slice: `depth`, that of the
    deepest operator.

    Baselines: `constant`; `root operator`, the most common answer under it in train; `root operator and direct
    digits`, the same given also the operator's value over those children that are digits.

    Args:
        preset: "full" | "short". train, validation, test: numbers of examples; None: the preset's.

    Source: Nangia & Bowman 2018, "ListOps", arXiv 1804.06028; lengths of Tay et al. 2020, "Long Range Arena", arXiv
    2011.04006.
    """

    answer = "label"
    causal = (False,)
    vocab = len(SYMBOLS)
    classes = 10
    chunk = 2048

    def __init__(
        self,
        *,
        preset: str = "short",
        train: int | None = None,
        validation: int | None = None,
        test: int | None = None,
    ) -> None:
        if preset not in PRESETS:
            raise UserError(
                f"task listops: unknown preset {preset!r}{nearest(preset, PRESETS)}; valid: {', '.join(PRESETS)}"
            )
        shape = dict(PRESETS[preset])
        sizes = [
            default if given is None else given
            for given, default in zip((train, validation, test), shape.pop("sizes"), strict=True)
        ]
        super().__init__(train=sizes[0], validation=sizes[1], test=sizes[2], preset=preset, **shape)
        self.options = {"preset": preset, **self.sizes}
        self.length, self.shape = shape["longest"] - 1, shape

    def draw(self, rng: np.random.Generator, count: int) -> Examples:
        levels = _grow(rng, count, self.shape["depth"], self.shape["children"], self.shape["longest"])
        _fold(levels)
        length = levels[0].length
        accepted = (length > self.shape["shortest"]) & (length < self.shape["longest"])
        row_of_root = np.where(accepted, np.cumsum(accepted) - 1, -1)
        inputs = np.zeros((int(accepted.sum()), self.length), np.int8)
        depth = np.zeros(len(inputs), np.int64)
        for number, level in enumerate(levels, start=1):
            row = row_of_root[level.root]
            token = np.where(level.operator >= 0, OPEN + level.operator, DIGIT + level.value)
            inputs[row[row >= 0], level.start[row >= 0]] = token[row >= 0]
            closed = (row >= 0) & (level.operator >= 0)
            inputs[row[closed], (level.start + level.length - 1)[closed]] = CLOSE
            depth[row[closed]] = number
        return Examples(inputs, levels[0].value[accepted], length[accepted], {"depth": depth})

    def baselines(self) -> dict[str, float]:
        train, test = self.batch("train"), self.batch("test")
        operator = train.inputs[:, 0] - OPEN, test.inputs[:, 0] - OPEN
        direct = _over_direct_digits(train), _over_direct_digits(test)
        return {
            "constant": constant_baseline(self),
            "root operator": _table_accuracy(*operator, train.targets, test.targets),
            "root operator and direct digits": _table_accuracy(
                operator[0] * 11 + direct[0], operator[1] * 11 + direct[1], train.targets, test.targets
            ),
        }


# -- trees, one level of all of them at a time -----------------------------------------------------------------------------


@dataclass
class _Level:
    """The nodes of one depth, children of one parent side by side, parents in their own order.

    root: the tree a node belongs to. operator: its number, or -1 at a digit. first, children: of an operator, where its
    children begin in the level below and how many there are. value, length and start (of its tokens) of the whole
    subtree.
    """

    root: NDArray[np.int64]
    operator: NDArray[np.int64]
    children: NDArray[np.int64]
    value: NDArray[np.int64]
    length: NDArray[np.int64]
    start: NDArray[np.int64]

    @property
    def first(self) -> NDArray[np.int64]:
        """Of the operators alone: where their children begin in the level below."""
        children = self.children[self.operator >= 0]
        return np.cumsum(children) - children


def _grow(rng: np.random.Generator, count: int, depth: int, most: int, longest: int) -> list[_Level]:
    """`count` trees with an operator at the root: a lone digit is outside of all bounds, and need not be drawn.

    A tree that has as many tokens as it may not have grows no further, which changes nothing but its rejection's cost.
    """
    levels: list[_Level] = []
    root = np.arange(count)
    tokens = np.zeros(count, np.int64)
    for number in range(1, depth + 1):
        nests = np.full(len(root), True) if number == 1 else rng.random(len(root)) < NESTING
        nests &= (number < depth) & (tokens[root] < longest)
        operator = np.where(nests, rng.integers(0, len(OPERATORS), len(root)), -1)
        children = np.where(nests, rng.integers(2, most, len(root), endpoint=True), 0)
        value = np.where(nests, 0, rng.integers(0, 10, len(root)))
        blank = np.zeros(len(root), np.int64)
        levels.append(_Level(root, operator, children, value, np.where(nests, 2, 1), blank))
        tokens += np.bincount(root, weights=levels[-1].length, minlength=count).astype(np.int64)
        root = np.repeat(root, children)
        if len(root) == 0:
            break
    return levels


def _fold(levels: list[_Level]) -> None:
    """Values and lengths from the leaves up, then where each subtree's tokens start from the root down."""
    for level, below in zip(levels[-2::-1], levels[:0:-1], strict=True):
        nests = level.operator >= 0
        first, children = level.first, level.children[nests]
        level.length[nests] += np.add.reduceat(below.length, first)
        level.value[nests] = evaluate(level.operator[nests], below.value, first, children)
    for level, below in itertools.pairwise(levels):
        nests = level.operator >= 0
        before = np.cumsum(below.length) - below.length
        shift = level.start[nests] + 1 - before[level.first]
        below.start += before + np.repeat(shift, level.children[nests])


def evaluate(
    operator: NDArray[Any], values: NDArray[Any], first: NDArray[Any], children: NDArray[Any]
) -> NDArray[np.int64]:
    """The value of each operator over its children, values[first : first + children]; these lie side by side and in order."""
    owner = np.repeat(np.arange(len(operator)), children)
    ordered = np.sort(10 * owner + values) % 10  # ascending within each operator's children
    median = (ordered[first + (children - 1) // 2] + ordered[first + children // 2]) // 2
    results = (ordered[first], ordered[first + children - 1], median, np.add.reduceat(values, first) % 10)
    return np.choose(operator, results)


def encode(expression: str) -> Tensor:
    """The tokens of an expression written with spaces, such as "[MAX 1 [MIN 2 3 ] 4 ]"."""
    return torch.tensor([SYMBOLS.index(symbol) for symbol in expression.split()])


# -- baselines -------------------------------------------------------------------------------------------------------------


def _over_direct_digits(batch: Batch) -> Tensor:
    """The root operator's value over those of its children that are digits; 10 where none is."""
    inputs = batch.inputs.numpy()
    opens, closes = (inputs >= OPEN) & (inputs < CLOSE), inputs == CLOSE
    depth = np.cumsum(opens, axis=1) - np.cumsum(closes, axis=1)
    rows, places = np.nonzero((depth == 1) & (inputs >= DIGIT) & (inputs < OPEN))
    values = inputs[rows, places] - DIGIT
    result = np.full(len(inputs), 10)
    owners, first, children = np.unique(rows, return_index=True, return_counts=True)
    if len(owners):
        result[owners] = evaluate(inputs[owners, 0] - OPEN, values, first, children)
    return torch.from_numpy(result)


def _table_accuracy(train: Tensor, test: Tensor, train_targets: Tensor, test_targets: Tensor) -> float:
    """Accuracy of the most common answer in train to each value of a feature."""
    table = torch.zeros(int(max(train.max(), test.max())) + 1, 10)
    table.index_put_((train, train_targets), torch.ones(len(train)), accumulate=True)
    return float((table.argmax(dim=1)[test] == test_targets).double().mean())
