"""Pathfinder: every stroke keeps its distance, a curve follows its rules, and the discs say what the label says."""

from __future__ import annotations

import numpy as np
import pytest

from attnbench.errors import UserError
from attnbench.tasks import create_task
from attnbench.tasks.dashes import DIFFICULTIES, SIZES, Stamps, _Canvas, _discs, _pick, _two_curves, draw_images


def curves(side: int = 32, dashes: int = 6, count: int = 400):
    rng = np.random.default_rng(0)
    canvas, both = _two_curves(rng, count, side, dashes, SIZES[side].seed_distance)
    return rng, canvas, both


@pytest.mark.parametrize("side", [16, 32])
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_images_are_grey_and_labels_even(side, difficulty):
    images, labels = draw_images(np.random.default_rng(1), 1500, side, difficulty)
    assert images.shape[1:] == (side, side)
    assert len(images) == len(labels) > 20
    assert images.min() == 0
    assert images.max() == 1
    assert abs(labels.mean() - 0.5) < 4 * 0.5 / len(labels) ** 0.5


def test_the_seeds_lie_a_seed_distance_apart():
    _, _, (first, second) = curves()
    apart = np.linalg.norm(first.start - second.start, axis=1)
    assert (abs(apart - 7) < 1).all()


def test_a_curve_turns_by_less_than_a_right_angle_and_stays_inside():
    _, canvas, both = curves(dashes=5)
    for offset in (0, 1):
        angles = canvas.stamps.angles[canvas.chosen[:, offset::2]]
        change = np.abs((np.diff(angles, axis=1) + np.pi) % (2 * np.pi) - np.pi)
        assert (change < np.pi / 2 - 1e-9).all()
        pivots = canvas.pivots[:, offset::2]
        assert pivots.min() >= 1
        assert pivots.max() < 31
        steps = np.linalg.norm(np.diff(pivots, axis=1), axis=-1)
        assert (abs(steps - 4) < 1).all()  # a dash and two margins, on whole pixels
    assert all(curve.tip.shape == (len(canvas), 2) for curve in both)


def test_no_dash_comes_within_a_margin_of_another():
    _, canvas, _ = curves(dashes=5, count=100)
    stamps, frame = canvas.stamps, canvas.frame
    for image in range(len(canvas)):
        seen = np.zeros(canvas.taken.shape[1:], dtype=bool)
        for pivot, chosen in zip(canvas.pivots[image], canvas.chosen[image], strict=True):
            square = tuple(slice(at, at + stamps.width) for at in pivot)
            assert not (seen[square] & (stamps.ink[chosen] > 0)).any()
            seen[square] |= stamps.near[chosen]
        assert not seen[frame - 3 : frame - 1].all()


def test_discs_mark_the_ends_that_the_label_says():
    rng, canvas, both = curves()
    starts, tips = both[0].start.copy(), [curve.tip.copy() for curve in both]
    marked, labels = _discs(rng, canvas, both)
    assert (marked.chosen[:, -2:] == -1).all()
    where = {tuple(pivots.ravel()): row for row, pivots in enumerate(canvas.pivots[:, : marked.pivots.shape[1] - 2])}
    for pivots, label in zip(marked.pivots, labels, strict=True):
        row = where[tuple(pivots[:-2].ravel())]
        assert tuple(pivots[-2]) == tuple(starts[row])
        assert tuple(pivots[-1]) == tuple(tips[0 if label else 1][row])


def test_weights_decide_what_is_picked():
    weights = np.tile([0.0, 1.0, 3.0, 0.0], (20_000, 1))
    counts = np.bincount(_pick(np.random.default_rng(0), weights), minlength=4) / len(weights)
    np.testing.assert_allclose(counts, [0, 0.25, 0.75, 0], atol=0.015)


def test_stamps_are_dashes_of_two_pixels():
    stamps = Stamps()
    centre = stamps.reach
    east = int(np.argmin(np.abs(stamps.angles)))
    assert (stamps.ink[east][centre, centre : centre + 3] > 0.5).all()
    assert (stamps.ink[east] > 0).sum() <= 5
    assert stamps.ink.max() == 1
    assert len(stamps.ink) == len(stamps.near) == len(stamps.angles) + 1


def test_outside_of_the_image_nothing_is_free():
    canvas = _Canvas(1, 16, Stamps())
    pixels = np.array([[[0, 5], [1, 1], [14, 14], [15, 3], [-1, 4], [4, 16]]])
    assert canvas.free(pixels).tolist() == [[False, True, True, False, False, False]]


def test_the_task():
    task = create_task("pathfinder", train=300, validation=20, test=60)
    batch = task.batch("test")
    assert batch.inputs.shape == (60, 256)
    assert batch.inputs.min() == 1
    assert batch.inputs.max() == 256 < task.vocab
    assert set(batch.targets.tolist()) == {0, 1}
    baselines = task.baselines()
    assert 0.4 <= baselines["constant"] <= 0.65
    assert 0.3 <= baselines["mean pixel"] <= 0.75


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"side": 64}, "side must be one of 32, 16, received 64"),
        (
            {"difficulty": "hardest"},
            r"unknown difficulty 'hardest' \(did you mean 'hard'\?\); valid: easy, intermediate, hard",
        ),
    ],
)
def test_bad_options_are_one_clear_line(options, said):
    with pytest.raises(UserError, match=said):
        create_task("pathfinder", **options)
