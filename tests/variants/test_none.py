import torch

import attnbench


def test_values_pass_through() -> None:
    v = torch.randn(2, 3, 7, 4)
    for causal in (False, True):
        out = attnbench.create_variant("none", heads=3, head_dim=4, causal=causal)(None, None, v)
        assert torch.equal(out, v)
        assert out.data_ptr() != v.data_ptr()


def test_padding_gives_zeros_even_where_it_held_nan() -> None:
    v = torch.randn(1, 2, 4, 4)
    v[:, :, 2:] = torch.nan
    out = attnbench.create_variant("none", heads=2, head_dim=4)(
        None, None, v, key_mask=torch.tensor([[True, True, False, False]])
    )
    assert torch.equal(out[:, :, :2], v[:, :, :2])
    assert not out[:, :, 2:].any()


def test_it_reads_values_alone_and_has_no_parameters() -> None:
    assert attnbench.variant_info("none").supports.reads == ("v",)
    assert not attnbench.create_variant("none", heads=2, head_dim=4).state_dict()


def test_groups_share_their_values() -> None:
    v = torch.randn(1, 2, 5, 4)
    out = attnbench.create_variant("none", heads=4, head_dim=4, kv_heads=2)(None, None, v)
    assert torch.equal(out, v[:, [0, 0, 1, 1]])
