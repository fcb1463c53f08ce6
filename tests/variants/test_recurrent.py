"""The recurrent baseline: torch's own cells over the real tokens, and a hidden state to decode from."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnbench
from attnbench.contract import state_bytes


def build(**options):
    torch.manual_seed(0)
    return attnbench.create_variant("recurrent", **({"heads": 2, "head_dim": 3} | options)).double()


def draw(n, batch=2, seed=1):
    return torch.randn(batch, 2, n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(x):
    return x.transpose(1, 2).flatten(2)


@given(cell=st.sampled_from(["gru", "lstm"]), causal=st.booleans(), n=st.integers(1, 12), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_output_and_gradients_equal_the_cells_written_out(cell, causal, n, seed):
    variant = build(cell=cell, causal=causal)
    v = draw(n, seed=seed).requires_grad_()
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(seed)) < 0.6
    for key_mask in (None, mask):
        fast = variant(None, None, v, key_mask=key_mask)
        slow = variant.reference(None, None, v, key_mask=key_mask)
        torch.testing.assert_close(fast, slow)
        wanted = [v, *variant.parameters()]
        for a, b in zip(
            torch.autograd.grad(fast.square().sum(), wanted),
            torch.autograd.grad(slow.square().sum(), wanted),
            strict=True,
        ):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("causal", [False, True])
def test_masked_tokens_are_skipped_wherever_they_stand(cell, causal):
    variant = build(cell=cell, causal=causal)
    v = draw(9)
    mask = torch.tensor([[False, True, True, False, False, True, True, True, False], [False] * 9])
    poisoned = v.masked_fill(~mask[:, None, :, None], torch.nan).requires_grad_()
    out = variant(None, None, poisoned, key_mask=mask)
    alone, _ = variant.rnn(tokens(v[:1, :, mask[0]]))
    torch.testing.assert_close(tokens(out[:1, :, mask[0]]), alone)
    assert not out[0, :, ~mask[0]].any()
    assert not out[1].any()
    out.sum().backward()
    assert poisoned.grad.isfinite().all()


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_decoding_carries_the_state_at_the_last_real_token(cell):
    variant = build(cell=cell, causal=True).eval()
    v = draw(12)
    lengths = (7, 4)
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    _, state = variant.prefill(None, None, v[:, :, :7].clone(), mask)
    size = state_bytes(state)
    for t in range(7, 12):
        row, state = variant.step(None, None, v[:, :, t : t + 1], state)
        for sample, length in enumerate(lengths):
            seen = torch.cat([v[sample : sample + 1, :, :length], v[sample : sample + 1, :, 7 : t + 1]], dim=2)
            torch.testing.assert_close(row[sample : sample + 1], variant(None, None, seen)[:, :, -1:])
    assert state_bytes(state) == size


def test_an_empty_prompt_leaves_the_initial_state():
    variant = build(cell="lstm", causal=True)
    _, state = variant.prefill(None, None, draw(4), torch.tensor([[True] * 4, [False] * 4]))
    assert not any(part[:, 1].any() for part in state)


def test_the_width_is_kept_in_both_directions():
    assert build().rnn.bidirectional
    assert not build(causal=True).rnn.bidirectional
    assert [build(causal=causal)(None, None, draw(5)).shape for causal in (False, True)] == [(2, 2, 5, 3)] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "grue"}, "cell must be gru or lstm, received 'grue' .did you mean 'gru'"),
        ({"heads": 1}, r"heads \* head_dim must be even where not causal, received 3"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_leaves_the_recurrence_in_the_parameters_type(cell, dtype):
    variant = build(cell=cell, causal=True).float()
    v = draw(9).float()
    with torch.autocast("cpu", dtype=dtype):
        torch.testing.assert_close(variant(None, None, v), variant.reference(None, None, v), rtol=5e-2, atol=5e-2)
        exact = variant(None, None, v)
    assert torch.equal(exact, variant(None, None, v))
