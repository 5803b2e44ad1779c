"""Titles over sizes: what a step returns, and how surely."""

import pytest

from scaling.report.sections import answer, over_sizes
from scaling.report.sections.headline import last_step
from scaling.report.tables import Tables


def returns(*steps, series="measured"):
    """Steps between 1, 2, 4, ... GPUs: what each returned, with its interval."""
    rows = [
        {
            "series": series, "from_world_size": 2**n, "to_world_size": 2 ** (n + 1),
            "step_return": middle, "step_return_low": low, "step_return_high": high,
            "pays": middle >= 0.5, "returned": (1 + middle) / 2,
        }
        for n, (middle, low, high) in enumerate(steps)
    ]  # fmt: skip
    short = next((row for row in rows if not row["pays"]), None)
    knee = {
        "series": series, "knee_share": 0.75, "beyond_data": short is None,
        "knee_world_size": (short or rows[-1])["from_world_size" if short else "to_world_size"],
        "returned": short and short["returned"],
    }  # fmt: skip
    return Tables({"returns": rows, "knees": [knee]})


@pytest.mark.parametrize(
    ("steps", "title", "knee"),
    [
        (
            [(0.9, 0.8, 1.0)],
            "The one step returns 0.90 [0.80–1.00] of its cost",
            "Every doubling up to 2 GPUs returned at least half of its cost, as the study asks of "
            "it: no knee within the data.",
        ),
        (
            [(0.57, 0.33, 0.87)],
            "The one step returns 0.57 [0.33–0.87] of its cost",
            "Perhaps every doubling",
        ),
        (
            [(0.9, 0.8, 1.0), (0.8, 0.7, 0.9)],
            "Every step returns at least 0.80 [0.70–0.90] of its cost",
            "no knee",
        ),
        ([(1.03, None, None)], "The one step returns its full cost", "no knee"),
        ([(1.0, 0.93, 1.1)], "The one step returns its full cost", "no knee"),
        ([(1.01, 0.8, 1.5)], "The one step returns perhaps its full cost", "no knee"),
        (
            [(0.9, 0.8, 1.0), (0.3, 0.2, 0.4)],
            "The step from 2 to 4 GPUs returns less than half of its cost: 0.30 [0.20–0.40]",
            "The knee is at 2 GPUs: up to there every doubling returned at least half of its "
            "cost, the next step returned 0.30.",
        ),
        (
            [(0.52, 0.41, 0.67), (-0.2, -0.3, -0.1)],
            "The step from 2 to 4 GPUs makes training slower",
            "The knee is perhaps at 2 GPUs: up to there perhaps every doubling returned at least "
            "half of its cost, the next step returned \u22120.20.",
        ),
        (
            [(0.49, 0.4, 0.6)],
            "The step from 1 to 2 GPUs perhaps returns less than half of its cost: "
            "0.49 [0.40–0.60]",
            "The knee is perhaps at 1 GPU",
        ),
        (  # intervals of single runs, which leave out what differs between runs
            [(0.49, 0.488, 0.492)],
            "The step from 1 to 2 GPUs perhaps returns less than half of its cost: "
            "0.49 [0.49–0.49]",
            "The knee is perhaps at 1 GPU",
        ),
        (
            [(0.51, 0.508, 0.512)],
            "The one step returns 0.51 [0.51–0.51] of its cost",
            "Perhaps every doubling",
        ),
        (
            [(0.9, 0.89, 0.91), (-0.005, -0.007, -0.003)],
            "The step from 2 to 4 GPUs returns less than half of its cost: −0.01 [−0.01 to 0.00]",
            "The knee is at 2 GPUs",
        ),
        (
            [(0.47, None, None)],
            "The step from 1 to 2 GPUs perhaps returns less than half of its cost: 0.47",
            "The knee is perhaps at 1 GPU",
        ),
        (
            [(-0.3, -0.4, -0.2)],
            "The step from 1 to 2 GPUs makes training slower",
            "The knee is at 1 GPU, the smallest size: the step to 2 returned \u22120.30.",
        ),
    ],
)
def test_a_step_is_said_to_fall_short_as_surely_as_its_interval_does(steps, title, knee):
    given = returns(*steps)
    assert over_sizes.returns_title(given) == title
    assert knee in over_sizes.knee_sentence(given)


def test_throughput_that_falls_and_grows_again_is_said_of_one_step():
    given = returns((0.6, 0.5, 0.7), (-0.2, -0.3, -0.1), (0.9, 0.8, 1.0))
    assert over_sizes.returns_title(given) == "The step from 2 to 4 GPUs makes training slower"


def test_a_predicted_step_would_perhaps_return_less():
    given = returns((0.47, 0.2, 0.8), series="predicted")
    assert over_sizes.returns_title(given) == (
        "The step from 1 to 2 GPUs would perhaps return less than half of its cost: "
        "0.47 [0.20–0.80]"
    )


def test_a_full_cost_that_may_be_half_of_it_is_said_with_its_interval():
    assert over_sizes.returns_title(returns((0.97, 0.3, 1.7))) == (
        "The one step returns 0.97 [0.30–1.70] of its cost"
    )


def test_a_step_of_more_than_a_doubling_is_not_called_one():
    given = returns((0.8, 0.7, 0.9))
    given["returns"][0]["to_world_size"] = given["knees"][0]["knee_world_size"] = 4
    assert over_sizes.knee_sentence(given) == (
        "Every step up to 4 GPUs gave at least ×1.50 the throughput for each doubling in it, as "
        "the study asks of it: no knee within the data."
    )


def step_of(from_size, to_size, returned, low=None, high=None):
    sizes = {"from_world_size": from_size, "to_world_size": to_size}
    return sizes | {"step_return": returned, "step_return_low": low, "step_return_high": high}


