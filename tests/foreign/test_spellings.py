"""Words of other tools: read as ours where they are known, left alone where they are not."""

from scaling.foreign.layouts import WORDS
from scaling.foreign.spellings import SPELLINGS, respelled


def test_every_spelling_is_in_small_letters_and_means_a_word_we_have():
    for column, spellings in SPELLINGS.items():
        assert set(spellings.values()) <= set(WORDS[column])
        assert all(word == word.lower() and word not in WORDS[column] for word in spellings)


def test_a_word_is_known_in_any_case_and_a_strange_one_stays_as_it_is():
    assert respelled("precision", "BF16-Mixed", {"bf16"}) == "bf16"
    assert respelled("precision", "bf17", {"bf16"}) == "bf17"
    assert respelled("outcome", "OK", {"ok"}) == "ok"
