"""Layout: strides, shared heads and the order of projecting and condensing are the caller's business."""

from __future__ import annotations

import torch

from attnbench.conformance.core import expect_close, promise, require
from attnbench.conformance.subject import Inputs, Subject


@promise("non-contiguous")
def non_contiguous(subject: Subject) -> None:
    """Inputs may be transposed, sliced or expanded views: output and gradients are those of contiguous copies."""
    variant = subject.build(dtype=subject.exact)
    tolerance = subject.tolerance(subject.exact)
    for mask in subject.masks(2, 13):
        inputs = subject.inputs(13, dtype=subject.exact).masked(mask)
        expected = _output_and_gradient(variant, inputs)
        views = {
            "(batch, n, heads, head_dim) transposed": inputs.map(
                lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)
            ),
            "every other channel of a wider tensor": inputs.map(lambda t: t.repeat_interleave(2, dim=-1)[..., ::2]),
        }
        for layout, view in views.items():
            subject.note(layout=layout)
            for what, actual, wanted in zip(
                ("output", "gradient"), _output_and_gradient(variant, view), expected, strict=True
            ):
                expect_close(actual, wanted, what, tolerance)
    one = subject.inputs(13, batch=1, dtype=subject.exact)
    subject.note(batch=3, layout="one sample expanded over the batch")
    with torch.no_grad():
        expanded = one.map(lambda tensor: tensor.expand(3, -1, -1, -1))(variant)
        expect_close(expanded, one(variant).expand_as(expanded), "output", tolerance)


def _output_and_gradient(variant: torch.nn.Module, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    # The leaf is v itself, and the variant sees the view: detaching would keep the strides, cloning would not.
    v = inputs.v.detach().requires_grad_()
    out = inputs.map(lambda _: v, names=["v"])(variant)
    (gradient,) = torch.autograd.grad(out.square().sum(), v)
    return out.detach(), gradient


@promise("grouped-heads")
def grouped_heads(subject: Subject) -> None:
    """Fewer key/value heads than query heads give what the same heads, repeated, give."""
    groups, heads = subject.heads, 2 * subject.heads
    grouped = subject.build(dtype=subject.exact, heads=heads, kv_heads=groups)
    whole = subject.build(dtype=subject.exact, heads=heads)
    for mask in subject.masks(2, 13):
        inputs = subject.inputs(13, heads=heads, kv_heads=groups, dtype=subject.exact).masked(mask)
        repeated = inputs.map(lambda tensor: tensor.repeat_interleave(2, dim=1), names=["k", "v"])
        with torch.no_grad():
            actual = inputs(grouped)
            if _shapes(grouped) == _shapes(whole):
                whole.load_state_dict(grouped.state_dict())
                expected = repeated(whole)
            else:  # parameters per key/value head
                expected = inputs(grouped.reference)
        expect_close(actual, expected, "output against repeated heads", subject.tolerance(subject.exact))


def _shapes(module: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


@promise("condensing")
def condensing(subject: Subject) -> None:
    """Tokens that are condensed and then projected, bias and all, give what tokens that are projected give."""
    require(subject.supports.condense, "does not condense tokens before they are projected")
    variant, width = subject.build(dtype=subject.exact), subject.head_dim + 3
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(subject.device, subject.exact)

    weights, biases = draw(2, subject.heads, width, subject.head_dim), draw(2, subject.heads, 1, subject.head_dim)
    for length in subject.oracle_lengths:
        tokens = draw(2, 1, length, width).requires_grad_()
        for mask in subject.masks(2, length):
            inputs = subject.inputs(length, dtype=subject.exact).masked(mask)
            found = []
            for condensed in (True, False):
                kinds = variant.condense(tokens, key_mask=mask) if condensed else ((tokens, tokens.new_ones(1)),) * 2
                parts = zip(kinds, weights, biases, strict=True)
                k, v = (mixed @ weight + share * bias for (mixed, share), weight, bias in parts)
                options = {"condensed": True} if condensed else {}
                out = variant(inputs.q, k, v, key_mask=mask, **options, **inputs.streams)
                found.append((out.detach(), *torch.autograd.grad(out.square().sum(), tokens)))
            for what, actual, expected in zip(("output", "gradient of tokens"), *found, strict=True):
                expect_close(actual, expected, f"{what} against projecting first", subject.tolerance(subject.exact))
