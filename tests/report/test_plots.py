from __future__ import annotations

import io
import sys

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from attnbench import report
from attnbench.analysis import compare, load, tables
from attnbench.report.canvas import figure, svg_text
from attnbench.report.figures import figures
from attnbench.report.labels import label_points
from attnbench.report.tradeoff import pareto

from .synthetic import NAMES, Synthetic, sweep

ONE_TABLE = {
    "time": (report.time_plot, ["speed", "scaling"]),
    "memory": (report.memory_plot, ["memory", "scaling"]),
    "operations": (report.operations_plot, ["operations", "scaling"]),
    "state": (report.state_plot, ["state", "scaling"]),
    "speedup": (report.speedup_plot, ["ratios", "crossover"]),
    "heatmap": (report.heatmap_plot, ["ratios", "outcomes"]),
    "bubble": (report.bubble_plot, ["decisions", "baselines"]),
    "operating": (report.operating_plot, ["decisions"]),
    "memory-speed": (report.memory_speed_plot, ["decisions"]),
    "accuracy": (report.accuracy_plot, ["accuracy", "scores", "baselines"]),
    "budget": (report.budget_plot, ["curves"]),
    "length": (report.accuracy_length_plot, ["accuracy"]),
    "slices": (report.slices_plot, ["slices"]),
    "curves": (report.curves_plot, ["curves"]),
}


def drawn(figure: Figure) -> str:
    assert isinstance(figure, Figure)
    return svg_text(figure)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for ax in figure.axes for text in ax.texts] + [text.get_text() for text in figure.texts]


def test_a_run_gets_every_kind_of_plot(run, found):
    plots = list(figures(run, found))
    names = [plot.name for plot in plots]
    assert len(set(names)) == len(names)
    for start in (
        "bubble",
        "operating",
        "memory-speed",
        "speedup",
        "heatmap",
        "time",
        "memory",
        "operations",
        "state",
        "accuracy",
    ):
        assert any(name.startswith(start) for name in names), start
    for start in (
        "accuracy-length-code-tokens",
        "budget-seconds",
        "budget-operations",
        "slice-gap",
        "curves",
        "patterns",
    ):
        assert any(name.startswith(start) for name in names), start
    assert all(name == "".join(c for c in name if c.isalnum() or c == "-") for name in names)
    for plot in plots[::6]:
        assert drawn(plot.draw()).startswith("<svg ")


@pytest.fixture(scope="module", params=["empty", "single"])
def sparse(request, tmp_path_factory):
    one = Synthetic()
    if request.param == "single":
        one.add("speed", "full", 0.5, length=64)
        for quantity in ("memory", "operations", "state"):
            one.add(quantity, "full", 100.0, length=64)
        one.trained("mqar", {"full": [0.5]}, {"constant": 0.1})
    return tables(load(one.write(tmp_path_factory.mktemp("sparse") / "run")))


@pytest.mark.parametrize("kind", ONE_TABLE)
def test_nothing_or_a_single_point_is_fine(kind, sparse):
    draw, names = ONE_TABLE[kind]
    drawn(draw(*(sparse[name] for name in names)))


@pytest.mark.parametrize("quantity", ["speed", "memory", "operations"])
def test_zeros_and_gaps_are_fine(quantity, tmp_path):
    run = Synthetic()
    for length, value in ((64, 0.0), (128, 1.0), (512, 8.0)):
        run.add(quantity, "full", value, length=length)
        run.add(quantity, "zero", 0.0, length=length)
    run.failed("failed", 64, "oom", "out", quantity)
    run.failed("odd", 64, "unsupported", "no", quantity)
    found = tables(load(run.write(tmp_path / "run")))
    draw = {"speed": report.time_plot, "memory": report.memory_plot, "operations": report.operations_plot}[quantity]
    figure = draw(found[quantity], found["scaling"])
    drawn(figure)
    assert any("out of memory" in text for text in texts(figure))
    assert any("odd (unsupported)" in text for text in texts(figure))


def test_failures_are_marked_where_they_happened(found):
    speed = found["speed"][found["speed"]["mode"] == "forward"]
    figure = report.time_plot(speed, found["scaling"][found["scaling"]["mode"] == "forward"])
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "X" and len(line.get_xdata()) == 1]
    assert [float(mark.get_xdata()[0]) for mark in marks] == [4096.0]
    assert any(text.startswith("full-naive") and "out of memory" in text for text in texts(figure))
    assert any("fixed cost of a call" in text for text in texts(figure))
    assert any(text.startswith(("full  2.0", "full  1.9")) for text in texts(figure))


