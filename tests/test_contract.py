import pickle
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnbench.capabilities import Stream, Supports
from attnbench.contract import COMMON_OPTIONS, Unsupported, Variant, resolve_options, state_bytes
from attnbench.errors import UserError


class Echo(Variant):
    """Gives v back, and remembers what `mix` was handed."""

    name = "echo"
    declared = Supports(causal=True, padding=True, dropout=True)

    def __init__(self, *, window: int = 4, **common: Any) -> None:
        super().__init__(**common)
        self.window = window

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, **streams: Tensor) -> Tensor:
        self.seen = {"q": q, "k": k, "v": v, "key_mask": key_mask, **streams}
        return v


class Wider(Echo):
    name = "wider"

    def __init__(self, *, stride: int = 2, **common: Any) -> None:
        super().__init__(**common)


def variant_with(supports: Supports, **options: Any) -> Echo:
    cls = type("Made", (Echo,), {"name": "made", "declared": supports})
    return cls(**({"heads": 2, "head_dim": 4} | options))


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# -- options -----------------------------------------------------------------------------------------------------------------


def test_options_are_those_of_the_whole_hierarchy_with_their_defaults() -> None:
    resolved = resolve_options(Wider, {"heads": 2, "window": 9})
    common = {"heads": 2, "kv_heads": None, "max_len": None, "causal": False, "dropout": 0.0, "cross": False}
    assert resolved == common | {"window": 9, "stride": 2}


def test_an_unknown_option_lists_the_valid_ones_and_suggests_the_nearest() -> None:
    with pytest.raises(
        UserError, match=r"echo: unknown option 'windwo' \(did you mean 'window'\?\); valid options: heads"
    ) as error:
        Echo(heads=2, head_dim=4, windwo=3)
    assert all(option in str(error.value) for option in (*COMMON_OPTIONS, "window"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"heads": 0}, "heads must be a whole number of at least 1, received 0"),
        ({"heads": True}, "heads must be .* received True"),
        ({"head_dim": 2.5}, r"head_dim must be .* received 2\.5"),
        ({"max_len": 0}, "max_len must be"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads must divide heads, received kv_heads 3 and heads 4"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), received 1\.0"),
        ({"dropout": -0.1}, "dropout must lie in"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Echo(**({"heads": 2, "head_dim": 4} | options))


def test_the_repr_shows_the_options() -> None:
    assert "window=9" in repr(Echo(heads=2, head_dim=4, window=9))


# -- refusals ----------------------------------------------------------------------------------------------------------------


def test_construction_refuses_with_all_the_reasons() -> None:
    with pytest.raises(Unsupported) as refusal:
        variant_with(Supports(max_len=True), causal=True, dropout=0.5, cross=True)
    assert len(refusal.value.reasons) == 4
    assert str(refusal.value) == "; ".join(refusal.value.reasons)
    assert isinstance(refusal.value, ValueError)
    assert pickle.loads(pickle.dumps(refusal.value)).reasons == refusal.value.reasons


def test_capabilities_may_depend_on_options() -> None:
    class Mixed(Echo):
        declared = staticmethod(lambda options: Supports(causal=options["window"] > 2))

    assert Mixed(heads=2, head_dim=4, causal=True).supports.causal
    with pytest.raises(Unsupported):
        Mixed(heads=2, head_dim=4, causal=True, window=1)


def test_a_call_that_is_not_declared_is_refused() -> None:
    plain = variant_with(Supports())
    x = draw(2, 2, 5, 4)
    with pytest.raises(Unsupported, match="takes no key_mask"):
        plain(x, x, x, key_mask=torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(Unsupported, match="received 3 queries and 5 keys"):
        plain(x[:, :, :3], x, x)
    for call in (lambda: plain.prefill(x, x, x), lambda: plain.step(x, x, x, None)):
        with pytest.raises(Unsupported, match="does not decode"):
            call()
    with pytest.raises(NotImplementedError, match="states no dense_weights"):
        plain.reference(x, x, x)
    with pytest.raises(NotImplementedError, match="must define mix"):
        type("Empty", (Variant,), {})(heads=2, head_dim=4)(x, x, x)


# -- validation --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"v": draw(2, 5, 4)}, r"v must be a tensor \(batch, heads, n, head_dim\), received shape \(2, 5, 4\)"),
        ({"v": None}, "v must be a tensor .* received NoneType"),
        ({"q": None}, "q must be a tensor .* received NoneType"),
        ({"k": [1.0]}, "k must be a tensor .* received list"),
        ({"k": draw(2, 2, 6, 4)}, "k and v must have one length, received 6 and 5"),
        ({"q": draw(2, 3, 5, 4)}, r"q must have shape .*heads 2.* received \(2, 3, 5, 4\)"),
        ({"k": draw(2, 2, 5, 8)}, r"k must have shape .*head_dim 4\), received \(2, 2, 5, 8\)"),
        ({"q": draw(1, 2, 5, 4)}, r"q must have shape \(batch 2.* received \(1, 2, 5, 4\)"),
        ({"q": draw(2, 2, 5, 4).double()}, "must share one floating dtype and device; q is torch.float64"),
        ({"q": draw(2, 2, 5, 4).to("meta")}, "q is torch.float32 on meta"),
        ({"k": torch.ones(2, 2, 5, 4, dtype=torch.long)}, "k is torch.int64"),
    ],
)
def test_misfits_say_what_is_expected_and_what_came(change: dict[str, Any], says: str) -> None:
    x = draw(2, 2, 5, 4)
    with pytest.raises(ValueError, match=says):
        Echo(heads=2, head_dim=4)(**({"q": x, "k": x, "v": x} | change))


