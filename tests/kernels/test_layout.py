"""The cutting of bands: every query once, no key of a band left out, no piece too large."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.kernels.layout import Band, cut


@settings(max_examples=100, deadline=None)
@given(
    n_q=st.integers(1, 300),
    n_k=st.integers(1, 300),
    before=st.integers(0, 320),
    after=st.integers(0, 320),
    aligned=st.booleans(),
    heads=st.integers(1, 6),
    room=st.integers(1, 40_000),
)
def test_every_query_once_with_all_keys_of_its_band(n_q, n_k, before, after, aligned, heads, room):
    band = Band(n_q, n_k, before, after, n_k - n_q if aligned else 0)
    queries = torch.arange(heads * n_q).view(heads, n_q, 1)
    keys = torch.arange(n_k).expand(heads, n_k)[..., None]
    met = torch.zeros(heads * n_q, dtype=torch.long)
    for piece in cut(band, heads, room):
        rows, columns = piece.queries(queries).squeeze(-1), piece.keys(keys).squeeze(-1)
        assert rows.shape == (piece.count, piece.rows)
        assert columns.shape == (piece.count, piece.width)
        assert piece.count == 1 or piece.count * piece.rows * piece.width <= room
        met[rows.flatten()] += 1
        diagonal = rows % n_q + band.shift
        low = (diagonal - before).clamp(0, n_k - 1).amin(dim=1)
        high = (diagonal + after).clamp(0, n_k - 1).amax(dim=1)
        some = (diagonal + after >= 0).any(dim=1) & (diagonal - before < n_k).any(dim=1)
        assert ((columns[:, 0] <= low) & (columns[:, -1] >= high))[some].all()
    assert (met == 1).all()


def test_a_wide_band_wastes_little_and_a_long_one_stays_linear():
    def scores(n):
        return sum(p.count * p.rows * p.width for p in cut(Band(n, n, 127, 127), 1, 2**20))

    assert scores(4096) <= 4096 * 255 * 1.26
    assert scores(16384) <= 4 * scores(4096)