def test_crossings_are_ringed_at_their_length(tmp_path):
    laws = {"full": (1e-9, 2.0), "local": (1e-6, 1.0)}
    found = tables(load(Synthetic().speed(laws, [256, 1024, 4096], noise=0).write(tmp_path / "run")))
    figure = report.speedup_plot(found["ratios"], found["crossover"])
    rings = [line for line in figure.axes[0].lines if line.get_fillstyle() == "none" and len(line.get_xdata()) == 1]
    assert [float(ring.get_xdata()[0]) for ring in rings] == pytest.approx([1000.0])


def test_scores_not_above_the_baseline_are_hollow(tmp_path):
    found = tables(
        load(
            Synthetic().trained("mqar", {"full": [0.9] * 3, "local": [0.2] * 3}, {"seen": 0.25}).write(tmp_path / "run")
        )
    )
    figure = report.accuracy_plot(found["accuracy"], found["scores"], found["baselines"])
    faces = {
        line.get_markeredgecolor(): line.get_markerfacecolor()
        for line in figure.axes[0].lines
        if line.get_markersize() == 6
    }
    assert faces[report.look_of("full").colour] == report.look_of("full").colour
    assert faces[report.look_of("local").colour] == "#ffffff"


def test_the_name_of_a_baseline_evades_a_large_bubble(tmp_path):
    run = Synthetic().speed({"full": (1e-9, 2.0), "synthesizer": (1e-8, 2.0)}, [256])
    run.counted("memory", {"full": (1e3, 1.0), "synthesizer": (1e3, 2.0)}, [256])
    run.trained("mqar", {"full": [1.0] * 3, "synthesizer": [0.25] * 3}, {"any value seen": 0.25, "constant": 0.6})
    found = tables(load(run.write(tmp_path / "run")))
    figure = report.bubble_plot(found["decisions"], found["baselines"])
    sides = {text.get_text(): text.get_ha() for ax in figure.axes for text in ax.texts}
    assert sides["any value seen 0.25"] == "right"
    assert sides["constant 0.60"] == "left"


def test_the_length_of_training_is_marked_where_others_were_tested(found):
    rows = found["slices"].query("slice == 'gap'").iloc[:2]
    tested = rows.assign(slice="test length", slice_value=["64", "256"])
    assert "trained here" in texts(report.slices_plot(tested))
    assert "trained here" not in texts(report.slices_plot(rows))


def test_accuracy_against_length_joins_what_differs_in_the_length_alone(tmp_path):
    run = Synthetic()
    for length in (64, 128):
        for pairs in (16, 4):
            options = {"length": length, "pairs": pairs}
            run.trained("mqar", {"full": [1.0] * 3}, {"constant": 0.1}, length=length, task_options=options)
    one = load(run.write(tmp_path / "run"))
    found = tables(one)
    plots = {plot.name: plot for plot in figures(one, found)}
    assert {name for name in plots if name.startswith("accuracy-length")} == {
        "accuracy-length-mqar-pairs-4",
        "accuracy-length-mqar-pairs-16",
    }
    drawn_ = plots["accuracy-length-mqar-pairs-4"].draw()
    assert drawn_.axes[0].lines[0].get_xdata().tolist() == [64, 128]
    assert any("pairs=4; mean over seeds" in text for text in texts(drawn_))
    # Numbers among the options count: 4 before 16, 64 before 128.
    assert found["tasks"]["task_options"].tolist() == [
        f"length={length}, pairs={pairs}" for length in (64, 128) for pairs in (4, 16)
    ]


def test_compared_runs_fill_what_changed(tmp_path):
    laws = {"full": (1e-9, 2.0), "local": (1e-6, 1.0), "linear": (1e-6, 1.0)}
    a = load(Synthetic(1).speed(laws, [64, 128]).write(tmp_path / "a"))
    b = load(Synthetic(2).speed(laws | {"local": (2e-6, 1.0)}, [64, 128]).write(tmp_path / "b"))
    figure = report.comparison_plot(compare(a, b).frame, ("old", "new"))
    drawn(figure)
    points = [line for line in figure.axes[0].lines if line.get_linestyle() == "None"]
    filled = [point for point in points if point.get_markerfacecolor() != "#ffffff"]
    assert (len(points), len(filled)) == (4, 2)
    drawn(report.comparison_plot(compare(a, b).frame.iloc[:0]))


