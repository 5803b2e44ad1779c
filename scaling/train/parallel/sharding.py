"""Over which ranks ZeRO spreads what."""

from scaling.layout.layout import Layout


def hpz_ranks(layout: Layout) -> int | None:
    """Ranks that hold one second copy of ZeRO-3's parameters, None where there is none.

    A copy over all dp ranks is the first one. To ZeRO cp ranks are replicas too.
    """
    if layout.zero_stage < 3 or layout.zero_shard_size in (None, layout.dp):
        return None
    assert layout.zero_shard_size is not None
    return layout.zero_shard_size * layout.cp
