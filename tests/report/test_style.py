from __future__ import annotations

import subprocess
import sys
from itertools import combinations

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.report.labels import spread
from attnbench.report.style import _COLOURS, _KNOWN, look_of, style
from attnbench.report.units import ratio_text, readable, share_text


def test_known_labels_never_share_a_look():
    looks = [look_of(name) for name in ("full", "full-naive", "none", "uniform", *_KNOWN)]
    assert len(set(looks)) == len(looks)


def test_a_strangers_label_looks_the_same_in_every_process():
    here = look_of("a stranger's plugin")
    code = 'from attnbench.report.style import look_of; print(look_of("a stranger\'s plugin"))'
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(here)


def _linear(colour):
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


# Machado, Oliveira and Fernandes 2009, severity 1.0
_DEFICIENCIES = {
    "none": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


def _lab(linear):
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    ratio = xyz / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", _DEFICIENCIES)
def test_neighbouring_colours_stay_apart_for_colour_blind_readers(kind):
    """All pairs differ by a visible step in CIE Lab whatever the reader's eyes."""
    seen = [_lab(np.clip(np.array(_DEFICIENCIES[kind]) @ _linear(colour), 0, 1)) for colour in _COLOURS]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 10


@pytest.mark.parametrize("colour", _COLOURS)
def test_colours_can_be_read_as_text_on_white(colour):
    luminance = np.array([0.2126, 0.7152, 0.0722]) @ _linear(colour)
    assert 1.05 / (luminance + 0.05) > 3


def test_the_callers_settings_come_back():
    before = dict(matplotlib.rcParams)
    with style():
        assert matplotlib.rcParams["axes.spines.top"] is False
    assert dict(matplotlib.rcParams) == before


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0.001, 0.2))
def test_labels_never_overlap_and_keep_their_order(wanted, gap):
    placed = spread(wanted, gap, 0.0, 1.0)
    order = np.argsort(wanted, kind="stable")
    room = min(gap, 1 / max(len(wanted) - 1, 1))
    assert (np.diff(placed[order]) >= room - 1e-9).all()
    assert placed.min() >= -1e-9
    assert placed.max() <= 1 + 1e-9


def test_labels_with_room_stay_where_they_are():
    np.testing.assert_allclose(spread([0.1, 0.9, 0.5], 0.05, 0, 1), [0.1, 0.9, 0.5])


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (1e-7, "s", "100 ns"),
        (69_206_016, "bytes", "66 MiB"),
        (0, "bytes", "0 B"),
        (3.2e9, "flop/s", "3.2 Gflop/s"),
        (1234567, "", "1.23 M"),
        (float("nan"), "s", ""),
        (None, "s", ""),
        (float("inf"), "s", "∞"),
        (1e-12, "s", "1.0e-03 ns"),
    ],
)
def test_numbers_as_people_read_them(value, unit, text):
    assert readable(value, unit) == text


def test_ratios_and_shares():
    assert [ratio_text(value) for value in (2.0412, 131.4, 0.05234, float("nan"))] == ["2.04×", "131×", "0.0523×", ""]
    assert share_text(0.125) == "12.5 %"
