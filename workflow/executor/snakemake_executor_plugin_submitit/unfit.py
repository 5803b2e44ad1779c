"""Hosts on which no job can run, as jobs have said of them."""

from pathlib import Path

# one such failure may be an accident of the job's; two on one host are the host's
_TWICE = 2


class UnfitHosts:
    """A job that ends with `pack.UNFIT_HOST` blames its host; two that do, convict it."""

    def __init__(self) -> None:
        self._failures: dict[str, set[Path]] = {}
        self._why: dict[str, str] = {}

    def blame(self, allocation: Path, host: str, why: str) -> bool:
        """An allocation could run nothing on this host; whether it is left out from now on."""
        before = host in self.left_out
        self._failures.setdefault(host, set()).add(allocation)
        self._why[host] = why
        return host in self.left_out and not before

    @property
    def left_out(self) -> list[str]:
        """Hosts that get nothing more."""
        return sorted(host for host, failures in self._failures.items() if len(failures) >= _TWICE)

    def report(self) -> list[str]:
        """What to say at the end: a sentence for each host that is to be looked at."""
        return [
            f"{host} was left out after {len(self._failures[host])} failures of its own: "
            f"{self._why[host]}"
            for host in self.left_out
        ]
