"""An isolation that runs nothing: what a sweep does with outcomes can be watched without waiting for them."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from attnbench.sweep.records import canonical


class Instant:
    """Answers every call from its payload alone. The options of a variant say what it pretends to do.

    fail: {"status": "oom", "from": 128} fails at that length and above. nap: seconds that a call takes.
    """

    calls: ClassVar[list[tuple[str, Any]]] = []
    nap: ClassVar[float] = 0.0

    def call(self, target: str, payload: Any, **limits: Any) -> dict[str, Any]:
        name = target.rpartition(":")[2]
        self.calls.append((name, payload))
        time.sleep(self.nap)
        options = payload.get("options") or payload.get("workload", {}).get("options") or {}
        asked = options.get("fail") if isinstance(options, dict) else None
        if asked and (name == "check") == (asked["status"] == "incorrect") and self._reaches(asked, payload):
            return {"status": asked["status"], "reason": "as asked", "elapsed": 0.01}
        if name in ("check", "draw"):
            return {"status": "ok", "pattern": [[1.0]], "elapsed": 0.01}
        return {"status": "ok", "rows": self._rows(name, payload), "elapsed": 0.01, "threads": payload["threads"]}

    def close(self) -> None:
        pass

    @staticmethod
    def _reaches(asked: dict[str, Any], payload: Any) -> bool:
        length = payload.get("workload", payload.get("settings", {})).get("length", 0)
        return length >= asked.get("from", 0)

    @staticmethod
    def _rows(name: str, payload: Any) -> list[dict[str, Any]]:
        value = float(sum(canonical(payload).encode()))
        row = {"value": value, "unit": "s", "samples": [value], "details": {}}
        if name == "train":
            return [{"quantity": "curve", "details": {"curve": []}}, row]
        if name == "baselines":
            return [row | {"label": "bag"}, row | {"label": "constant"}]
        return [row]
