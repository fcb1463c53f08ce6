import math

import pytest
import torch

import attnbench
from attnbench.conformance import check
from attnbench.errors import UserError

NORMALISERS = ("softmax", "relu")


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def naive(**options: object) -> attnbench.Variant:
    return attnbench.create_variant("full-naive", heads=2, head_dim=4, **options).double().eval()


@pytest.mark.parametrize(
    "options",
    [
        {"normaliser": "relu"},
        {"score": "dot", "top_k": 3},
        {"score": "additive"},
        {"score": "additive", "normaliser": "relu", "top_k": 3},
    ],
)
def test_combinations_keep_the_contract(options: dict[str, object]) -> None:
    only = ["oracle", "causality", "padding", "dtypes"]
    only += [] if options.get("score") == "additive" else ["large-logits"]  # its scores are bounded, and tie there
    report = check("full-naive", options, only=only)
    assert report.ok, "\n".join(map(str, report.failures))


def test_default_equals_full() -> None:
    q, k, v = (draw(2, 2, 9, 4, seed=seed) for seed in range(3))
    for causal in (False, True):
        full = attnbench.create_variant("full", heads=2, head_dim=4, causal=causal)
        torch.testing.assert_close(naive(causal=causal)(q, k, v), full(q, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_one_row_by_hand(causal: bool) -> None:
    q, k, v = (draw(1, 2, 5, 4, seed=seed) for seed in range(3))
    seen = 3 if causal else 5
    for score, scale in (("dot", 1.0), ("scaled-dot", 0.5)):
        logits = [
            scale * sum(float(a) * float(b) for a, b in zip(q[0, 1, 2], k[0, 1, j], strict=True)) for j in range(seen)
        ]
        soft = [math.exp(logit) for logit in logits]
        for normaliser, weights in (
            ("softmax", [one / sum(soft) for one in soft]),
            ("relu", [max(logit, 0.0) / seen for logit in logits]),
        ):
            out = naive(score=score, normaliser=normaliser, causal=causal)(q, k, v)[0, 1, 2]
            expected = sum(weight * v[0, 1, j] for j, weight in enumerate(weights))
            torch.testing.assert_close(out, expected)


def test_additive_by_hand() -> None:
    torch.manual_seed(0)
    attention = naive(score="additive")
    q, k, v = (draw(1, 2, 3, 4, seed=seed) for seed in range(3))
    head, i = 1, 2
    scores = [
        attention.direction[head]
        @ torch.tanh(q[0, head, i] @ attention.query_map[head] + k[0, head, j] @ attention.key_map[head])
        for j in range(3)
    ]
    expected = torch.stack(scores).softmax(0) @ v[0, head]
    torch.testing.assert_close(attention(q, k, v)[0, head, i], expected)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_top_k_keeps_exactly_k_visible_keys(normaliser: str) -> None:
    q, k = draw(2, 2, 12, 4, seed=1).abs(), draw(2, 2, 12, 4, seed=2).abs()  # all scores positive: relu drops none
    mask = torch.arange(12) < torch.tensor([[12], [5]])
    v = torch.eye(12, dtype=torch.float64).expand(2, 2, 12, 12)
    attention = attnbench.create_variant(
        "full-naive", heads=2, head_dim=12, causal=True, top_k=4, normaliser=normaliser
    )
    wide = torch.nn.functional.pad
    weights = attention(wide(q, (0, 8)), wide(k, (0, 8)), v, key_mask=mask)
    visible = torch.ones(12, 12, dtype=torch.bool).tril() & mask[:, None, None, :]
    expected = visible.sum(-1).clamp(max=4).expand(2, 2, 12)
    assert torch.equal((weights > 0).sum(-1), expected)
    assert not weights[~visible.expand_as(weights)].any()


def test_top_k_takes_the_largest() -> None:
    q, k, v = (draw(1, 2, 8, 4, seed=seed) for seed in range(3))
    one = naive(top_k=1)(q, k, v)
    best = (q @ k.transpose(-1, -2)).argmax(-1)
    torch.testing.assert_close(one, v.gather(2, best[..., None].expand_as(v)))


def test_more_than_all_is_all() -> None:
    q, k, v = (draw(1, 2, 8, 4, seed=seed) for seed in range(3))
    torch.testing.assert_close(naive(top_k=99)(q, k, v), naive()(q, k, v))


def test_gradients_by_finite_differences() -> None:
    inputs = [draw(1, 2, 4, 4, seed=seed).requires_grad_() for seed in range(3)]
    for options in ({"score": "additive"}, {"score": "dot", "normaliser": "relu"}, {"top_k": 2}):
        torch.autograd.gradcheck(naive(causal=True, **options), inputs)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"score": "scaled-dott"}, r"score must be one of .* received 'scaled-dott' \(did you mean 'scaled-dot'\?\)"),
        ({"normaliser": "sigmoid"}, "normaliser must be one of softmax, relu"),
        ({"top_k": 0}, "top_k must be None or a whole number of at least 1, received 0"),
        ({"top_k": True}, "received True"),
        ({"top_k": 2.0}, r"received 2\.0"),
    ],
)
def test_bad_options_are_one_clear_line(options: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        naive(**options)
