from __future__ import annotations

import math

import pytest
import torch

from attnbench.backbone.positions import POSITIONS, added_positions
from attnbench.errors import UserError


@pytest.mark.parametrize("dim", [6, 7])
def test_sinusoids_are_the_paper_s(dim: int) -> None:
    waves = added_positions("sinusoidal", dim, None)(torch.zeros(1, 50, dim))[0]
    for t in (0, 1, 49):
        for feature in range(dim):
            angle = t / 10000 ** (2 * (feature // 2) / dim)
            expected = math.sin(angle) if feature % 2 == 0 else math.cos(angle)
            assert waves[t, feature].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", POSITIONS)
def test_an_offset_goes_on_where_the_prompt_ended(kind: str) -> None:
    positions = added_positions(kind, 8, max_len=12)
    x = torch.randn(2, 9, 8)
    parts = torch.cat([positions(x[:, :4]), positions(x[:, 4:], 4)], dim=1)
    torch.testing.assert_close(parts, positions(x))
    assert torch.equal(positions(x), x) == (kind in ("rotary", "none"))


def test_learned_positions_end_at_max_len_and_recover() -> None:
    positions = added_positions("learned", 4, max_len=5)
    with pytest.raises(UserError, match="length 6 exceeds max_len 5"):
        positions(torch.zeros(1, 6, 4))
    assert positions(torch.zeros(1, 5, 4)).shape == (1, 5, 4)
    with pytest.raises(UserError, match="need max_len"):
        added_positions("learned", 4, None)
    with pytest.raises(UserError, match="did you mean 'rotary'"):
        added_positions("rotery", 4, None)