def test_length_zero_is_refused_and_an_empty_batch_is_not() -> None:
    echo = Echo(heads=2, head_dim=4)
    with pytest.raises(ValueError, match="n >= 1"):
        echo(*[draw(2, 2, 0, 4)] * 3)
    assert echo(*[draw(0, 2, 5, 4)] * 3).shape == (0, 2, 5, 4)
    assert not hasattr(echo, "seen")


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(3, 6),
        torch.ones(3, 6, dtype=torch.uint8),
        torch.ones(3, 1, 1, 6, dtype=torch.bool),
        torch.ones(6, dtype=torch.bool),
        torch.ones(3, 5, dtype=torch.bool),
        torch.ones(2, 6, dtype=torch.bool),
        [[True] * 6] * 3,
    ],
    ids=lambda mask: f"{mask.dtype}-{tuple(mask.shape)}" if isinstance(mask, Tensor) else "list",
)
def test_a_key_mask_is_bool_batch_by_keys_and_nothing_else(mask: Any) -> None:
    x = draw(3, 2, 6, 4)
    with pytest.raises(
        ValueError, match=r"key_mask must be a bool tensor \(batch, n_k\) = \(3, 6\) with True at real tokens, received"
    ):
        Echo(heads=2, head_dim=4)(x, x, x, key_mask=mask)


def test_longer_than_max_len_names_both_numbers_and_the_next_call_works() -> None:
    echo = variant_with(Supports(max_len=True), max_len=6)
    with pytest.raises(ValueError, match="length 7 exceeds max_len 6"):
        echo(*[draw(1, 2, 7, 4)] * 3)
    assert echo(*[draw(1, 2, 6, 4)] * 3).shape == (1, 2, 6, 4)
    assert Echo(heads=2, head_dim=4, max_len=6)(*[draw(1, 2, 7, 4)] * 3).shape == (1, 2, 7, 4)  # where it does not bind