def test_gallery_names_its_patterns():
    long = "performer(features=256)"
    figure = report.gallery_plot(
        {"full": np.ones((6, 6)), f"{long} causal": np.tril(np.ones((6, 6))), "blind" * 9: np.zeros((6, 6))}
    )
    drawn(figure)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["full", long, "blind" * 5 + "bli…"]
    assert [ax.texts[0].get_text() for ax in figure.axes] == ["1 layer", "causal, 1 layer", "never"]
    titles = [ax._left_title.get_window_extent() for ax in figure.axes]
    assert not _overlapping(titles)
    drawn(report.gallery_plot({}))


def test_pareto_front():
    assert pareto([1, 2, 3, 2.5], [0.9, 0.8, 0.1, 0.5]) == [0, 1, 3, 2]
    assert pareto([1, 2], [0.1, 0.9]) == [1]
    assert pareto([], []) == []


def test_global_state_backend_and_pyplot_stay_untouched(run, found):
    before, modules = dict(matplotlib.rcParams), set(sys.modules)
    for plot in list(figures(run, found))[:3]:
        plot.draw().savefig(io.BytesIO(), format="png")
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in set(sys.modules) - modules


def test_the_same_records_give_the_same_bytes(found):
    memory = found["memory"][found["memory"]["mode"] == "forward"]
    assert drawn(report.memory_plot(memory)) == drawn(report.memory_plot(memory))


def test_text_in_labels_is_never_markup_or_mathematics(found):
    image = drawn(report.time_plot(found["speed"][found["speed"]["mode"] == "forward"].assign(label="$x_1$ <b>")))
    assert "<b>" not in image


def test_twenty_names_do_not_overlap(tmp_path):
    found = tables(load(sweep(NAMES, [1024, 4096], rounds=1).write(tmp_path / "run")))
    one = {name: found[name][found[name]["mode"] == "forward"] for name in ("speed", "decisions")}
    figure = report.time_plot(one["speed"])
    boxes = _boxes(figure)
    assert len(boxes) >= 20
    assert not _overlapping(boxes)
    width, height = figure.canvas.get_width_height()
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height for box in boxes)
    points = _boxes(report.memory_speed_plot(one["decisions"]))
    assert len(_overlapping(points)) == 0


def test_no_hairline_crosses_a_name():
    made = figure(8.6, 5.4)
    ax = made.add_axes((0.1, 0.1, 0.87, 0.75))
    ax.set(xlim=(0, 1), ylim=(0, 1))
    places = [(0.42, 0.36), (0.49, 0.34), (0.53, 0.33), (0.52, 0.36), (0.58, 0.36), (0.61, 0.34)]
    label_points(ax, [(x, y, f"performer(features={n})", "#333333") for n, (x, y) in enumerate(places)])
    boxes = [text.get_window_extent(made.canvas.get_renderer()).padded(-2) for text in ax.texts]
    assert ax.lines
    for line in ax.lines:
        start, end = ax.transData.transform(line.get_xydata())
        for step in np.linspace(0, 1, 50)[:-1]:
            assert not any(box.contains(*(start + (end - start) * step)) for box in boxes)


def test_no_title_or_note_is_cut(run, found):
    for plot in figures(run, found):
        figure = plot.draw()
        renderer = figure.canvas.get_renderer()
        width, height = figure.canvas.get_width_height()
        for text in figure.texts:
            box = text.get_window_extent(renderer)
            assert box.x1 <= width, (plot.name, text.get_text())
            assert box.y1 <= height, (plot.name, text.get_text())


def _boxes(figure: Figure) -> list:
    renderer = figure.canvas.get_renderer()
    return [text.get_window_extent(renderer).padded(-1) for ax in figure.axes for text in ax.texts if text.get_text()]


def _overlapping(boxes: list) -> list:
    return [(a, b) for i, a in enumerate(boxes) for b in boxes[i + 1 :] if a.overlaps(b)]


def test_a_frame_of_ones_own_is_enough():
    frame = pd.DataFrame(
        {
            "label": ["a", "a"],
            "length": [1, 2],
            "seconds": [1.0, 2.0],
            "low": [0.9, 1.9],
            "high": [1.1, 2.1],
            "status": "ok",
        }
    )
    drawn(report.time_plot(frame))
