"""A rank's groups in the words in which DeepSpeed asks for them."""

from types import SimpleNamespace

from scaling.train.parallel.groups import Groups


def model_parallel_unit(groups: Groups) -> SimpleNamespace:
    """The `mpu` of DeepSpeed. Its model parallelism is tp: it gets one only where pp is 1."""
    place, layout = groups.place, groups.layout
    alike = {  # ranks that share every layer
        "rank": place.tp_rank,
        "world_size": layout.tp,
        "group": groups.tp_group,
    }
    answers = {
        **{f"model_parallel_{name}": answer for name, answer in alike.items()},
        **{f"tensor_model_parallel_{name}": answer for name, answer in alike.items()},
        # ranks that hold the same weights
        "data_parallel_rank": groups.data_rank(place),
        "data_parallel_world_size": layout.dp * layout.cp,
        "data_parallel_group": groups.data_group,
    }
    return SimpleNamespace(**{f"get_{name}": lambda a=a: a for name, a in answers.items()})