def test_what_is_predicted_beyond_the_sizes_that_ran_is_a_factor_with_its_interval():
    given = returns((0.81, 0.53, 1.15), series="predicted")
    given.records["best"] = [{"world_size": 2}]
    given.records["advised"] = [{"world_size": 2, "layout_name": "tp 1"}]
    assert answer.predicted_beyond(given) == (
        "Predicted beyond the sizes that ran: tp 1 on 2 GPUs. "
        "2 GPUs would train 1.81 [1.53–2.15] times as fast as 1."
    )


def test_a_loss_within_the_unstated_noise_is_no_slower_training():
    step = step_of(2, 4, -0.03)
    assert last_step([step], "measured") == "The last doubling makes training no faster."
    surely = step | {"step_return": -0.06}
    assert last_step([surely], "measured") == "The last doubling makes training slower."


def test_a_loss_that_runs_differ_by_is_no_slower_training_however_narrow_its_interval():
    step = step_of(1, 2, -0.01, low=-0.012, high=-0.008)
    assert last_step([step], "measured") == "The last doubling makes training no faster."
    title = over_sizes.returns_title(returns((-0.01, -0.012, -0.008)))
    assert title.endswith(
        "returns less than half of its cost: \u22120.01 [\u22120.01 to \u22120.01]"
    )


@pytest.mark.parametrize(
    ("returned", "low", "high", "sentence"),
    [
        (0.06, -0.11, 0.26, "The last doubling makes training perhaps 6\u202f% faster."),
        (0.06, 0.05, 0.07, "The last doubling makes training 6\u202f% faster."),
        (0.04, None, None, "The last doubling makes training perhaps 4\u202f% faster."),
    ],
)
def test_a_gain_that_may_be_noise_is_perhaps_one(returned, low, high, sentence):
    assert last_step([step_of(1, 2, returned, low=low, high=high)], "measured") == sentence


def test_a_step_of_many_doublings_is_named_with_its_sizes_and_its_factor():
    step = step_of(8, 512, 1.2 / 63, low=0.018, high=0.02)
    assert last_step([step], "measured") == "The step from 8 to 512 makes training 2.2× as fast."
    little = step | {"step_return": 0.2 / 63, "step_return_low": 0.003, "step_return_high": 0.004}
    said = last_step([little], "predicted")
    assert said == "The step from 8 to 512 would make training 20\u202f% faster."
    noise = step | {"step_return": 0.01 / 63}
    assert last_step([noise], "measured").endswith("makes training no faster.")


def test_what_a_doubling_gains_cannot_be_read_as_a_loss():
    said = last_step([step_of(2, 4, 0.83, low=0.81, high=0.84)], "measured")
    assert said == "The last doubling makes training 83\u202f% faster."


@pytest.mark.parametrize(
    ("steps", "title", "knee"),
    [
        ([(0.497, 0.49, 0.499)], "less than half of its cost: 0.497 [0.490–0.499]", "0.497"),
        ([(0.498, 0.4, 0.6)], "perhaps returns less than half of its cost: 0.498 [0.400–0.600]",
         "0.498"),
    ],
)  # fmt: skip
def test_what_falls_short_is_written_with_as_many_digits_as_show_it(steps, title, knee):
    given = returns(*steps)
    assert over_sizes.returns_title(given).endswith(title)
    assert over_sizes.knee_sentence(given).endswith(f"returned {knee}.")


@pytest.mark.parametrize(
    ("low", "sentence"),
    [
        (None, "The last doubling makes training 2× as fast."),
        (0.93, "The last doubling makes training 2× as fast."),
        (0.80, "The last doubling makes training perhaps 2× as fast."),
    ],
)
def test_a_doubling_that_may_be_worth_far_less_makes_training_perhaps_twice_as_fast(low, sentence):
    step = step_of(2, 4, 1.01, low=low, high=None if low is None else 1.5)
    assert last_step([step], "measured") == sentence


def test_sizes_are_compared_with_the_error_that_predictions_of_a_size_share():
    common = {"series": "predicted", "margin": 0.01, "predicted_size_sigma": 0.1}
    best = [
        common | {"world_size": size, "tokens_per_s": rate} for size, rate in ((8, 100), (16, 115))
    ]
    given = Tables({"best": best})
    assert "would not change beyond the noise" in over_sizes.throughput_title(given)


def test_a_step_between_sizes_is_missed_by_what_ran_and_not_by_what_did_not():
    def title(*series):
        best = [{"series": one} for one in series]
        return over_sizes.returns_title(Tables({"returns": [], "best": best}))

    assert title() == "No return of a step: nothing ran"
    assert title("measured") == "Only one size ran: no return of a step"
    assert title("predicted") == "Only one size is predicted: no return of a step"


@pytest.mark.parametrize(
    ("serial", "said"),
    [
        ((0.0372, 0.0312, 0.0511), "serial share 0.037 [0.031–0.051]."),
        ((0.0, 0.0, 0.0028), "serial share 0 [0–0.0028]."),
        ((0.11, 0.0, 0.436), "serial share 0.11 [0–0.44]."),
    ],
)
def test_a_parameter_of_a_law_has_no_more_digits_than_its_interval(serial, said):
    parameters = ("serial", "coherency", "communication")
    law = {f"{name}{end}": None for name in parameters for end in ("", "_low", "_high")}
    law |= dict(zip(("serial", "serial_low", "serial_high"), serial, strict=True))
    law |= {"law": "amdahl", "chosen": True, "held_out": 2, "held_out_error": 0.1}
    law |= {"peak_world_size": None}
    assert over_sizes.law_sentence(Tables({"laws": [law]})).endswith(said)
