"""Memory that pieces take turns with."""

import torch

from attnbench.kernels.rooms import Rooms


def test_the_same_name_is_the_same_memory_while_it_suffices() -> None:
    rooms = Rooms(torch.empty(0))
    first = rooms.empty("keys", torch.float32, 4, 3)
    assert first.shape == (4, 3)
    assert rooms.empty("keys", torch.float32, 2, 5).data_ptr() == first.data_ptr()
    assert rooms.empty("values", torch.float32, 4, 3).data_ptr() != first.data_ptr()
    assert rooms.empty("keys", torch.float32, 40, 3).shape == (40, 3)
