"""What one allocation needs, whoever gives it."""

import json
from dataclasses import dataclass

# start of the worker, and the signal of a coming end, which may be sent up to a minute early
MARGIN_MIN = 2


class RequestError(ValueError):
    """A resource that cannot be asked for; its text is a whole sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one allocation needs; jobs of requests of one kind may share one.

    `options` are words of the scheduler's own (True: a flag), sorted; `setup` are shell lines that
    run before the worker; `environment` is handed to the jobs; `gpus` are those of all nodes;
    `runtime_min` is the time limit of one job, or of all that share the allocation together.
    """

    runtime_min: int
    nodes: int
    gpus: int
    options: tuple[tuple[str, str | int | bool], ...]
    setup: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]

    @property
    def kind(self) -> str:
        """Equal for requests that differ in time only."""
        return json.dumps([self.options, self.setup, self.environment])

    @property
    def key(self) -> str:
        """Equal for equal requests."""
        return f"{self.runtime_min} {self.kind}"

    @property
    def minutes(self) -> int:
        """Time limit of the allocation, whose jobs run one after another."""
        return self.runtime_min + MARGIN_MIN
