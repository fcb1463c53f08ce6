"""Real text: whole files to a split, no window twice, every byte with its class."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
import torch

from attnbench.errors import UserError
from attnbench.tasks import IGNORE, PAD, create_task
from attnbench.tasks.code_tokens import CLASSES, lexical_classes
from attnbench.tasks.corpus import byte_tokens, split_of_text, standard_library

SMALL = {"length": 64, "train": 200, "validation": 30, "test": 40}
LETTERS = {letter: CLASSES.index(name) for letter, name in zip("_#s0kn+", CLASSES, strict=True)}

PROGRAM = '''\
# é says hello
def f(x):  # two
    """a
    b"""
    return f"{x + 1!r} é {'in'}" + 'é' \\
        + str(0x1f) if x is None else x
'''
MARKED = (  # line ends too: within a string they are string
    "##############_"
    "kkk_n+n++__#####_"
    "____sssss"
    "ssssssss_"
    "____kkkkkk_sssssssssssssssssssss_+_sss___"
    "________+_nnn+0000+_kk_n_kk_kkkk_kkkk_n_"
)


def test_every_byte_has_its_class():
    expected = [LETTERS[mark] for mark, letter in zip(MARKED, PROGRAM, strict=True) for _ in letter.encode()]
    found = lexical_classes(PROGRAM)
    assert found is not None
    assert len(found) == len(byte_tokens(PROGRAM)) > len(PROGRAM)
    assert found.tolist() == expected


@pytest.mark.parametrize("text", ["def f(:\n  '''", "if x:\n  y\n z\n", "(", '"""'])
def test_what_does_not_tokenize_is_left_out(text):
    assert lexical_classes(text) is None


def test_an_empty_program_has_no_bytes():
    found = lexical_classes("")
    assert found is not None
    assert len(found) == 0


def test_the_standard_library_is_the_library_alone():
    texts = {text[:200] for _, text in zip(range(40), standard_library(), strict=False)}
    assert any("__future__" in text or "import" in text for text in texts)
    assert len(texts) > 30


def test_a_file_is_in_the_split_that_its_content_says():
    assert split_of_text("a") == split_of_text("a")
    splits = [split_of_text(str(number)) for number in range(2000)]
    shares = [splits.count(split) / len(splits) for split in ("train", "validation", "test")]
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.03)


def test_code_tokens():
    task = create_task("code-tokens", **SMALL)
    batches = {split: task.batch(split) for split in ("train", "validation", "test")}
    assert [len(batch) for batch in batches.values()] == [200, 30, 40]
    windows = [{tuple(row.tolist()) for row in batch.inputs} for batch in batches.values()]
    assert sum(map(len, windows)) == len(set.union(*windows)) == 270
    test = batches["test"]
    assert torch.equal(test.targets == IGNORE, test.inputs == PAD)
    assert torch.equal(test.slices["class"], test.targets)
    assert test.targets.max() < task.classes == 7
    assert len(task.data_hash()) == 16
    baselines = task.baselines()
    assert baselines["constant"] < baselines["byte alone"] < 0.9
    assert 0.3 < baselines["byte and neighbours"] < 0.9


def test_the_byte_alone_by_hand():
    task = create_task("code-tokens", **SMALL)
    train, test = task.batch("train"), task.batch("test")
    votes: dict[int, list[int]] = {}
    for byte, target in zip(train.inputs.flatten().tolist(), train.targets.flatten().tolist(), strict=True):
        if target != IGNORE:
            votes.setdefault(byte, [0] * 7)[target] += 1
    pairs = [
        (byte, target)
        for byte, target in zip(test.inputs.flatten().tolist(), test.targets.flatten().tolist(), strict=True)
        if target != IGNORE
    ]
    known = [(byte, target) for byte, target in pairs if byte in votes]
    right = sum(votes[byte].index(max(votes[byte])) == target for byte, target in known)
    assert task.baselines()["byte alone"] == pytest.approx(right / len(pairs), abs=0.01)


@pytest.fixture
def story(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("".join(f"line {number} of ä story\n" for number in range(4000)), encoding="utf-8")
    return path


def test_byte_lm_on_a_file_of_ones_own(story):
    task = create_task("byte-lm", file=str(story), length=32, train=400, validation=20, test=20)
    batch = task.batch("train")
    real = batch.targets != IGNORE
    assert torch.equal(batch.targets[:, :-1][real[:, 1:]], batch.inputs[:, 1:][real[:, 1:]])
    text = story.read_bytes()
    for row in batch.inputs[:20]:
        assert bytes((row[row != PAD] - 1).tolist()) in text
    baselines = task.baselines()
    assert 0 < baselines["the byte before"] < baselines["constant"] < 8
    targets = task.batch("test").targets
    joined = bytes((targets[targets != IGNORE] - 1).tolist())
    assert baselines["zlib"] == 8 * len(zlib.compress(joined, 9)) / len(joined)


def test_the_score_of_byte_lm_is_bits_per_byte(story):
    task = create_task("byte-lm", file=str(story), length=32, train=400, validation=20, test=20)
    batch = task.batch("test")
    uniform = task.score(torch.zeros(*batch.targets.shape, 256), batch.rows(torch.arange(20)))
    assert uniform.value == pytest.approx(math.log2(256))
    assert uniform.total == int((batch.targets != IGNORE).sum())
    halves = [task.score(torch.zeros(10, 32, 256), batch.rows(rows)) for rows in torch.arange(20).split(10)]
    assert (halves[0] + halves[1]).value == pytest.approx(uniform.value)
    assert not task.higher_is_better


def test_a_changed_file_is_other_data(story):
    options = {"length": 32, "train": 400, "validation": 20, "test": 20}
    first = create_task("byte-lm", file=str(story), **options).data_hash()
    story.write_text(story.read_text(encoding="utf-8").replace("story", "glory"), encoding="utf-8")
    assert create_task("byte-lm", file=str(story), **options).data_hash() != first


def test_no_file_and_no_text_are_one_clear_line(tmp_path):
    with pytest.raises(UserError, match=r"task byte-lm: file 'nowhere.txt' does not exist"):
        create_task("byte-lm", file="nowhere.txt")
    (tmp_path / "short.txt").write_text("ab")
    with pytest.raises(UserError, match="the text holds nothing for the"):
        create_task("byte-lm", file=str(tmp_path / "short.txt")).batch("train")
    with pytest.raises(UserError, match="length must be a whole number of at least 1, received 0"):
        create_task("code-tokens", length=0)
