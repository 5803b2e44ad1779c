from scaling.train.engines.deepspeed.pipeline import bounds

# look-up, layers, norm, head; and with a norm between the stacks of an encoder and a decoder
DECODER = [False, True, True, True, False, False]
BOTH = [False, True, True, False, True, True, False]


def test_a_stage_begins_at_a_layer_and_what_is_none_rides_with_the_one_before():
    assert bounds(DECODER, (2, 1)) == [0, 3, 6]
    assert bounds(BOTH, (2, 2)) == [0, 4, 7]
    assert bounds(BOTH, (1, 2, 1)) == [0, 2, 5, 7]


def test_a_last_stage_without_layers_has_the_head():
    assert bounds(DECODER, (3, 0)) == [0, 4, 6]
    assert bounds(BOTH, (4, 0)) == [0, 6, 7]
