"""The engine of DeepSpeed: ZeRO over data-parallel ranks, or a pipeline of stages."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import deepspeed
import deepspeed.runtime.zero.muon.muon_optimizer  # DeepSpeed would import it late, in each rank
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.moe.utils import (
    is_moe_param,
    split_params_into_different_moe_groups_for_optimizer,
)
from deepspeed.runtime import bf16_optimizer
from deepspeed.runtime.constants import PIPE_REPLICATED
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from deepspeed.runtime.zero import stage_1_and_2
from deepspeed.utils import nvtx, set_z3_leaf_modules
from torch import Tensor, nn

from scaling.layout.layout import Layout
from scaling.train.data import MicroBatch
from scaling.train.engines.deepspeed.config import (
    bucket_sizes,
    deepspeed_config,
    skips_gradient_reduction,
)
from scaling.train.engines.deepspeed.expert_groups import (
    ExpertsMarker,
    hpz_group,
    model_parallel_unit,
    register_expert_groups,
)
from scaling.train.engines.deepspeed.pipeline import build_pipeline
from scaling.train.engines.trainer import (
    BETAS,
    LAYERS,
    LEARNING_RATE,
    WEIGHT_DECAY,
    Beat,
    Trainer,
    gradient_norm,
    gradient_shares,
    mean_loss,
    whole_model,
)
from scaling.train.kernels.compiled import compile_modules
from scaling.train.measure.window import OPTIMIZER
from scaling.train.model.blueprint import Blueprint, checkpointed
from scaling.train.model.decoder import loss_function
from scaling.train.parallel.groups import Groups

_log = logging.getLogger("DeepSpeed")


def join(port: int) -> None:
    """Make DeepSpeed use the process group that torch has.

    Args:
        port: of the ranks' store; without one DeepSpeed expects to be started by MPI.
    """
    os.environ["MASTER_PORT"] = str(port)
    _log.setLevel(logging.WARNING)
    # Without this DeepSpeed would start a compiler in every rank and take half a minute to build a
    # shared-memory all-reduce for inference on CPUs, which training never calls.
    vars(deepspeed.ops)["__compatible_ops__"] = {"deepspeed_shm_comm": False}
    # Both have the allocator forget its peak so far; BF16_Optimizer also prints what is allocated.
    bf16_optimizer.see_memory_usage = lambda *_, **__: None
    nvtx.enable_nvtx = False  # a fifth of ZeRO-3's work on the host
    stage_1_and_2.empty_cache = get_accelerator().empty_cache
    deepspeed.init_distributed()


def build(plan: Blueprint, groups: Groups, beat: Beat) -> Trainer:
    """Build this layout's trainer: weights drawn, optimizer states allocated."""
    plan = dataclasses.replace(plan, ep=register_expert_groups(groups))
    trainer = PipelineTrainer if plan.layout.pp > 1 else ReplicaTrainer
    return trainer(plan, groups, beat)


class _Trainer:
    """The common part of both kinds of DeepSpeed's engine."""

    def __init__(
        self,
        model: nn.Module,
        plan: Blueprint,
        config: dict[str, Any],
        mpu: SimpleNamespace | None = None,
    ) -> None:
        self.engine = _initialize(model, config, plan.layout, mpu)
        if plan.layout.compile:
            compile_modules(self.engine.module, LAYERS)
        self._norm: Tensor | None = None
        if _keeps_no_norm(self.engine, plan.layout):
            self._take_own_norm(plan)
        # everything after a step's last backward, in a pipeline too
        take_step = torch.profiler.record_function(OPTIMIZER)(self.engine._take_model_step)
        self.engine._take_model_step = take_step
        # in fp16 the norm of a skipped step is infinite, which is no divergence
        self._reads_norm = plan.layout.precision != "fp16"

    def _take_own_norm(self, plan: Blueprint) -> None:
        """Compute the norm of all gradients before each update."""
        layout, take_step = plan.layout, self.engine._take_model_step
        weights = [*self.engine.module.parameters()]
        copies = [
            0
            if getattr(weight, PIPE_REPLICATED, False)  # tied: another stage counts it
            else layout.dp * layout.cp // (layout.ep if is_moe_param(weight) else 1)
            for weight in weights
        ]
        shares = gradient_shares(weights, copies, layout.tp).to(plan.device)

        def update(*words: Any, **options: Any) -> None:
            self._norm = gradient_norm([weight.grad for weight in weights], shares)
            take_step(*words, **options)

        self.engine._take_model_step = update

    def grad_norm(self) -> float | None:
        """The last step's gradient norm."""
        norm = self.engine.get_global_grad_norm() if self._norm is None else self._norm
        return float(norm) if self._reads_norm and norm is not None else None

    @property
    def skipped_steps(self) -> int:
        """Steps for which DeepSpeed has lowered the loss scale instead."""
        return int(self.engine.skipped_steps)


