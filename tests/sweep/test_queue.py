"""Turns over several machines: what waits for what, and where it goes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.sweep.ledger import Ledger, Turn
from attnbench.sweep.planner import plan
from attnbench.sweep.queue import TurnQueue
from attnbench.sweep.spec import parse_spec

SPEC = {"variants": ["fine", "twice"], "lengths": [64, 128], "quantities": ["speed", "memory"], "rounds": 2}


def turns() -> list[Turn]:
    return list(Ledger(plan(parse_spec(SPEC)), []).turns())


def shown(turn: Turn | None) -> tuple[str, int, int] | None:
    return None if turn is None else (turn.group.cells[0].quantity, turn.group.length, turn.round)


def test_a_longer_length_waits_for_the_shorter_and_a_round_for_the_round_before():
    queue = TurnQueue(turns())
    first = queue.next("a", exclusive=True)
    assert shown(first) == ("memory", 64, 1)
    assert shown(queue.next("b", exclusive=True)) == ("floor", 0, 1)
    assert shown(queue.next("b", exclusive=True)) == ("speed", 64, 1)
    assert queue.next("c", exclusive=True) is None
    assert first is not None
    queue.done(first)
    assert shown(queue.next("c", exclusive=True)) == ("memory", 128, 1)


def test_all_rounds_of_a_group_go_to_one_node_while_it_lives():
    speed = [turn for turn in turns() if turn.group.cells[0].quantity == "speed" and turn.group.length == 64]
    queue = TurnQueue(speed)
    first = queue.next("a", exclusive=True)
    assert first is not None
    queue.done(first)
    assert queue.next("b", exclusive=True) is None
    queue.forget("a")
    assert shown(queue.next("b", exclusive=True)) == ("speed", 64, 2)


def test_a_turn_given_back_comes_first_and_only_done_turns_are_over():
    queue = TurnQueue(turns())
    first = queue.next("a", exclusive=True)
    assert first is not None
    queue.give_back(first)
    queue.forget("a")
    assert not queue.empty
    assert queue.next("b", exclusive=True) is first


def test_what_is_timed_goes_to_an_idle_node_alone():
    assert TurnQueue(turns()).next("a", exclusive=False) is None


@settings(deadline=None, max_examples=50)
@given(events=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_every_turn_is_done_once_whatever_nodes_die(events):
    everything = turns()
    queue, done = TurnQueue(everything), []
    running: dict[str, Turn] = {}
    for node, dies in [*events, *[(node, False) for _ in everything for node in "aabbcc"]]:
        if node not in running:
            turn = queue.next(node, exclusive=True)
            running |= {} if turn is None else {node: turn}
        elif dies:
            queue.give_back(running.pop(node))
            queue.forget(node)
        else:
            done.append(running.pop(node))
            queue.done(done[-1])
    assert queue.empty
    assert sorted(map(shown, done)) == sorted(map(shown, everything))
