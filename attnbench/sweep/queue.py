"""Which turn may begin where, when several machines take turns of one sweep."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.sweep.ledger import Turn
from attnbench.sweep.records import canonical

__all__ = ["TurnQueue"]


class TurnQueue:
    """Turns in their order, each held back until what it depends on is done.

    A round waits for the round before it, and a length's first round for the shorter length's, whose failures it may be spared.
    A training waits for the choice of its learning rate.
    All rounds of a comparison group go to the node that took its first, for as long as that node lives.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._waiting = list(turns)
        self._running = 0
        self._done: set[tuple[str, int]] = set()
        self._node_of: dict[str, str] = {}
        self._needs: dict[tuple[str, int], tuple[str, int]] = {}
        shorter: dict[str, str] = {}
        chooses = {cell.id: turn.group.key for turn in turns for cell in turn.group.cells}
        for turn in turns:
            key = turn.group.key
            series = _series(turn)
            after = turn.group.cells[0].after
            if after is not None:
                self._needs[key, 1] = (chooses[after], 1)
            elif turn.round > 1:
                self._needs[key, turn.round] = (key, turn.round - 1)
            elif series in shorter:
                self._needs[key, 1] = (shorter[series], 1)
            shorter[series] = key

    @property
    def empty(self) -> bool:
        """Whether every turn is done."""
        return not self._waiting and self._running == 0

    def next(self, node: str, *, exclusive: bool) -> Turn | None:
        """The first turn that this node may begin now; what is timed only where `exclusive`, the node being idle."""
        for turn in self._waiting:
            if turn.group.exclusive and not exclusive:
                continue
            if self._is_ready(turn) and self._node_of.get(turn.group.key, node) == node:
                self._waiting.remove(turn)
                self._running += 1
                if turn.group.exclusive:
                    self._node_of[turn.group.key] = node
                return turn
        return None

    def done(self, turn: Turn) -> None:
        """The turn is over, and its records are kept."""
        self._running -= 1
        self._done.add((turn.group.key, turn.round))

    def give_back(self, turn: Turn) -> None:
        """The turn's node died: the turn goes back to the head of the queue."""
        self._running -= 1
        self._waiting.insert(0, turn)

    def forget(self, node: str) -> None:
        """A node died: its groups may go elsewhere."""
        self._node_of = {key: name for key, name in self._node_of.items() if name != node}

    def _is_ready(self, turn: Turn) -> bool:
        need = self._needs.get((turn.group.key, turn.round))
        return need is None or need in self._done


def _series(turn: Turn) -> str:
    """The groups that differ in nothing but the length."""
    definition = turn.group.cells[0].definition
    return canonical(
        {key: value for key, value in definition.items() if key not in ("label", "variant", "options", "length")}
    )
