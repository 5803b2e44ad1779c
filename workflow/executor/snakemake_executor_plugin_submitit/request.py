"""The request of one allocation, for any scheduler."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from snakemake_interface_common.exceptions import WorkflowError

# For the start of the worker, and for the warning signal, which may come a minute early.
MARGIN_MIN = 2


class RequestError(WorkflowError):
    """A resource that cannot be requested; the message is a whole sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The request of one allocation; jobs whose requests have the same `kind` may share one."""

    runtime_min: int  # time limit of one job, or the sum for all that share the allocation
    options: Mapping[str, str | int | bool]  # of the scheduler; True: a flag
    setup: tuple[str, ...]  # shell lines that run before the worker
    environment: Mapping[str, str]  # for the jobs
    excluded: str = ""  # hosts that the rule leaves out, as its command may name them

    @property
    def kind(self) -> str:
        """Equal for requests that differ in time only."""
        return json.dumps([self.options, self.setup, self.environment], sort_keys=True)

    @property
    def key(self) -> str:
        """Equal for equal requests."""
        return f"{self.runtime_min} {self.kind}"

    @property
    def asked(self) -> str:
        """Equal for requests that differ in the rule's excluded hosts only."""
        own = str(self.options.get("exclude", "")).removesuffix(self.excluded).rstrip(",")
        return dataclasses.replace(self, options={**self.options, "exclude": own}).key

    @property
    def minutes(self) -> int:
        """Time limit of the allocation, whose jobs run one after another."""
        return self.runtime_min + MARGIN_MIN


def together(name: str, requests: Sequence[Request]) -> Request:
    """One allocation in which the jobs of a group run one after another.

    It has the most of each number that any of them needs, and the sum of their times.

    Raises:
        RequestError: they need different words, such as partitions.
    """
    first = requests[0]
    if len(requests) == 1:
        return first
    options: dict[str, str | int | bool] = {}
    for option in sorted({option for request in requests for option in request.options}):
        values = {request.options.get(option, 0) for request in requests}
        texts = {str(value).rstrip("M"): value for value in values}
        numbers = {int(text): value for text, value in texts.items() if text.isdigit()}
        if len(values) > 1 and len(numbers) < len(values):
            raise RequestError(f"group {name}: its jobs differ in {option}, so they cannot be one")
        options[option] = numbers[max(numbers)] if numbers else values.pop()
    if any((each.setup, each.environment) != (first.setup, first.environment) for each in requests):
        raise RequestError(f"group {name}: its jobs differ in their set-up, so they cannot be one")
    return dataclasses.replace(
        first,
        runtime_min=sum(request.runtime_min for request in requests),
        options=options,
    )
