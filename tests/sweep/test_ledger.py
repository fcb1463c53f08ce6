"""The ledger: what is left, after any history."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from attnbench.sweep.ledger import Ledger, Turn
from attnbench.sweep.planner import plan
from attnbench.sweep.spec import parse_spec

SPEC = {"variants": ["fine", "twice"], "lengths": [64, 128, 256], "quantities": ["speed", "memory"], "rounds": 3}
PLAN = None


def fresh(records: list[dict[str, Any]] = []) -> Ledger:  # noqa: B006 - never changed
    global PLAN
    PLAN = PLAN or plan(parse_spec(SPEC))  # the variants are registered when the first test runs
    return Ledger(PLAN, records)


def record(cell, turn: Turn, status: str = "ok", session: str = "a") -> dict[str, Any]:
    return {"cell": cell.id, "status": status, "session": session, "round": turn.round}


def everything(ledger: Ledger) -> list[tuple[str, int]]:
    return [(cell.id, turn.round) for turn in ledger.turns() for cell in ledger.left(turn)]


def speed_turn(ledger: Ledger, round_: int, length: int = 64) -> Turn:
    return next(
        turn
        for turn in ledger.turns()
        if turn.group.cells[0].quantity == "speed" and turn.round == round_ and turn.group.length == length
    )


def test_at_first_everything_is_left():
    ledger = fresh()
    assert len(everything(ledger)) == 2 * 3 + 2 + 2 * 3 * 3  # memory, floors, and three rounds of speed


def test_rounds_come_one_after_the_other_over_all_lengths():
    rounds = [turn.round for turn in fresh().turns() if turn.group.cells[0].quantity == "speed"]
    assert rounds == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_the_order_within_a_round_is_shuffled_and_repeatable():
    orders = {
        (round_, length): tuple(cell.definition["label"] for cell in ledger.left(speed_turn(ledger, round_, length)))
        for ledger in [fresh()]
        for round_ in (1, 2, 3)
        for length in (64, 128, 256)
    }
    assert len(set(orders.values())) == 2, "two labels have two orders, and both must occur"
    again = fresh()
    assert orders[1, 64] == tuple(cell.definition["label"] for cell in again.left(speed_turn(again, 1)))


def test_an_interrupted_round_is_left_whole():
    ledger = fresh()
    turn = speed_turn(ledger, 2)
    first, second = ledger.left(turn)
    ledger.note(record(first, turn))
    assert ledger.left(turn) == [first, second]
    ledger.note(record(second, turn, session="b"))
    assert len(ledger.left(turn)) == 2, "half a round in each of two sessions is no round"
    ledger.note(record(first, turn, session="b"))
    assert ledger.left(turn) == []


def test_an_exact_quantity_is_left_cell_by_cell():
    ledger = fresh()
    turn = next(ledger.turns())
    first, second = ledger.left(turn)
    ledger.note(record(first, turn))
    assert ledger.left(turn) == [second]


def test_a_failed_cell_is_not_measured_again_and_does_not_hold_up_its_group():
    ledger = fresh()
    turn = speed_turn(ledger, 1)
    first, second = ledger.left(turn)
    ledger.note(record(first, turn, status="error"))
    ledger.note(record(second, turn))
    assert ledger.left(turn) == []
    assert ledger.left(speed_turn(ledger, 2)) == [second]


def test_longer_cells_are_too_long_after_oom_and_timeout_alone():
    for status, reason in (("oom", "ran out of memory"), ("timeout", "exceeded the time limit"), ("error", None)):
        ledger = fresh()
        turn = speed_turn(ledger, 1, 128)
        failed = ledger.left(turn)[0]
        ledger.note(record(failed, turn, status=status))
        for cell in (cell for turn in ledger.turns() for cell in turn.group.cells if cell.quantity == "speed"):
            expected = reason is not None and cell.chain == failed.chain and cell.definition["length"] > 128
            assert (ledger.too_long(cell) is not None) == expected
            if expected:
                assert ledger.too_long(cell) == f"longer than 128, where it {reason}"


def test_a_cell_that_was_measured_is_never_too_long():
    ledger = fresh()
    longer, shorter = speed_turn(ledger, 1, 256), speed_turn(ledger, 2, 64)
    cell = next(cell for cell in longer.group.cells if cell.definition["label"] == "fine")
    ledger.note(record(cell, longer))
    ledger.note(record(next(c for c in shorter.group.cells if c.chain == cell.chain), shorter, status="timeout"))
    assert ledger.too_long(cell) is None


@given(data=st.data())
def test_any_history_of_kills_ends_with_everything_measured(data):
    records: list[dict[str, Any]] = []
    for session in range(200):
        ledger = fresh(records)
        budget = data.draw(st.integers(0, 40)) if session < 20 else 1000
        for turn in ledger.turns():
            for cell in ledger.left(turn):
                if budget == 0:
                    break
                budget -= 1
                records.append(record(cell, turn, session=str(session)))
                ledger.note(records[-1])
        if not everything(ledger):
            break
    assert not everything(fresh(records))
    memory = [entry["cell"] for entry in records if entry["cell"][0] == "m"]
    assert len(memory) == len(set(memory)) == 6
    for round_ in (1, 2, 3):
        complete = [
            session
            for session in {entry["session"] for entry in records}
            if len([r for r in records if r["cell"][0] == "s" and (r["session"], r["round"]) == (session, round_)]) >= 2
        ]
        assert complete
