"""Agreement between ranks through a store, with one socket a rank."""

from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported at run time only


class Council:
    """Finds the largest of the ranks' values, one question after the other.

    A gloo group would connect every two ranks. Here each rank adds its value to one text, and the
    last one to do so reads it. The texts of two questions are kept: a rank that asks the next one
    has read the answer before.

    Args:
        store: a client of this rank's own, which nothing else waits on.
        world_size: ranks that take part in every question.
    """

    def __init__(self, store: TCPStore, world_size: int) -> None:
        self._store, self._world_size, self._question = store, world_size, 0

    def largest(self, value: float) -> float:
        """The largest value; every rank waits until all have given theirs."""
        self._question += 1
        values, answered, answer = (
            f"council/{self._question}/{part}" for part in ("values", "answered", "answer")
        )
        # torch's stubs lack the call
        self._store.append(values, f"{value!r} ")  # type: ignore[attr-defined]
        if self._store.add(answered, 1) == self._world_size:
            given = self._store.get(values).decode().split()
            for key in (values, answered, f"council/{self._question - 1}/answer"):
                self._store.delete_key(key)
            self._store.set(answer, repr(max(map(float, given))))
        return float(self._store.get(answer))
