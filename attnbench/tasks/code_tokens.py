"""Lexical classes: which kind of token does each byte of a program belong to?"""

from __future__ import annotations

import io
import keyword
import tokenize
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnbench.tasks.base import IGNORE, PAD, Batch, register_task
from attnbench.tasks.corpus import Corpus, byte_tokens
from attnbench.tasks.generated import constant_baseline

__all__ = ["CLASSES", "CodeTokens", "lexical_classes"]

CLASSES = ("space", "comment", "string", "number", "keyword", "name", "operator")
SPACE, COMMENT, STRING, NUMBER, KEYWORD, NAME, OPERATOR = range(len(CLASSES))
_CLASS_OF = {tokenize.COMMENT: COMMENT, tokenize.STRING: STRING, tokenize.NUMBER: NUMBER, tokenize.OP: OPERATOR}


@register_task("code-tokens")
class CodeTokens(Corpus):
    """A label for each byte of real source code: its lexical class, as Python's own tokenizer gives it.

    The classes are space (indentation, line ends and continuations too), comment, string, number, keyword, name and
    operator. An f-string is string from its prefix to its closing quote, expressions in it included, on every version
    of Python. A quote far away decides whether a word is code or text, which no look at its neighbours tells.

    Slice: `class`, the true class. Baselines: `constant`; `byte alone`, the class most common for the
    byte in train; `byte and neighbours`, the same for a byte with the one before and the one after.

    Args:
        length: bytes of a window. train, validation, test: at most so many windows.

    Source: the user's own standard library, and the `tokenize` module in it.
    """

    causal = (False, True)
    classes = len(CLASSES)
    slice_names: ClassVar = {"class": CLASSES}

    def __init__(self, *, length: int = 256, train: int = 8_000, validation: int = 500, test: int = 1_000) -> None:
        super().__init__(length=length, train=train, validation=validation, test=test)

    def labelled(self, text: str) -> tuple[NDArray[Any], NDArray[Any]] | None:
        classes = lexical_classes(text)
        return None if classes is None else (byte_tokens(text), classes)

    def sliced(self, targets: Tensor) -> dict[str, Tensor]:
        return {"class": targets}

    def baselines(self) -> dict[str, float]:
        train, test = self.batch("train"), self.batch("test")
        byte, _ = _commonest(train.inputs, train, test.inputs)
        context, seen = _commonest(_with_neighbours(train), train, _with_neighbours(test))
        counted = test.targets != IGNORE
        return {
            "constant": constant_baseline(self),
            "byte alone": float((byte == test.targets)[counted].double().mean()),
            "byte and neighbours": float((torch.where(seen, context, byte) == test.targets)[counted].double().mean()),
        }


def lexical_classes(text: str) -> NDArray[np.int8] | None:
    """The class of each byte of a program in UTF-8; None where it does not tokenize."""
    lines = np.cumsum([0] + [len(line) + 1 for line in text.split("\n")])
    classes = np.full(len(text), SPACE, np.int8)
    depth = begun = 0
    try:
        for kind, word, (row, column), (end_row, end_column), _ in tokenize.generate_tokens(io.StringIO(text).readline):
            first, last = lines[row - 1] + column, lines[end_row - 1] + end_column
            name = tokenize.tok_name[kind]
            if name.endswith("STRING_START"):  # from Python 3.12 on, f-strings come in parts, which may nest
                begun = begun if depth else first
                depth += 1
            elif name.endswith("STRING_END"):
                depth -= 1
                if depth == 0:
                    classes[begun:last] = STRING
            elif depth == 0:
                classes[first:last] = _class_of(kind, word)
    except (tokenize.TokenError, SyntaxError):
        return None
    return np.repeat(classes, _bytes_per_character(text))


def _class_of(kind: int, word: str) -> int:
    if kind == tokenize.NAME:
        return KEYWORD if keyword.iskeyword(word) else NAME
    return _CLASS_OF.get(kind, SPACE)


def _bytes_per_character(text: str) -> NDArray[np.int64]:
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return 1 + np.searchsorted([0x80, 0x800, 0x10000], points, side="right")


def _with_neighbours(batch: Batch) -> Tensor:
    """One number for a byte, the one before and the one after; padding stands beyond the ends."""
    before = torch.nn.functional.pad(batch.inputs[:, :-1], (1, 0), value=PAD)
    after = torch.nn.functional.pad(batch.inputs[:, 1:], (0, 1), value=PAD)
    return (before * 257 + batch.inputs) * 257 + after


def _commonest(feature: Tensor, train: Batch, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The class that goes most often with each wanted value of a feature in train, and whether train has that value at all."""
    counted = train.targets != IGNORE
    values, number = feature[counted].unique(return_inverse=True)
    pairs = number * len(CLASSES) + train.targets[counted]
    table = torch.bincount(pairs, minlength=len(values) * len(CLASSES)).view(-1, len(CLASSES))
    place = torch.searchsorted(values, wanted).clamp(max=len(values) - 1)
    return table.argmax(dim=1)[place], values[place] == wanted
