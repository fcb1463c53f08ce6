from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnbench import Transformer, Unsupported
from attnbench.backbone.heads import pool
from attnbench.errors import UserError

Ragged = Callable[..., Tensor]
SMALL = {"vocab": 11, "dim": 8, "heads": 2, "depth": 2, "max_len": 16}


def tokens(batch: int = 3, n: int = 7) -> Tensor:
    return torch.randint(1, 11, (batch, n), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "none"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("answer", ["label", "tokens", "sequence"])
def test_answers_have_their_shapes_and_ignore_padding(
    positions: str, causal: bool, answer: str, ragged: Ragged
) -> None:
    if answer == "sequence":
        architecture, classes = "decoder" if causal else "encoder-decoder", None
    else:
        architecture, classes = "decoder" if causal else "encoder", 5
    model = Transformer(**SMALL, answer=answer, architecture=architecture, classes=classes, positions=positions).eval()
    inputs, mask = tokens(), ragged(3, 7, seed=3)
    answers = {"decoder_inputs": tokens(n=4)} if answer == "sequence" else {}
    out = model(inputs, key_mask=mask, **answers)
    assert out.shape == {"label": (3, 5), "tokens": (3, 7, 5), "sequence": (3, 4, 11)}[answer]
    assert 1 <= mask[1].sum() < 7
    length = int(mask[1].sum())
    alone = model(inputs[1:2, :length], **{name: value[1:2] for name, value in answers.items()})
    actual = out[1, :length] if answer == "tokens" else out[1]
    torch.testing.assert_close(actual, alone[0], atol=1e-5, rtol=1e-5)


def test_positions_matter_where_there_are_any() -> None:
    swapped = tokens().flip(1)
    for positions in ("sinusoidal", "learned", "rotary", "none"):
        model = Transformer(**SMALL, answer="label", classes=4, positions=positions).eval()
        same = torch.allclose(model(tokens()), model(swapped), atol=1e-5)
        assert same == (positions == "none"), positions


def test_embedding_is_scaled_and_tied() -> None:
    model = Transformer(**SMALL, answer="sequence", positions="none").eval()
    assert model.head.weight is model.embedding.tokens.weight
    assert model.head.bias is None
    torch.testing.assert_close(model.embedding(tokens()), model.embedding.tokens.weight[tokens()] * 8**0.5)
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embedding.tokens.weight
    assert twin.head.weight is not model.head.weight
    assert Transformer(**SMALL, classes=11).head.bias is not None
    with pytest.raises(UserError, match="classes equal to vocab, received 5 and 11"):
        Transformer(**SMALL, classes=5, tie=True)


def test_pooling() -> None:
    x = torch.arange(12.0).view(2, 3, 2)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    assert pool(x, mask, "mean").tolist() == [[1, 2], [0, 0]]
    assert pool(x, mask, "last")[0].tolist() == [2, 3]
    assert pool(x, torch.tensor([[False, True, True], [True, True, True]]), "last").tolist() == [[4, 5], [10, 11]]
    assert pool(x, None, "mean").tolist() == [[2, 3], [8, 9]]
    assert pool(x, None, "last").tolist() == [[4, 5], [10, 11]]
    assert pool(x, mask, "cls").tolist() == [[0, 1], [6, 7]]


@pytest.mark.parametrize("variant", ["full", "test-first-tokens"])
def test_a_cls_token_is_one_more_token(variant: str, ragged: Ragged) -> None:
    model = Transformer(**SMALL, variant=variant, answer="label", classes=4, pooling="cls").eval()
    assert model.body.blocks[0].attention.mixer.max_len == 17 + (0 if variant == "full" else 2)
    inputs, mask = tokens(n=16), ragged(3, 16)
    out = model(inputs, key_mask=mask)
    torch.testing.assert_close(out[:1], model(inputs[:1]), atol=1e-5, rtol=1e-5)
    model(inputs).sum().backward()
    assert model.cls.grad.abs().sum() > 0


def test_a_state_dict_carries_all_of_the_model() -> None:
    options = {"variant": "test-first-tokens", "answer": "label", "classes": 4, "norm": "batch", "pooling": "cls"}
    model, other = (Transformer(**SMALL, **options) for _ in range(2))
    model(tokens())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.eval()(tokens()), model.eval()(tokens()))


def test_each_place_in_an_encoder_decoder_may_take_its_own_variant() -> None:
    with pytest.raises(Unsupported) as caught:
        Transformer(**SMALL, answer="sequence", variant="test-first-tokens")
    assert caught.value.reasons == [
        "test-first-tokens has no causal form",
        "test-first-tokens takes self-attention alone, not cross-attention",
    ]
    with pytest.raises(Unsupported, match="not cross-attention"):
        Transformer(**SMALL, answer="sequence", variant="test-first-tokens", decoder_variant="full")
    model = Transformer(
        **SMALL,
        answer="sequence",
        variant="test-first-tokens",
        options={"tokens": 3},
        decoder_variant="test-prefix",
        cross_variant="full",
        decoder_depth=1,
    )
    assert len(model.decoder.blocks) == 1
    assert model.body.blocks[0].attention.mixer.tokens == 3
    assert model.decoder.blocks[0].attention.mixer.name == "test-prefix"
    assert model.decoder.blocks[0].cross.mixer.name == "full"
    assert model(tokens(), decoder_inputs=tokens(n=4)).shape == (3, 4, 11)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": "decodr"}, "unknown architecture 'decodr'.*did you mean 'decoder'"),
        ({"answer": "text"}, "unknown answer 'text'"),
        ({"architecture": "encoder", "causal": True}, "'encoder' is not causal, received causal=True"),
        ({"architecture": "decoder", "causal": False}, "'decoder' is causal, received causal=False"),
        ({"architecture": "encoder", "answer": "sequence"}, "an encoder cannot answer with a sequence"),
        ({"architecture": "encoder-decoder", "answer": "label"}, "received answer 'label'"),
        ({"architecture": "encoder", "cross_variant": "full"}, "belong to architecture 'encoder-decoder'"),
        ({"pooling": "max"}, "unknown pooling 'max'"),
        ({"pooling": "cls", "causal": True}, "sees no other"),
        ({"activation": "tanh"}, "unknown activation 'tanh'; valid: relu, gelu"),
        ({"order": "per"}, "unknown order 'per'"),
        ({"answer": "sequence", "classes": 3}, "classes must be 11 or None, received 3"),
        ({"positions": "learned", "max_len": None}, "learned positions need max_len"),
    ],
)
def test_contradictions_are_one_clear_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Transformer(**SMALL | options)
    assert "\n" not in str(caught.value)


def test_the_second_input_goes_with_a_sequence_alone() -> None:
    with pytest.raises(UserError, match="received none for answer 'sequence'"):
        Transformer(**SMALL, answer="sequence")(tokens())
    with pytest.raises(UserError, match="received some for answer 'tokens'"):
        Transformer(**SMALL)(tokens(), decoder_inputs=tokens())