# -- manners -----------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(batch=st.integers(1, 3), length=st.integers(1, 9), cross=st.booleans(), seed=st.integers(0, 9))
def test_content_at_masked_keys_never_reaches_mix(batch: int, length: int, cross: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(batch, length, generator=generator) < 0.5
    poisoned = torch.randn(batch, 2, length, 4, generator=generator).masked_fill(~mask[:, None, :, None], torch.nan)
    echo = variant_with(Supports(padding=True, cross=cross, streams=(Stream("gate"),)))
    out = echo(poisoned, poisoned, poisoned, key_mask=mask, gate=poisoned)
    clean = poisoned.nan_to_num(nan=0.0)
    for name in ("k", "v"):
        assert torch.equal(echo.seen[name], clean)
    for name in ("q", "gate"):  # with keys from elsewhere, a key mask says nothing about queries
        assert torch.equal(echo.seen[name].isnan(), poisoned.isnan()) if cross else torch.equal(echo.seen[name], clean)
    assert torch.equal(out, clean)


def test_grouped_heads_are_repeated_each_in_its_place() -> None:
    q, kv = draw(1, 4, 3, 4), draw(1, 2, 3, 4)
    echo = variant_with(Supports(), heads=4, kv_heads=2)
    assert torch.equal(echo(q, kv, kv), kv[:, [0, 0, 1, 1]])
    native = variant_with(Supports(grouped=True), heads=4, kv_heads=2)
    native(q, kv, kv)
    assert native.seen["v"].shape == kv.shape
    with pytest.raises(ValueError, match="kv_heads 2"):
        echo(q, q, q)


def test_what_is_not_read_is_not_handed_on() -> None:
    x = draw(1, 2, 3, 4)
    values = variant_with(Supports(reads=("v",)))
    for q in (None, x):
        values(q, q, x)
        assert values.seen["q"] is None
        assert values.seen["k"] is None


def test_streams_are_those_declared_in_name_and_width() -> None:
    x = draw(1, 2, 3, 4)
    gated = variant_with(Supports(streams=(Stream("gate", 1), Stream("x"))))
    gated(x, x, x, gate=x[..., :1], x=x)
    assert gated.seen["gate"].shape == (1, 2, 3, 1)
    for streams in ({}, {"gate": x[..., :1]}, {"gate": x[..., :1], "x": x, "beta": x}):
        with pytest.raises(ValueError, match=r"streams needed: \['gate', 'x'\], received"):
            gated(x, x, x, **streams)
    with pytest.raises(ValueError, match=r"stream gate must have shape .*\(1, 2, 3, 1\), received \(1, 2, 3, 4\)"):
        gated(x, x, x, gate=x, x=x)


def test_only_what_is_declared_is_condensed_and_misfits_are_clear() -> None:
    echo = variant_with(Supports(padding=True))
    tokens = draw(2, 1, 3, 5)
    with pytest.raises(Unsupported, match="made does not mix keys and values before it looks at them"):
        echo.condense(tokens)
    with pytest.raises(Unsupported, match="condensed must be False"):
        echo(*(draw(2, 2, 3, 4) for _ in range(3)), condensed=True)
    halves = variant_with(Supports(padding=True, condense=True, max_len=True), max_len=3)
    with pytest.raises(ValueError, match=r"tokens must have shape \(batch, kv_heads 2 or 1, .* received \(2, 3, 5\)"):
        halves.condense(tokens[:, 0])
    with pytest.raises(ValueError, match="length 4 exceeds max_len 3"):
        halves.condense(draw(2, 1, 4, 5))
    with pytest.raises(ValueError, match=r"key_mask must be a bool tensor .* = \(2, 3\)"):
        halves.condense(tokens, key_mask=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(NotImplementedError, match="must define mix_length"):
        halves.condense(tokens)
    with pytest.raises(NotImplementedError, match="must define mix_slots"):
        halves(draw(2, 2, 3, 4), *(draw(2, 2, 1, 4) for _ in range(2)), condensed=True)


def test_content_at_masked_tokens_never_reaches_mix_length() -> None:
    class Spy(Echo):
        declared = Supports(padding=True, condense=True)

        def mix_length(self, tokens: Tensor, key_mask: Tensor | None) -> Any:
            self.seen = {"tokens": tokens}
            return tokens, tokens

        def mix_slots(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, **streams: Tensor) -> Tensor:
            self.seen |= {"q": q, "k": k}
            return q

    spy, mask = Spy(heads=2, head_dim=4), torch.tensor([[True, True, False]])
    spy.condense(torch.full((1, 1, 3, 5), torch.nan).masked_fill(mask[:, None, :, None], 1), key_mask=mask)
    assert torch.equal(spy.seen["tokens"][0, 0, :, 0], torch.tensor([1.0, 1.0, 0.0]))
    q, slots = draw(1, 2, 3, 4), draw(1, 2, 2, 4)
    spy(q, slots, slots, key_mask=mask, condensed=True)
    assert torch.equal(spy.seen["k"], slots)  # slots are not tokens, so that the mask is not theirs
    assert torch.equal(spy.seen["q"], q.masked_fill(~mask[:, None, :, None], 0))


def test_the_output_has_the_type_of_the_values() -> None:
    class Single(Echo):
        def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, **streams: Tensor) -> Tensor:
            return v.float()

    x = draw(1, 2, 3, 4).half()
    assert Single(heads=2, head_dim=4)(x, x, x).dtype == torch.float16


def test_the_reference_is_the_stated_matrix_on_prepared_values() -> None:
    class Average(Echo):
        def dense_weights(self, q: Any, k: Tensor, *, key_mask: Tensor | None = None, **streams: Tensor) -> Tensor:
            return k.new_ones(k.shape[0], k.shape[1], k.shape[2], k.shape[2]) / k.shape[2]

    x = draw(1, 2, 4, 4)
    poisoned = x.clone()
    poisoned[:, :, 3] = torch.nan
    mask = torch.tensor([[True, True, True, False]])
    out = Average(heads=2, head_dim=4).reference(poisoned, poisoned, poisoned, key_mask=mask)
    torch.testing.assert_close(out, (x[:, :, :3].sum(2, keepdim=True) / 4).expand(1, 2, 4, 4))


# -- state -------------------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Tensor
    second: Any


class Holder:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def test_state_bytes_counts_nested_tensors_once() -> None:
    base = torch.zeros(10, dtype=torch.float32)
    other = torch.zeros(3, dtype=torch.float64)
    assert state_bytes(None) == 0
    assert state_bytes(7) == 0
    assert state_bytes(base) == 40
    assert state_bytes([base, base[2:4], base.view(2, 5)]) == 40
    assert state_bytes(Pair(base, {"deep": [(other,), None], "flag": True})) == 64
    assert state_bytes(Holder(other)) == 24
