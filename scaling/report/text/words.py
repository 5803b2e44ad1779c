"""What a device is called: GPUs on a GPU cluster, ranks where ranks share a CPU."""

from collections.abc import Mapping


def words_for(vendor: str | None) -> dict[str, str]:
    """The words for `{GPU}` and `{GPUs}`; a cluster nobody could plan on keeps GPUs."""
    return {"GPU": "rank", "GPUs": "ranks"} if vendor == "cpu" else {"GPU": "GPU", "GPUs": "GPUs"}


def filled(text: str, words: Mapping[str, str]) -> str:
    """`text` with `{GPU}` and `{GPUs}` replaced, other braces left alone."""
    for name, word in words.items():
        text = text.replace("{" + name + "}", word)
    return text


def counted(number: int, words: Mapping[str, str]) -> str:
    """`1 rank`, `8 GPUs`."""
    return f"{number} {words['GPU'] if number == 1 else words['GPUs']}"
