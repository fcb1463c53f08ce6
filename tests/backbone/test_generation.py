from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnbench import Transformer, Unsupported
from attnbench.errors import UserError

Ragged = Callable[..., Tensor]
SMALL = {"vocab": 11, "dim": 8, "heads": 2, "depth": 2, "max_len": 24}


def model(**options: object) -> Transformer:
    made = Transformer(**SMALL, **options)
    with torch.no_grad():  # large weights, so that the likeliest token changes from step to step
        for parameter in made.parameters():
            parameter.mul_(1.7)
    return made


def tokens(batch: int = 4, n: int = 6) -> Tensor:
    return torch.randint(1, 11, (batch, n))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "none"])
@pytest.mark.parametrize(
    "kind",
    [
        {"architecture": "decoder", "answer": "tokens"},
        {"architecture": "decoder", "answer": "sequence"},
        {"architecture": "encoder-decoder", "answer": "sequence"},
    ],
)
def test_step_by_step_and_by_forwards_agree_and_no_sample_depends_on_another(
    kind: dict[str, str], positions: str, ragged: Ragged
) -> None:
    made = model(**kind, positions=positions)
    inputs, mask = tokens(), ragged(4, 6)
    fast = made.generate(inputs, key_mask=mask, max_new=9, stepwise=True)
    assert fast.shape == (4, 9)
    assert torch.equal(fast, made.generate(inputs, key_mask=mask, max_new=9, stepwise=False))
    for sample, length in enumerate(mask.sum(dim=1).tolist()):
        alone = made.generate(inputs[sample : sample + 1, :length], max_new=9)
        assert torch.equal(alone[0], fast[sample])
    assert made.training


def test_it_writes_what_the_forward_pass_finds_likeliest() -> None:
    made = model(answer="sequence")
    inputs = tokens()
    written = made.generate(inputs, max_new=5, start=2)
    shifted = torch.cat([torch.full((4, 1), 2), written[:, :-1]], dim=1)
    assert torch.equal(made.eval()(inputs, decoder_inputs=shifted).argmax(-1), written)
    assert len(written.unique()) > 2


@pytest.mark.parametrize("stepwise", [True, False])
def test_after_the_end_comes_padding(stepwise: bool) -> None:
    made = model(architecture="decoder", answer="tokens")
    inputs = tokens()
    free = made.generate(inputs, max_new=8, stepwise=stepwise)
    end = int(free[0, 2])
    ended = made.generate(inputs, max_new=8, end=end, stepwise=stepwise)
    for row, before in zip(ended.tolist(), free.tolist(), strict=True):
        stop = before.index(end) + 1 if end in before else 8
        assert row == before[:stop] + [0] * (8 - stop)


def test_variants_without_a_state_write_by_full_forwards() -> None:
    made = model(architecture="decoder", answer="tokens", variant="test-prefix")
    assert not made.decodes
    assert made.generate(tokens(), max_new=4).shape == (4, 4)
    with pytest.raises(Unsupported, match="does not decode"):
        made.generate(tokens(), max_new=4, stepwise=True)
    with pytest.raises(UserError, match="needs a decoder, received architecture 'encoder'"):
        model(answer="tokens").generate(tokens(), max_new=2)


def test_a_decoder_of_its_own_and_an_encoder_that_is_not_causal_go_together() -> None:
    made = model(answer="sequence", variant="test-first-tokens", decoder_variant="full", cross_variant="full")
    inputs = tokens()
    assert torch.equal(made.generate(inputs, max_new=6), made.generate(inputs, max_new=6, stepwise=False))
