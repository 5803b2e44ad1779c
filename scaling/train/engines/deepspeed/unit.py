"""A rank's groups in the words in which DeepSpeed asks for them."""

import torch.distributed as dist

from scaling.train.parallel.groups import Groups


class ModelParallelUnit:
    """The `mpu` of DeepSpeed. Its model parallelism is tp: it gets one only where pp is 1."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def get_model_parallel_rank(self) -> int:
        """Place among the ranks that share every layer."""
        return self._groups.place.tp_rank

    def get_model_parallel_world_size(self) -> int:
        """Ranks that share every layer."""
        return self._groups.layout.tp

    def get_model_parallel_group(self) -> dist.ProcessGroup | None:
        """The ranks that share every layer."""
        return self._groups.tp_group

    def get_data_parallel_rank(self) -> int:
        """Place among the ranks that hold the same weights."""
        return self._groups.place.dp_rank * self._groups.layout.cp + self._groups.place.cp_rank

    def get_data_parallel_world_size(self) -> int:
        """Ranks that hold the same weights."""
        return self._groups.layout.dp * self._groups.layout.cp

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold the same weights."""
        return self._groups.data_group

    get_tensor_model_parallel_rank = get_model_parallel_rank
    get_tensor_model_parallel_world_size = get_model_parallel_world_size
    get_tensor_model_parallel_group = get_model_parallel_group
