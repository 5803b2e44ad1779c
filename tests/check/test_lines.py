"""The lines of a check as a page and as JSON."""

from scaling.check.lines import not_here, pass_or_fail, to_text

LINES = [
    pass_or_fail("facts", "cores", 1024, None, passes=True, said="that this process may use"),
    pass_or_fail("facts", "shared memory", 0.0625, "GiB", passes=False, said="at least 1 GiB"),
    not_here("meters", "energy", "this machine has no GPU"),
]


def test_a_page_has_every_line_with_its_number_and_counts_them() -> None:
    assert to_text(LINES) == (
        "facts\n"
        "  pass      cores          1,024  that this process may use\n"
        "  fail      shared memory  0.0625 GiB  at least 1 GiB\n"
        "\n"
        "meters\n"
        "  not here  energy         this machine has no GPU\n"
        "\n"
        "1 pass, 1 fail, 1 not here\n"
    )
