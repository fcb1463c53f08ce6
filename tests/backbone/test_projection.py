"""The backbone's linear layer, against torch's."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attnbench.backbone import projection
from attnbench.backbone.projection import ROWS, Projection
from attnbench.measure.memory import peak_bytes

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


def pair(width: int, out: int, bias: bool = True) -> tuple[Projection, nn.Linear]:
    ours, plain = Projection(width, out, bias=bias), nn.Linear(width, out, bias=bias)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


@pytest.fixture
def convolutions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    seen: list[tuple[int, ...]] = []

    def spy(image: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(image.shape))
        return torch.nn.functional.conv2d(image, *args)

    monkeypatch.setattr(projection, "conv2d", spy)
    monkeypatch.setattr(projection, "_slighted_by_mkl", lambda: True)
    return seen


@settings(max_examples=30, deadline=None)
@given(
    lead=st.sampled_from([(ROWS,), (3, ROWS), (2, ROWS // 2 + 1), (1, 5), (2, 2, ROWS), (0, 4)]),
    width=st.integers(1, 40),
    out=st.integers(1, 40),
    bias=st.booleans(),
    strided=st.booleans(),
    slighted=st.booleans(),
)
def test_equals_torch_forwards_and_backwards(
    lead: tuple[int, ...], width: int, out: int, bias: bool, strided: bool, slighted: bool
) -> None:
    ours, plain = pair(width, out, bias)
    x = torch.randn(*lead, width)
    x = torch.randn(width, *lead).movedim(0, -1) if strided else x
    weight, found = torch.randn(*lead, out), []
    for layer in (ours, plain):
        mine = x.clone().requires_grad_()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(projection, "_slighted_by_mkl", lambda: slighted)
            y = layer(mine)
        found.append([y, *torch.autograd.grad(y, [mine, *layer.parameters()], weight)])
    for a, b in zip(*found, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@needs_onednn
def test_many_rows_are_the_pixels_of_an_image_and_stay_where_they_are(convolutions: list[tuple[int, ...]]) -> None:
    ours, plain = pair(8, 16)
    assert ours(torch.randn(2, ROWS, 8)).is_contiguous()
    assert convolutions == [(1, 8, 2 * ROWS, 1)]
    ours(torch.randn(1, ROWS - 1, 8))
    ours.double()(torch.randn(ROWS, 8, dtype=torch.float64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        ours.float()(torch.randn(ROWS, 8))
    assert len(convolutions) == 1
    x = torch.randn(1, 2**12, 8)
    with torch.no_grad():
        packed = 2**14  # the weight, as oneDNN wants it; nothing that grows with the rows
        assert peak_bytes(lambda: ours(x)).bytes <= peak_bytes(lambda: plain(x)).bytes + packed


def test_counters_compilers_and_autocast_meet_a_linear_layer(convolutions: list[tuple[int, ...]]) -> None:
    ours, plain = pair(8, 16)
    x = torch.randn(2, ROWS, 8)
    totals = []
    for layer in (ours, plain):
        with FlopCounterMode(display=False) as counter:
            layer(x).sum().backward()
        totals.append(counter.get_total_flops())
    assert totals[0] == totals[1]
    torch.testing.assert_close(torch.compile(ours, backend="eager", fullgraph=True)(x), plain(x))
    torch.testing.assert_close(torch.export.export(ours, (x,)).module()(x), plain(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x).dtype == torch.bfloat16
    assert not convolutions


@pytest.mark.parametrize(
    ("machine", "vendor", "expected"),
    [
        ("x86_64", "AuthenticAMD", True),
        ("AMD64", "HygonGenuine", True),
        ("x86_64", "GenuineIntel", False),
        ("aarch64", "AuthenticAMD", False),
    ],
)
def test_only_processors_that_mkl_slights(
    machine: str, vendor: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection.platform, "machine", lambda: machine)
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    assert projection._slighted_by_mkl(tmp_path / "cpuinfo") is expected
    monkeypatch.setattr(projection.platform, "processor", lambda: f"Family 25 Model 1, {vendor}")
    assert projection._slighted_by_mkl(tmp_path / "elsewhere") is expected
