"""Pathfinder: does one of the dashed curves join the two discs?"""

from __future__ import annotations

import numpy as np
import torch

from attnbench.errors import UserError, nearest
from attnbench.tasks.base import register_task
from attnbench.tasks.dashes import DIFFICULTIES, SIZES, draw_images
from attnbench.tasks.generated import Examples, Generated, constant_baseline

__all__ = ["Pathfinder"]


@register_task("pathfinder")
class Pathfinder(Generated):
    """Label 1 where the two discs are the ends of one dashed curve, 0 where they are ends of two; a token per pixel.

    Two curves start from dashes a seed distance apart, with orientations of their own, and grow in turn. For the next
    dash the pivot moves on by the dash's length and two margins; the new orientation leads to a pixel on a circle
    round it, with weight cos^2(min(continuity x |change of angle|, pi / 2)), and zero where the dash would come
    within a margin of another. Pivots are whole pixels. An image in which a curve or a distractor cannot grow on, or
    a disc touches another curve, is drawn again. Half of the images are positive.

    Sizes: 32 pixels, with 6, 9 or 14 dashes a curve by difficulty, seed distance 7, five distractors of four dashes,
    and 160,000 / 20,000 / 20,000 examples; 16 pixels, with 2, 3 or 4, seed distance 5, two distractors of two dashes,
    and 20,000 / 1,000 / 2,000.

    Baselines: `constant`, and `mean pixel`, a threshold on the image's mean.

    Args:
        side: 16 | 32. difficulty: "easy" | "intermediate" | "hard". train, validation, test: numbers of examples;
        None: the size's.

    Source: Linsley et al. 2018, "Learning long-range spatial dependencies with horizontal gated recurrent units",
    arXiv 1805.08315; 32 x 32 pixels as in Tay et al. 2020, "Long Range Arena", arXiv 2011.04006.
    """

    answer = "label"
    causal = (False,)
    vocab = 257  # padding, and 256 grey levels
    classes = 2
    chunk = 1024
    drawn_by = (draw_images.__module__,)

    def __init__(
        self,
        *,
        side: int = 16,
        difficulty: str = "easy",
        train: int | None = None,
        validation: int | None = None,
        test: int | None = None,
    ) -> None:
        if side not in SIZES:
            raise UserError(f"task pathfinder: side must be one of {', '.join(map(str, SIZES))}, received {side!r}")
        if difficulty not in DIFFICULTIES:
            raise UserError(
                f"task pathfinder: unknown difficulty {difficulty!r}{nearest(difficulty, DIFFICULTIES)}; "
                f"valid: {', '.join(DIFFICULTIES)}"
            )
        given = zip((train, validation, test), SIZES[side].examples, strict=True)
        sizes = [default if size is None else size for size, default in given]
        super().__init__(train=sizes[0], validation=sizes[1], test=sizes[2], side=side, difficulty=difficulty)
        self.side, self.difficulty, self.length = side, difficulty, side * side

    def draw(self, rng: np.random.Generator, count: int) -> Examples:
        images, labels = draw_images(rng, count, self.side, self.difficulty)
        levels = np.rint(images * 255).astype(np.int64).reshape(len(images), -1)
        return Examples(1 + levels, labels)

    def baselines(self) -> dict[str, float]:
        train, test = self.batch("train"), self.batch("test")
        means, order = train.inputs.double().mean(dim=1).sort()
        positive = train.targets[order].cumsum(0)
        # Training accuracy of "1 above the threshold" for every threshold; below 1/2, its opposite is the better rule.
        right = (torch.arange(1, len(means) + 1) - positive + positive[-1] - positive) / len(means)
        at = int((right - 0.5).abs().argmax())
        says = (test.inputs.double().mean(dim=1) > means[at]) == bool(right[at] >= 0.5)
        return {
            "constant": constant_baseline(self),
            "mean pixel": float((says.long() == test.targets).double().mean()),
        }