class ReplicaTrainer(_Trainer):
    """The whole model on each tp group, ZeRO 0 to 3 over the data-parallel ranks."""

    def __init__(self, plan: Blueprint, groups: Groups, beat: Beat) -> None:
        mpu = model_parallel_unit(groups)
        config = deepspeed_config(plan.shape, plan.layout, plan.gradient_clipping)
        beat("building the model")
        with _partitioned_while_building(plan, config, groups, mpu):
            model = whole_model(plan)
        beat("building the engine")
        super().__init__(model, plan, config, mpu)
        self._groups = groups
        self._losses: list[Tensor] = []

    def step(self, batches: Sequence[MicroBatch]) -> None:
        """Train on these micro-batches, one optimizer step."""
        self._losses = []
        _set_accumulation(self.engine, len(batches))
        for ids, labels in batches:
            loss = self.engine(ids, labels)
            self.engine.backward(loss)
            self.engine.step()
            self._losses.append(loss.detach())

    def loss(self) -> float:
        """The mean over all micro-batches and replicas."""
        return mean_loss(self._losses, self._groups)


class PipelineTrainer(_Trainer):
    """Stages of consecutive layers; each stage is a tp group, and dp replicates all stages.

    Under 1F1B a rank holds one stage. Under DualPipeV (github.com/deepseek-ai/DualPipe) the model
    has twice as many stages and a rank holds two: the first and the last, and so on inwards.
    """

    def __init__(self, plan: Blueprint, groups: Groups, beat: Beat) -> None:
        layout = plan.layout
        beat("building the model")
        model = build_pipeline(
            plan,
            topology=PipeModelDataParallelTopology(
                num_pp=layout.pp, num_mp=layout.tp, num_dp=layout.dp * layout.cp
            ),
            loss_fn=loss_function(plan),
            partition_method="by_cost",
            activation_checkpoint_interval=int(layout.activation_checkpointing == "full"),
            activation_checkpoint_func=checkpointed,
            checkpointable_layers=["Layer"],
        )
        config = deepspeed_config(plan.shape, layout, plan.gradient_clipping)
        beat("building the engine")
        super().__init__(model, plan, config)
        self._loss: Tensor | None = None

    def step(self, batches: Sequence[MicroBatch]) -> None:
        """Train on these micro-batches, one optimizer step."""
        _set_accumulation(self.engine, len(batches))
        self._loss = self.engine.train_batch(data_iter=iter(batches))

    def loss(self) -> float:
        """The mean over all micro-batches and replicas, which DeepSpeed sends to every stage."""
        assert self._loss is not None
        return self._loss.item()


