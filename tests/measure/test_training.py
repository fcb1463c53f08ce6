"""The trainer, on three tiny tasks: one per shape of answer, with padding in it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench import Unsupported
from attnbench.errors import UserError
from attnbench.measure.recipe import Recipe
from attnbench.measure.train_checkpoint import load, restore
from attnbench.measure.train_data import Split
from attnbench.measure.train_model import evaluate
from attnbench.measure.training import Setup, Training, choose_rate, train
from attnbench.tasks import Item, Task, base, register_task

SIZES = {"train": 256, "validation": 60, "test": 103}
READS: list[str] = []  # which splits were read, in order
MODEL = {"dim": 16, "heads": 2, "depth": 1, "dropout": 0.0, "positions": "sinusoidal"}


class Tiny(Task):
    """Sequences of 3 to `length` tokens out of 2 .. 7."""

    causal = (False, True)

    def __init__(self, length: int = 8) -> None:
        self.length, self.vocab, self.classes = length, 8, 8

    def answer_to(self, tokens: Tensor) -> Tensor:
        raise NotImplementedError

    def dataset(self, split: str, seed: int = 0) -> Any:
        READS.append(split)
        generator = torch.Generator().manual_seed({"train": 100 + seed, "validation": 1, "test": 2}[split])
        items = []
        for _ in range(SIZES[split]):
            n = int(torch.randint(3, self.length + 1, (1,), generator=generator))
            tokens = torch.randint(2, 8, (n,), generator=generator)
            items.append(Item(tokens, self.answer_to(tokens), {"length": n}))
        return items

    def data_hash(self) -> str:
        return f"tiny-{self.length}"


class First(Tiny):
    answer = "label"

    def answer_to(self, tokens: Tensor) -> Tensor:
        return tokens[0]


class Previous(Tiny):
    answer = "tokens"

    def answer_to(self, tokens: Tensor) -> Tensor:
        return torch.cat([tokens.new_full((1,), base.IGNORE), tokens[:-1]])

    def stages(self) -> list[dict[str, Any]]:
        return [{"share": 0.25, "options": {"length": 4}}, {"share": 0.25, "options": {"length": 6}}]


class Copy(Tiny):
    answer = "sequence"
    causal = (True,)

    def __init__(self, length: int = 4) -> None:
        super().__init__(length)
        self.output_length = length

    def answer_to(self, tokens: Tensor) -> Tensor:
        return tokens


@pytest.fixture(autouse=True)
def tasks() -> Iterator[None]:
    made = {"tiny-first": First, "tiny-previous": Previous, "tiny-copy": Copy}
    for name, cls in made.items():
        register_task(name)(cls)
    READS.clear()
    yield
    for name in made:
        del base._tasks[name]


def trained(task: str = "tiny-previous", *, steps: int = 20, causal: bool = True, **changes: Any) -> Training:
    recipe = Recipe(
        steps=steps, **{"batch": 16, "learning_rate": 5e-3, "evaluate_every": 10, **changes.pop("recipe", {})}
    )
    arguments: dict[str, Any] = {
        "variant": "full",
        "options": {},
        "model": MODEL,
        "seed": 3,
        "task_options": {},
        **changes,
    }
    return train(task, recipe=recipe, causal=causal, **arguments)


@pytest.mark.parametrize(
    ("task", "causal", "steps"), [("tiny-first", False, 100), ("tiny-previous", True, 150), ("tiny-copy", True, 250)]
)
def test_each_shape_of_answer_is_learned_and_sliced(task: str, causal: bool, steps: int) -> None:
    result = trained(task, steps=steps, causal=causal, recipe={"evaluate_every": 50, "learning_rate": 1e-2})
    assert result.value is not None
    assert result.value > 0.9
    assert result.test is not None
    by_length = result.test["by_slice"]["length"]
    assert sum(total for _, total in by_length.values()) == result.test["total"]
    assert sum(correct for correct, _ in by_length.values()) == result.test["correct"]
    assert [point["step"] for point in result.curve] == list(range(50, steps + 1, 50))
    assert result.losses[-1] < 0.7 * result.losses[0]
    json.dumps(dataclasses.asdict(result), allow_nan=False)
    if task == "tiny-copy":
        assert result.test["generated"]["token"] > 0.9
        assert result.test["generated"]["exact"] <= result.test["generated"]["token"]


def test_the_test_split_is_read_once_and_last() -> None:
    trained(steps=30)
    assert READS.count("test") == 1
    assert READS[-1] == "test"
    assert READS.count("validation") == 1


def test_trained_short_and_tested_long(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    short = trained(steps=30)
    result = trained(steps=30, test_lengths=[4, 12], checkpoint=path)
    assert result.losses == short.losses  # with fixed positions more room changes nothing
    assert result.value == short.value
    assert result.test is not None
    at = result.test["by_slice"]["test length"]
    assert list(at) == ["4", "8", "12"]
    assert at["8"] == [result.test["correct"], result.test["total"]]
    model, _ = restore(path)
    for length in (4, 12):
        task = Previous(length)
        alone = evaluate(model, task, Split(task, "test"), batch=16, device=torch.device("cpu"))
        assert at[str(length)] == [alone.correct, alone.total]
    learned = trained(steps=10, test_lengths=[12], model=MODEL | {"positions": "learned"})
    assert learned.parameters == trained(steps=10, model=MODEL | {"positions": "learned"}).parameters + 4 * MODEL["dim"]


def test_how_often_validation_is_looked_at_changes_nothing_else() -> None:
    often, seldom = (
        trained(steps=50, model=MODEL | {"dropout": 0.2}, recipe={"evaluate_every": every}) for every in (10, 50)
    )
    assert often.losses == seldom.losses
    assert often.curve[-1]["validation"] == seldom.curve[-1]["validation"]
    assert len(often.curve) == 5


def test_a_seed_decides_everything_and_the_caller_s_random_state_is_left_alone() -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    first = trained(model=MODEL | {"dropout": 0.2})
    assert torch.equal(torch.rand(3), expected)
    assert trained(model=MODEL | {"dropout": 0.2}).losses == first.losses
    assert trained(model=MODEL | {"dropout": 0.2}, seed=4).losses != first.losses


class Killed(Exception):
    pass


@pytest.mark.parametrize(("task", "dtype"), [("tiny-previous", "float32"), ("tiny-copy", "bfloat16")])
def test_a_killed_training_goes_on_bit_for_bit(task: str, dtype: str, tmp_path: Path) -> None:
    path, model = tmp_path / "one.pt", MODEL | {"dropout": 0.2, "decoder_depth": None}
    steps = 0

    def kill(progress: float, loss: float) -> None:
        nonlocal steps
        steps += 1
        if steps in (23, 45):  # in the second stage of the curriculum, and after it
            raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            trained(task, steps=50, model=model, dtype=dtype, checkpoint=path, on_progress=kill)
    resumed = trained(task, steps=50, model=model, dtype=dtype, checkpoint=path, on_progress=kill)
    whole = trained(task, steps=50, model=model, dtype=dtype, checkpoint=tmp_path / "two.pt")
    assert resumed.losses == whole.losses
    assert resumed.test == whole.test
    states = [load(tmp_path / name)["model"] for name in ("one.pt", "two.pt")]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_a_finished_checkpoint_hands_back_its_outcome_and_reads_no_test_again(tmp_path: Path) -> None:
    first = trained(checkpoint=tmp_path / "done.pt")
    READS.clear()
    again = trained(checkpoint=tmp_path / "done.pt")
    assert again == dataclasses.replace(first, details=again.details)
    assert "test" not in READS


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.pt"
    trained(checkpoint=path)
    with pytest.raises(UserError, match=r"one.pt: holds another training: seed: 3 there, 9 asked$"):
        trained(checkpoint=path, seed=9)
    content = torch.load(path, weights_only=True)
    torch.save(content | {"vocabulary": content["vocabulary"] | {"vocab": 99}}, path)
    with pytest.raises(UserError, match="trained with vocab 99, task tiny-previous now has 8"):
        restore(path)
    torch.save(content | {"format": 7}, path)
    with pytest.raises(UserError, match="format 7, expected 1"):
        restore(path)


def test_a_model_scores_the_same_in_a_new_process(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    result = trained(steps=60, checkpoint=path)
    source = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("trained_tasks", {str(Path(__file__))!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.register_task("tiny-previous")(module.Previous)
model, task = module.restore({str(path)!r})
print(module.evaluate(model, task, module.Split(task, "test"), batch=16, device=module.torch.device("cpu")).value)
"""
    environment = os.environ | {"PYTHONHASHSEED": "77", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == result.value


def test_validation_chooses_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    result = trained(steps=40, recipe={"learning_rate": 0.3, "schedule": "constant", "clip": 0}, checkpoint=path)
    values = [point["validation"] for point in result.curve]
    assert result.validation == max(values)
    assert result.best_step == 10 * (values.index(max(values)) + 1)
    model, task = restore(path)
    again = evaluate(model, task, Split(task, "validation"), batch=16, device=torch.device("cpu"))
    assert again.value == result.validation


@pytest.mark.parametrize("batch", [1, 7, 103])
@pytest.mark.parametrize("task", ["tiny-first", "tiny-previous", "tiny-copy"])
def test_no_batch_size_changes_a_score(task: str, batch: int, tmp_path: Path) -> None:
    trained(task, causal=task != "tiny-first", checkpoint=tmp_path / "model.pt")
    model, made = restore(tmp_path / "model.pt")
    rows = Split(made, "test")
    score = evaluate(model, made, rows, batch=batch, device=torch.device("cpu"))
    whole = evaluate(model, made, rows, batch=32, device=torch.device("cpu"))
    assert score == whole
    assert score.total == (103 if task == "tiny-first" else int((rows.targets >= 0).sum()))


def test_accumulation_changes_no_gradient() -> None:
    whole, pieces = (trained(steps=12, recipe={"accumulate": count, "label_smoothing": 0.1}) for count in (1, 3))
    assert pieces.losses == pytest.approx(whole.losses, abs=1e-4)
    plain = trained(steps=12)
    assert plain.losses != pytest.approx(whole.losses, abs=1e-4)


@pytest.mark.parametrize("budget", [{"tokens": 2000}, {"operations": 3e7}, {"seconds": 0.2}])
def test_any_budget_ends_training(budget: dict[str, float]) -> None:
    name, limit = next(iter(budget.items()))
    recipe = Recipe(**budget, batch=16, evaluate_every=1000)
    arguments: dict[str, Any] = {"task_options": {}, "options": {}, "model": MODEL, "seed": 0, "causal": True}
    result = train("tiny-previous", variant="full", recipe=recipe, **arguments)
    spent = result.details["spent"]
    steps = spent["steps"]
    assert spent[name] >= limit
    assert steps == len(result.losses)
    if name == "tokens":
        assert spent[name] < limit + 16 * 8
    if name == "operations":  # what went before the last step was not enough
        assert spent[name] * (steps - 1) / steps < 1.5 * limit
    assert result.curve[-1][name] == spent[name]


def test_divergence_is_an_outcome_with_its_step() -> None:
    early = trained(steps=40, recipe={"learning_rate": 1e20, "warmup": 0.0, "clip": 0, "schedule": "constant"})
    assert early.diverged_at is not None
    assert early.diverged_at <= 10
    assert early.value is None
    assert len(early.losses) == early.diverged_at - 1
    json.dumps(dataclasses.asdict(early), allow_nan=False)


def test_the_rate_is_chosen_by_validation_and_the_grid_is_kept() -> None:
    recipe = Recipe(steps=40, batch=16, evaluate_every=20, clip=0, warmup=0.0)
    setup = Setup(
        task="tiny-previous", task_options={}, variant="full", options={}, model=MODEL, recipe=recipe, seed=99,
        device="cpu", dtype="float32", causal=True,
    )  # fmt: skip
    choice = choose_rate([1e20, 1e-6, 1e-2], setup)
    assert choice.rate == 1e-2
    assert [row["rate"] for row in choice.grid] == [1e-6, 1e-2, 1e20]
    assert choice.grid[2]["diverged_at"] is not None
    assert choice.grid[1]["validation"] > choice.grid[0]["validation"]
    assert "test" not in READS
    for rates in ([], [1e20]):
        with pytest.raises(UserError, match=r"received rates: (none|1e\+20)"):
            choose_rate(rates, setup)


def test_a_curriculum_begins_with_the_easier_stages_and_may_be_left_out() -> None:
    lengths: list[float] = []
    tokens = trained(steps=40).curve
    for before, after in zip([{"tokens": 0}, *tokens], tokens, strict=False):
        lengths.append((after["tokens"] - before["tokens"]) / 160)
    assert lengths[0] < 4.01 < lengths[1] < 5.5 < lengths[3]
    flat = trained(steps=10, recipe={"curriculum": False}).curve
    assert flat[0]["tokens"] / 160 > 4.5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_learns_as_well(dtype: str) -> None:
    result = trained(
        "tiny-first", steps=150, causal=False, dtype=dtype, recipe={"learning_rate": 1e-2, "evaluate_every": 50}
    )
    assert result.value is not None
    assert result.value > 0.9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "tiny-copy", "causal": False}, "tiny-copy allows causal=True, received causal=False"),
        ({"dtype": "float8"}, "unknown dtype 'float8'"),
        ({"model": {"vocab": 3}}, "vocab of a model follow"),
        ({"model": {"dpeth": 3}}, r"unknown model option 'dpeth'"),
        ({"variant": "fll"}, "did you mean 'full'"),
    ],
)
def test_misuse_is_one_clear_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        trained(**changes)


def test_what_a_variant_cannot_do_is_refused_before_training() -> None:
    with pytest.raises(Unsupported, match="linformer has no causal form"):
        trained(variant="linformer")
    with pytest.raises(Unsupported) as caught:
        trained("tiny-copy", variant="linformer")
    assert len(caught.value.reasons) >= 1
    assert "test" not in READS


def test_what_is_said_of_a_decoder_counts_where_there_is_one() -> None:
    model = MODEL | {"decoder_variant": "full", "cross_variant": "full"}
    assert trained("tiny-copy", model=model, variant="linformer", steps=2).value is not None
    assert trained("tiny-first", model=model, causal=False, steps=2).value is not None
