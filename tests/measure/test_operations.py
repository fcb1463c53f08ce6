"""Operations by shape, whichever kernel does them."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbench.measure import Workload, measure_operations, measure_state
from attnbench.measure.operations import count_operations

SHAPE = {"batch": 2, "heads": 3, "head_dim": 8, "length": 32}
SQUARE = 2 * 3 * 32 * 32 * 8  # batch x heads x n^2 x head_dim


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
def test_fused_attention_counts_as_its_two_products_on_every_backend(backend, causal):
    with sdpa_kernel(backend):
        assert measure_operations(Workload("full", causal=causal, **SHAPE)).value == 4 * SQUARE


def test_the_backward_pass_counts_five_products_and_a_training_step_seven():
    assert measure_operations(Workload("full", mode="backward", **SHAPE)).value == 10 * SQUARE
    assert measure_operations(Workload("full", mode="train_step", **SHAPE)).value == 14 * SQUARE


def test_grouped_heads_count_as_many_products_as_there_are_query_heads():
    assert measure_operations(Workload("full", {"kv_heads": 1}, **SHAPE)).value == 4 * SQUARE


def test_decoding_counts_one_token_against_all_before_it():
    measured = measure_operations(Workload("full", mode="decode", causal=True, **SHAPE))
    mean_keys = 32 + (1 + 8) / 2
    assert measured.value == 4 * 2 * 3 * mean_keys * 8


def test_a_model_adds_its_projections_and_feed_forward():
    model = Workload("full", scope="model", **{**SHAPE, "heads": 2, "dim": 16, "depth": 1})
    tokens, dim = 2 * 32, 16
    assert measure_operations(model).value == 2 * tokens * 12 * dim * dim + 4 * 2 * 32 * 32 * dim


def test_fourier_transforms_are_counted_and_elements_apart():
    x = torch.randn(4, 64)
    by_operator, elements = count_operations(lambda: torch.fft.fft(x.to(torch.complex64)).abs())
    assert by_operator == {"_fft_c2c": 5 * 4 * 64 * math.log2(64)}
    assert elements == 4 * 64 * 2  # the copy to complex, and abs
    assert count_operations(lambda: torch.fft.rfft(x))[0] == {"_fft_r2c": 5 * 4 * 64 * 6 / 2}
    assert count_operations(lambda: torch.fft.irfft(x[:, :33].to(torch.complex64)))[0] == {
        "_fft_c2r": 5 * 4 * 64 * 6 / 2
    }


def test_views_write_nothing():
    x = torch.randn(4, 6)
    assert count_operations(lambda: x.t().reshape(24)[:3].unsqueeze(0)) == ({}, 24)


def test_the_state_of_full_attention_is_its_keys_and_values():
    measured = measure_state(Workload("full", causal=True, **SHAPE))
    assert measured.value == 2 * 2 * 3 * 32 * 8 * 4
    assert measured.details["per_token"] == 2 * 3 * 8 * 4
    half = measure_state(Workload("full", causal=True, dtype="bfloat16", **SHAPE))
    assert half.value == measured.value / 2
