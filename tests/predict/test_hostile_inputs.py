"""Seeded fuzzing: whatever people hand us is predicted, or refused in one short sentence."""

import json
import random

import pytest

from scaling.errors import InputError
from scaling.predict.advise.candidates import Search
from scaling.predict.advise.recommendation import recommend
from tests.shipped import CLUSTERS, MODELS

pytestmark = pytest.mark.slow

SEED = 20261122


def check_sentence(error):
    said = str(error)
    assert said.strip()
    assert "\n" not in said
    assert len(said) < 2500, said


def survives(run):
    """Whether `run` succeeded; what it raises must be one short sentence."""
    try:
        run()
    except InputError as error:
        check_sentence(error)
        return False
    return True


def test_options_of_recommend_are_answered_or_refused():
    draw, answered = random.Random(SEED), 0
    precisions = ["fp32", "bf16", "fp16", "fp8", None]
    for _ in range(100):
        model = draw.choice(["llama3_1b", "tiny", "tiny_t5", "gpt2", "gpt_175b"])
        clusters = ["v100-32gb", "h100-80gb-efa", "mi300x-192gb", "local", "cpu", "x" * 5000]

        def asked(model=model, clusters=clusters):
            search = Search(
                model=model,
                shape=MODELS[model],
                cluster=draw.choice(clusters),
                clusters=CLUSTERS,
                gpus=draw.choice([1, 3, 7, 8, 12, 16, 37, 10**6, 10**12]),
                seq_length=draw.choice([1, 7, 512, 10**7]),
                global_batch_size=draw.choice([None, 1, 3, 64, 10**7]),
                precision=draw.choice(precisions),
            )
            best = recommend(search)
            json.dumps([one.facts for one in best], allow_nan=False)

        answered += survives(asked)
    assert 5 < answered < 95
