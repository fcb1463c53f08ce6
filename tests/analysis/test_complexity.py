from __future__ import annotations

import numpy as np
import pytest

from attnbench.analysis import load, path_length, reach, reference_tables, tables

from .synthetic import Synthetic


def window(n, width, causal=False):
    offset = np.arange(n)[:, None] - np.arange(n)[None]
    return ((offset >= 0) & (offset < width) if causal else np.abs(offset) < width).astype(float)


@pytest.mark.parametrize("causal", [False, True])
def test_full_attention_has_path_one_and_a_window_n_over_w(causal):
    n = 17
    full = np.tril(np.ones((n, n))) if causal else np.ones((n, n))
    assert path_length(full) == 1
    assert path_length(window(n, 5, causal)) == 4  # 16 steps away, 4 a layer
    assert path_length(np.eye(n)) == np.inf


def test_global_tokens_shorten_the_path_to_two():
    weights = window(33, 2)
    weights[0, :] = weights[:, 0] = 1
    assert path_length(weights) == 2


def test_a_ring_is_as_long_as_it_has_steps():
    assert path_length(np.roll(np.eye(5), 1, axis=1)) == 4


def test_reach_grows_layer_by_layer():
    shares = [reach(window(11, 3), depth) for depth in (0, 1, 5)]
    assert shares[0].tolist() == pytest.approx([1 / 11] * 11)
    assert shares[1][5] == pytest.approx(5 / 11)
    assert shares[2].tolist() == [1.0] * 11


def test_declared_and_measured_stand_side_by_side(tmp_path):
    run = Synthetic().speed({"full": (1e-9, 2.0), "local": (1e-6, 1.0)}, [256, 1024, 4096], noise=0, drift=1.0)
    declared = {"time": {"formula": "n w d", "exponent": 1.0}, "memory": {"formula": "n d", "exponent": 1.0}}
    run.environment["variants"] = {"local": {**declared, "sequential": "1", "path": "n / w"}}
    path = run.write(tmp_path / "run")
    np.savez(path / "patterns.npz", **{"local": window(17, 5), "local causal": window(17, 3, causal=True)})
    rows = tables(load(path))["complexity"].set_index("label")
    assert rows.loc["local", ["declared_time", "sequential", "path"]].tolist() == ["n w d", "1", "n / w"]
    assert rows["measured_time"].to_dict() == pytest.approx({"full": 2.0, "local": 1.0})
    assert rows.loc["local", "measured_path"] == 8
    assert rows.isna().loc["full", ["declared_time", "measured_path"]].all()


def test_pickled_patterns_are_never_loaded(tmp_path):
    path = Synthetic().speed({"full": (1e-9, 2.0)}, [256]).write(tmp_path / "run")
    np.savez(path / "patterns.npz", full=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        tables(load(path))


def test_published_figures_ship_with_the_package():
    found = reference_tables()
    accuracy = found["lra_accuracy"].set_index("model")
    assert len(accuracy) == 11
    tasks = ["listops", "text", "retrieval", "image", "pathfinder"]
    means = accuracy[tasks].mean(axis=1)
    off = (means - accuracy["average"]).abs()
    assert list(off[off > 0.02].index) == ["Sinkhorn"]  # as its caveat says
    assert len(found["lra_efficiency"]) == 36
