"""Linear attention over running sums: every path against explicit weights, at all chunk edges, in every precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels import features, prefix
from attnbench.kernels.prefix import explicit_weights, extend, linear_attention

FEATURES = ("elu", "relu", "random")


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 7 rows, triangles of 4, so that short sequences cross many edges."""
    chunks = prefix._chunks
    monkeypatch.setattr(prefix, "TRIANGLE", 4)
    monkeypatch.setattr(prefix, "_chunks", lambda start, stop, size: chunks(start, stop, min(size, 7)))


def draw(n_q, n_k, batch=2, d=4, e=5, scale=1.0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def normal(n, width):
        return torch.randn(batch, 3, n, width, generator=generator, dtype=torch.float64) * scale

    q, k, v = normal(n_q, d), normal(n_k, d), normal(n_k, e) / scale
    return [x.to(dtype).requires_grad_() for x in (q, k, v)]


def projection_of(feature, d=4, features=7):
    if feature != "random":
        return None
    return torch.randn(features, d, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def phi(feature, x, projection):
    if feature == "elu":
        return torch.nn.functional.elu(x) + 1
    if feature == "relu":
        return x.relu()
    y = x * x.shape[-1] ** -0.25
    return (y @ projection.to(x).T - y.square().sum(-1, keepdim=True) / 2).exp()


def by_hand(feature, q, k, v, projection, key_mask, causal):
    weights = phi(feature, q, projection) @ phi(feature, k, projection).mT
    if causal:
        weights = weights.tril(k.shape[2] - q.shape[2])
    if key_mask is not None:
        weights = weights * key_mask[:, None, None]
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1, total) @ v


@given(
    feature=st.sampled_from(FEATURES),
    n_q=st.integers(1, 23),
    n_k=st.integers(1, 23),
    batch=st.sampled_from([1, 2]),
    width=st.sampled_from([4, 5]),
    features=st.sampled_from([4, 7]),
    causal=st.booleans(),
    masked=st.booleans(),
)
@settings(max_examples=80, deadline=None)
@example(feature="random", n_q=23, n_k=23, batch=1, width=4, features=4, causal=False, masked=False)
@example(feature="random", n_q=23, n_k=23, batch=1, width=4, features=4, causal=True, masked=True)
@example(feature="elu", n_q=23, n_k=23, batch=1, width=4, features=4, causal=True, masked=True)
def test_output_and_gradients_equal_explicit_weights(feature, n_q, n_k, batch, width, features, causal, masked):
    with pytest.MonkeyPatch.context() as patch:
        chunks = prefix._chunks
        patch.setattr(prefix, "TRIANGLE", 4)
        patch.setattr(prefix, "_chunks", lambda start, stop, size: chunks(start, stop, min(size, 7)))
        q, k, v = draw(n_q, n_k, batch=batch, e=width)
        projection = projection_of(feature, features=features)
        key_mask = torch.arange(n_k) % 3 != torch.tensor([[0], [1]])[:batch] if masked else None
        out, _ = linear_attention(q, k, v, feature=feature, projection=projection, key_mask=key_mask, causal=causal)
        expected = by_hand(feature, q, k, v, projection, key_mask, causal)
        torch.testing.assert_close(out, expected)
        weights = torch.randn_like(expected)
        found = torch.autograd.grad((out * weights).sum(), (q, k, v))
        for a, b in zip(found, torch.autograd.grad((expected * weights).sum(), (q, k, v)), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck(feature, causal, small_chunks):
    q, k, v = (x[:, :1].detach().requires_grad_() for x in draw(6, 6, batch=1, seed=3))
    if feature == "relu":  # away from the kink
        q, k = ((x + 0.1 * x.sign()).detach().requires_grad_() for x in (q, k))
    projection = projection_of(feature)

    def function(q, k, v):
        return linear_attention(q, k, v, feature=feature, projection=projection, causal=causal)[0]

    assert torch.autograd.gradcheck(function, (q, k, v))


def test_the_causal_normaliser_at_33_tokens_of_width_8():
    q, k, v = draw(33, 33, d=8, e=8, dtype=torch.float32)
    expected = by_hand("elu", q.double(), k.double(), v.double(), None, None, True)
    out, _ = linear_attention(q, k, v, causal=True)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    sums, rows = None, []
    for t in range(33):
        token = [x[:, :, t : t + 1] for x in (q, k, v)]
        row, sums = linear_attention(*token, causal=True) if sums is None else extend(sums, *token)
        rows.append(row)
    torch.testing.assert_close(torch.cat(rows, dim=2).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("feature", FEATURES)
def test_extend_goes_on_from_a_prompt(feature, small_chunks):
    q, k, v = draw(16, 16)
    projection = projection_of(feature)
    whole, final = linear_attention(q, k, v, feature=feature, projection=projection, causal=True)
    _, sums = linear_attention(*(x[:, :, :10] for x in (q, k, v)), feature=feature, projection=projection, causal=True)
    for t in range(10, 16):
        token = (x[:, :, t : t + 1] for x in (q, k, v))
        out, sums = extend(sums, *token, feature=feature, projection=projection)
        torch.testing.assert_close(out, whole[:, :, t : t + 1])
    torch.testing.assert_close(sums.total, final.total)
    torch.testing.assert_close(sums.norm, final.norm)
    torch.testing.assert_close(sums.top, final.top)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_half_precision_over_a_long_sequence(feature, dtype, causal):
    n, d = 16384, 8
    generator = torch.Generator().manual_seed(0)
    q, k, v = ((torch.randn(1, 1, n, d, generator=generator) * s).to(dtype) for s in (3, 3, 1))
    projection = None if feature != "random" else torch.randn(16, d, generator=generator)
    out, _ = linear_attention(q, k, v, feature=feature, projection=projection, causal=causal)
    assert out.dtype == dtype
    assert out.isfinite().all()
    rows = torch.arange(0, n, 511)
    features = [phi(feature, x.double(), projection) for x in (q[:, :, rows], k)]
    weights = features[0] @ features[1].mT
    if causal:
        weights = weights * (torch.arange(n) <= rows[:, None])
    expected = weights / weights.sum(-1, keepdim=True) @ v.double()
    error = (out[:, :, rows].double() - expected).norm() / expected.norm()
    assert error < 5e-2


@pytest.mark.parametrize("causal", [False, True])
def test_keys_of_very_different_scale_neither_overflow_nor_vanish_from_rows_that_see_them_alone(causal):
    q, k, v = draw(12, 12)
    k = k.detach().clone()
    k[:, :, :6] *= 40  # weights of 2^-1000s beside those of the later keys
    k.requires_grad_()
    projection = projection_of("random")
    out, _ = linear_attention(q, k, v, feature="random", projection=projection, causal=causal)
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert (out[:, :, 0].abs().sum(-1) > 0).all()
    if causal:  # the first row sees one key
        torch.testing.assert_close(out[:, :, 0], v[:, :, 0])


def with_exponents(largest):
    """Queries and keys whose largest exponent under `projection_of("random")` is given."""
    q, k, v = draw(23, 23, seed=4)
    for x in (q, k):
        exponents = x.detach() @ projection_of("random").T * x.shape[-1] ** -0.25
        x.data.mul_(largest / exponents.abs().max())
    return q, k, v


@pytest.mark.parametrize("causal", [False, True])
def test_float32_bears_exponents_up_to_the_limit(causal):
    projection, limit = projection_of("random"), features.PositiveRandom.LIMIT / features.LOG2_E
    q, k, v = with_exponents(0.999 * limit)
    single = [x.detach().float().requires_grad_() for x in (q, k, v)]
    assert features.PositiveRandom(projection.float()).queries(single[0].detach()).max() > 1e12  # nothing is taken out
    out, _ = linear_attention(*single, feature="random", projection=projection.float(), causal=causal)
    expected = by_hand("random", q, k, v, projection, None, causal)
    torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-4)
    found = torch.autograd.grad(out.sum(), single)
    for a, b in zip(found, torch.autograd.grad(expected.sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("largest", [5.0, 60.0])
def test_moderate_and_extreme_exponents_mean_the_same(largest, causal):
    q, k, v = with_exponents(largest)
    projection = projection_of("random")
    found = []
    for limit in (0.0, torch.inf):  # always the maxima taken out, and never
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(features.PositiveRandom, "LIMIT", limit)
            out, sums = linear_attention(q, k, v, feature="random", projection=projection, causal=causal)
            found.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
            units = sums.top[..., None, None].exp2()
            found[-1] += [sums.total * units, sums.norm * units]
    for extracted, plain in zip(*found, strict=True):
        torch.testing.assert_close(extracted, plain)


def test_features_of_a_chunk_take_the_place_of_the_last_one_s():
    phi = features.PositiveRandom(projection_of("random"))
    x = torch.randn(3, 2, 3, 9, 4, dtype=torch.float64)
    first, second = phi.queries(x[0]), phi.keys(x[1])[0]
    kept = first.clone()
    assert torch.equal(first, kept)  # queries and keys have places of their own
    assert phi.queries(x[2]).data_ptr() == first.data_ptr() != second.data_ptr()
    assert phi.keys(x[2][:, :, :5])[0].shape == (2, 3, 5, 7)  # a shorter chunk uses a part
    phi = features.PositiveRandom(projection_of("random"), together=False)
    assert phi.queries(x[0]).data_ptr() == phi.keys(x[1])[0].data_ptr()


@pytest.mark.parametrize("feature", FEATURES)
def test_masked_keys_and_rows_before_the_first_key_give_zeros_and_finite_gradients(feature):
    projection = projection_of(feature)
    q, k, v = draw(6, 4)
    mask = torch.tensor([[True] * 4, [False] * 4])
    out, _ = linear_attention(q, k, v, feature=feature, projection=projection, key_mask=mask, causal=True)
    assert not out[1].any()
    assert not out[:, :, :2].any()
    out.sum().backward()
    assert not k.grad[1].any()
    assert not v.grad[1].any()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_output_lies_as_tokens_so_that_joining_heads_copies_nothing():
    out, _ = linear_attention(*draw(8, 8))
    assert out.transpose(1, 2).is_contiguous()


def test_operations_grow_linearly_and_are_those_of_the_products():
    def count(n, causal):
        q, k, v = draw(n, n, batch=1, d=8, e=8, dtype=torch.float32)
        with FlopCounterMode(display=False) as forward:
            out, _ = linear_attention(q, k, v, causal=causal)
        with FlopCounterMode(display=False) as backward:
            out.sum().backward()
        return forward.get_total_flops(), backward.get_total_flops()

    assert count(1024, False)[0] == 2 * 3 * 2 * 1024 * 8 * 9
    # One triangle of 128 forward, two of 64 backward.
    summed = 2 * 128 * 8 * 9
    assert count(128, True) == (2 * 3 * (summed + 128**2 * 17), 2 * 3 * (2 * summed + 3 * 2 * 64**2 * 17))
    for causal in (False, True):
        short, long = count(1024, causal), count(4096, causal)
        assert [b / a for a, b in zip(short, long, strict=True)] == [4, 4]
        assert short[1] >= 2 * short[0]


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("causal", [False, True])
def test_compiles_to_one_graph_with_gradients(feature, causal):
    projection = projection_of(feature)

    def function(q, k, v):
        return linear_attention(q, k, v, feature=feature, projection=projection, causal=causal)[0]

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    inputs = draw(9, 9)
    out, expected = compiled(*inputs), function(*inputs)
    torch.testing.assert_close(out, expected)
    for a, b in zip(torch.autograd.grad(out.sum(), inputs), torch.autograd.grad(expected.sum(), inputs), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_step_of_decoding_compiles_to_one_graph(feature):
    q, k, v = (x.detach() for x in draw(6, 6))
    projection = projection_of(feature)
    _, sums = linear_attention(*(x[:, :, :5] for x in (q, k, v)), feature=feature, projection=projection, causal=True)

    def function(sums, q, k, v):
        return extend(sums, q, k, v, feature=feature, projection=projection)

    token = [x[:, :, 5:] for x in (q, k, v)]
    out, after = torch.compile(function, fullgraph=True, backend="aot_eager")(sums, *token)
    expected, expected_after = function(sums, *token)
    torch.testing.assert_close(out, expected)
    units = [x.top[..., None, None].exp2() for x in (after, expected_after)]  # maxima may have been taken out in one
    torch.testing.assert_close(after.total * units[0], expected_after.total * units[1])


def test_explicit_weights_sum_to_one_or_zero():
    queries, keys = torch.rand(2, 2, 3, 5, 4).unbind()
    weights = explicit_weights(queries, keys, key_mask=torch.arange(5) > torch.tensor([[1], [4]]), causal=True)
    sums = weights.sum(-1)
    assert torch.allclose(sums[0, :, 2:], torch.ones(()))
    assert not sums[0, :, :2].any()
    assert not sums[1].any()
