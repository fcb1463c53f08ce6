"""A mixture: heads dealt by share, each run of heads exactly its member, capabilities no wider than every member's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnbench
from attnbench.contract import Unsupported
from variants.mixed import deal

SPARSE = {"members": {"local": 2, "strided": 1}, "member_options": {"local": {"window": 3}, "strided": {"stride": 4}}}


def build(heads=3, **options):
    return attnbench.create_variant("mixed", heads=heads, head_dim=4, **options)


def draw(n, heads=3, batch=2):
    torch.manual_seed(0)
    return list(torch.randn(3, batch, heads, n, 4, dtype=torch.float64))


def test_every_member_mixes_its_own_heads():
    q, k, v = draw(21)
    key_mask = torch.rand(2, 21) < 0.7
    out = build(**SPARSE)(q, k, v, key_mask=key_mask)
    local = attnbench.create_variant("local", heads=2, head_dim=4, window=3)
    strided = attnbench.create_variant("strided", heads=1, head_dim=4, stride=4)
    torch.testing.assert_close(out[:, :2], local(q[:, :2], k[:, :2], v[:, :2], key_mask=key_mask))
    torch.testing.assert_close(out[:, 2:], strided(q[:, 2:], k[:, 2:], v[:, 2:], key_mask=key_mask))


def test_states_itself_as_its_members_do():
    variant = build(4, members=["local", "global-token", "local", "strided"], member_options={"strided": {"stride": 3}})
    q, k, v = draw(17, heads=4)
    weights = variant.dense_weights(q, k)
    torch.testing.assert_close(variant(q, k, v), weights @ v)
    torch.testing.assert_close(variant.reference(q, k, v), weights @ v)
    assert variant.names == ["local", "global-token", "strided"]
    assert variant.sizes == [2, 1, 1]


@given(heads=st.integers(1, 32), shares=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_heads_are_dealt_by_share(heads, shares):
    named = {str(i): share for i, share in enumerate(shares)}
    if heads < len(shares):
        with pytest.raises(
            ValueError, match=f"{len(shares)} members need at least as many heads, received heads {heads}"
        ):
            deal(heads, named)
        return
    sizes = deal(heads, named)
    assert sum(sizes) == heads
    assert min(sizes) >= 1
    if heads % sum(shares) == 0:
        assert sizes == [heads * share // sum(shares) for share in shares]


def test_capabilities_are_those_that_all_members_have():
    def supports(*names):
        return attnbench.variant_info("mixed", members=dict.fromkeys(names, 1)).supports

    assert supports("local", "strided").causal
    assert supports("local", "strided").decode
    assert supports("local", "strided").max_len
    assert not supports("local", "longformer").causal
    assert not supports("local", "linformer").decode
    assert supports("local", "strided").time.exponent == 1.5
    with pytest.raises(Unsupported, match="no causal form"):
        build(causal=True, members={"local": 1, "longformer": 1})


def test_streams_reach_the_members_that_read_them():
    members = {"local": 1, "synthesizer": 1}
    supports = attnbench.variant_info("mixed", members=members).supports
    variant = build(2, members=members, max_len=9)
    q, k, v = draw(9, heads=2)
    streams = {s.name: torch.randn(2, 2, 9, s.width or 4, dtype=torch.float64) for s in supports.streams}
    out = variant.double()(q, k, v, **streams)
    assert streams
    torch.testing.assert_close(
        out[:, 1:], variant.members[1](None, None, v[:, 1:], **{n: x[:, 1:] for n, x in streams.items()})
    )


def test_decodes_where_all_members_do():
    variant = build(causal=True, **SPARSE)
    q, k, v = draw(20)
    out, state = variant.prefill(*[x[:, :, :5] for x in (q, k, v)])
    outs = [out]
    for t in range(5, 20):
        out, state = variant.step(*[x[:, :, t : t + 1] for x in (q, k, v)], state)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, dim=2), variant(q, k, v))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": {}}, "must map names"),
        ({"members": {"local": 0}}, "must map names"),
        ({"members": "local"}, "must map names"),
        ({"members": {"mixed": 1}}, "no member of a mixture"),
        ({"members": {"lokal": 1}}, "did you mean 'local'"),
        ({"member_options": {"full": {}}}, r"must map members \(local, strided\)"),
        ({"member_options": {"local": {"windw": 3}}, "max_len": 9}, "did you mean 'window'"),
        (
            {"members": {"local": 1, "global-token": 1}, "member_options": {"global-token": {"kind": "learned"}}},
            "learned",
        ),
    ],
)
def test_refuses_what_is_no_mixture(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)
