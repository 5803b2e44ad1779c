"""Hosts on which no job can run, as reported by jobs."""

from pathlib import Path

# One such failure may be the job's fault; two on one host are the host's.
_TOO_MANY = 2


class UnfitHosts:
    """Excludes a host after two allocations in which a job exited with `pack.UNFIT_HOST`."""

    def __init__(self) -> None:
        self._failures: dict[str, set[Path]] = {}
        self._why: dict[str, str] = {}

    def blame(self, allocation: Path, host: str, why: str) -> bool:
        """Count an allocation that could run nothing on this host; whether this excludes it."""
        before = host in self.excluded
        self._failures.setdefault(host, set()).add(allocation)
        self._why[host] = why
        return host in self.excluded and not before

    @property
    def excluded(self) -> list[str]:
        """Hosts that get nothing more."""
        return sorted(host for host, where in self._failures.items() if len(where) >= _TOO_MANY)

    def report(self) -> list[str]:
        """A sentence for each excluded host, for the end of the run."""
        return [
            f"{host} was left out after {len(self._failures[host])} failures of its own: "
            f"{self._why[host]}"
            for host in self.excluded
        ]
