"""Hosts on which no job can run, as reported by jobs."""

from pathlib import Path

# One such failure may be the job's fault; two on one host are the host's.
_TOO_MANY = 2


class ExcludedHosts:
    """Excludes a host after two allocations in which a job exited with `pack.UNUSABLE_HOST`."""

    def __init__(self) -> None:
        self._failures: dict[str, dict[Path, str]] = {}  # by host and allocation: why

    def blame(self, allocation: Path, host: str, why: str) -> bool:
        """Count an allocation that could run nothing on this host; whether this excludes it."""
        before = host in self.names
        self._failures.setdefault(host, {})[allocation] = why
        return host in self.names and not before

    @property
    def names(self) -> list[str]:
        """Hosts that get nothing more."""
        return sorted(host for host, where in self._failures.items() if len(where) >= _TOO_MANY)

    def report(self) -> list[str]:
        """A sentence for each excluded host, for the end of the run."""
        return [
            f"{host} was excluded after {len(where)} failures of its own: {[*where.values()][-1]}"
            for host in self.names
            if (where := self._failures[host])
        ]