@contextlib.contextmanager
def _partitioned_while_building(
    plan: Blueprint, config: dict[str, Any], groups: Groups, mpu: SimpleNamespace
) -> Iterator[None]:
    """Let ZeRO-3 shard each layer when it is built: the whole model may not fit one device."""
    if plan.layout.zero_stage < 3:
        yield
        return
    # DeepSpeed keeps a group that exists. Its own would be of consecutive ranks, tp ranks among
    # them, which hold other weights.
    secondary = hpz_group(groups)
    deepspeed.utils.groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = secondary
    # no dtype: it comes from the config, while dtype=torch.float32 would silently build bf16
    with deepspeed.zero.Init(
        data_parallel_group=groups.data_group,
        zero_param_parallel_group=secondary,
        config_dict_or_path=config,
        mpu=mpu,
    ):
        yield


def _initialize(
    model: nn.Module, config: dict[str, Any], layout: Layout, mpu: SimpleNamespace | None
) -> Any:
    """DeepSpeed's engine around the model, with torch's AdamW."""
    if layout.ep > 1 and layout.zero_stage < 3:  # ZeRO-3 only needs the marks on weights
        model.add_module("has_experts", ExpertsMarker())
    if layout.zero_stage == 3:  # one gather and one set of hooks for each layer, not each block
        set_z3_leaf_modules(model, list(LAYERS))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    # ZeRO-3 has sharded the weights by now and remembers their sizes as ds_numel
    parameters = sum(getattr(weight, "ds_numel", weight.numel()) for weight in weights)
    config["zero_optimization"] |= bucket_sizes(parameters)
    # Expert weights get parameter groups of their own. Given a size, DeepSpeed would split them
    # into several groups, and fails at a weight larger than one.
    parameter_groups = split_params_into_different_moe_groups_for_optimizer(
        {"params": weights, "name": "dense"}, max_group_size=None
    )
    # torch's fused AdamW: DeepSpeed's own is compiled at first use, which takes a minute
    optimizer = torch.optim.AdamW(
        parameter_groups, lr=0.0, betas=BETAS, weight_decay=0.0, fused=True
    )
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=weights, optimizer=optimizer, config=config, mpu=mpu
    )
    if layout.zero_stage == 0 and layout.dp * layout.cp == 1:
        # with a single replica DeepSpeed would copy all gradients into one buffer and back
        engine.enable_backward_allreduce = engine.pipeline_enable_backward_allreduce = False
    if skips_gradient_reduction(layout):  # ZeRO's optimizer would copy them too
        engine.optimizer.buffered_reduce_fallback = lambda *_, **__: None
    _start_at_step_zero(engine, optimizer)
    return engine


def _start_at_step_zero(engine: Any, optimizer: torch.optim.Optimizer) -> None:
    """Set rate and decay, and undo the step that FP16_UnfusedOptimizer takes at its creation.

    That optimizer (ZeRO-0 in bf16) steps on zero gradients to allocate its states. Rate and decay
    are 0 until here, so weights and moments are untouched. But Adam's step count would correct its
    bias for one step too many.
    """
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = LEARNING_RATE, WEIGHT_DECAY
    if isinstance(engine.optimizer, FP16_UnfusedOptimizer):
        for state in optimizer.state.values():
            state["step"].zero_()


def _set_accumulation(engine: Any, micro_batches: int) -> None:
    """Give the next step this many micro-batches."""
    if engine.gradient_accumulation_steps() != micro_batches:
        engine.micro_steps = 0  # DeepSpeed counts it to see where a step ends
        sequences = engine.train_micro_batch_size_per_gpu() * engine.dp_world_size
        engine.set_train_batch_size(micro_batches * sequences)


def _keeps_no_norm(engine: Any, layout: Layout) -> bool:
    """Whether DeepSpeed keeps no norm of all gradients: without ZeRO only.

    In fp32 it keeps none. FP16_UnfusedOptimizer (bf16) looks for the mark of a tp-sharded weight on
    its gradient and finds none, so it counts the first tp rank's part only. It also leaves out
    experts that are distributed over ranks.
    """
    if layout.zero_stage == 0 and layout.precision == "fp32":
        return True
    return layout.tp * layout.ep > 1 and isinstance(engine.optimizer, FP16_UnfusedOptimizer)
