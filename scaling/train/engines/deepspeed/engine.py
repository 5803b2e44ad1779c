"""DeepSpeed under one step: ZeRO over data-parallel ranks, or a pipeline."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import deepspeed
import deepspeed.runtime.zero.muon.muon_optimizer  # which DeepSpeed imports late, in each rank
import torch
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import Tensor, nn

from scaling.layout.layout import Layout
from scaling.train.data import MicroBatch
from scaling.train.engines.deepspeed.config import (
    bucket_sizes,
    deepspeed_config,
    skips_gradient_reduction,
)
from scaling.train.engines.deepspeed.groups import (
    ExpertsMarker,
    hpz_group,
    model_parallel_unit,
    register_expert_groups,
)
from scaling.train.engines.deepspeed.pipeline import LAYERS, build_pipeline
from scaling.train.engines.trainer import (
    BETAS,
    LEARNING_RATE,
    WEIGHT_DECAY,
    Beat,
    Trainer,
    mean_loss,
)
from scaling.train.kernels.compiled import compile_modules
from scaling.train.measure.window import OPTIMIZER
from scaling.train.model import encoder_decoder
from scaling.train.model.blocks import FeedForward, Norm, SelfAttention
from scaling.train.model.blueprint import Blueprint, checkpointed
from scaling.train.model.decoder import Decoder, Layer, loss_function
from scaling.train.parallel.groups import Groups

_log = logging.getLogger("DeepSpeed")


def join(port: int) -> None:
    """Make DeepSpeed take the process group that torch has.

    Args:
        port: where the ranks have met; DeepSpeed takes its absence for a wish for MPI.
    """
    os.environ["MASTER_PORT"] = str(port)
    _log.setLevel(logging.WARNING)
    # What DeepSpeed asks before it builds a shared-memory all-reduce for inference on CPUs, which
    # training never calls: building takes half a minute, and finding out what could be built
    # starts a compiler in every rank.
    vars(deepspeed.ops)["__compatible_ops__"] = {"deepspeed_shm_comm": False}
    deepspeed.init_distributed()


def build(plan: Blueprint, groups: Groups, beat: Beat) -> Trainer:
    """The trainer of this layout, weights drawn, optimizer states allocated."""
    plan = dataclasses.replace(plan, ep=register_expert_groups(groups))
    trainer = PipelineTrainer if plan.layout.pp > 1 else ReplicaTrainer
    return trainer(plan, groups, beat)


class _Trainer:
    """What DeepSpeed's engine of either kind is asked."""

    def __init__(
        self,
        model: nn.Module,
        plan: Blueprint,
        config: dict[str, Any],
        mpu: SimpleNamespace | None = None,
    ) -> None:
        self.engine = _initialize(model, config, plan.layout, mpu)
        if plan.layout.compile:
            # under ZeRO-3 the blocks that layers are made of, between which it gathers weights
            layers = (Layer, encoder_decoder.EncoderLayer, encoder_decoder.DecoderLayer)
            blocks = (Norm, SelfAttention, encoder_decoder.Attention, FeedForward)
            compile_modules(self.engine.module, blocks if plan.layout.zero_stage == 3 else layers)
        self._norm_is_right = _norm_is_right(self.engine, plan)

    def grad_norm(self) -> float | None:
        """The last step's gradient norm."""
        norm = self.engine.get_global_grad_norm() if self._norm_is_right else None
        return None if norm is None else float(norm)


class ReplicaTrainer(_Trainer):
    """The whole model on each tp group; ZeRO 0 to 3 over the ranks that hold other tokens."""

    def __init__(self, plan: Blueprint, groups: Groups, beat: Beat) -> None:
        config = deepspeed_config(plan.shape, plan.layout, plan.gradient_clipping)
        beat("building the model")
        with _partitioned_while_built(plan, config, groups):
            model = (
                encoder_decoder.EncoderDecoder(plan) if plan.shape.family == "t5" else Decoder(plan)
            )
        beat("building the engine")
        super().__init__(model, plan, config, model_parallel_unit(groups))
        self._groups = groups
        self._losses: list[Tensor] = []

    def step(self, batches: Sequence[MicroBatch]) -> None:
        """Train on these micro-batches, one optimizer step."""
        self._losses = []
        _accumulate(self.engine, len(batches))
        for ids, labels in batches:
            loss = self.engine(ids, labels)
            self.engine.backward(loss)
            self.engine.step()
            self._losses.append(loss.detach())

    def loss(self) -> float:
        """See `mean_loss`."""
        return mean_loss(self._losses, self._groups)


class PipelineTrainer(_Trainer):
    """Stages of consecutive layers; each stage is a tp group, and dp replicates the whole.

    Under 1F1B a rank holds one stage. Under DualPipeV (github.com/deepseek-ai/DualPipe) the model
    has twice as many, and a rank holds one of each half: the first and the last, and so on inwards.
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
            partition_method="dealt",
            activation_checkpoint_interval=int(layout.activation_checkpointing == "full"),
            activation_checkpoint_func=checkpointed,
            checkpointable_layers=list(LAYERS),
        )
        config = deepspeed_config(plan.shape, layout, plan.gradient_clipping)
        beat("building the engine")
        super().__init__(model, plan, config)
        self._loss: Tensor | None = None

    def step(self, batches: Sequence[MicroBatch]) -> None:
        """Train on these micro-batches, one optimizer step."""
        _accumulate(self.engine, len(batches))
        self._loss = self.engine.train_batch(data_iter=iter(batches))

    def loss(self) -> float:
        """DeepSpeed averages it over the replicas and sends it to every stage."""
        assert self._loss is not None
        return self._loss.item()


@contextlib.contextmanager
def _partitioned_while_built(
    plan: Blueprint, config: dict[str, Any], groups: Groups
) -> Iterator[None]:
    """ZeRO-3 shards each layer as it is built: the whole model may not fit one device."""
    if plan.layout.zero_stage < 3:
        yield
        return
    # DeepSpeed would take consecutive ranks, of which tp ranks hold other weights; it keeps a group
    # that is there
    second_copy = hpz_group(groups)
    deepspeed.utils.groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = second_copy
    # no dtype: it comes from the config, while dtype=torch.float32 would silently build bf16
    with deepspeed.zero.Init(
        data_parallel_group=groups.data_group,
        zero_param_parallel_group=second_copy,
        config_dict_or_path=config,
        mpu=model_parallel_unit(groups),
    ):
        yield


def _initialize(
    model: nn.Module, config: dict[str, Any], layout: Layout, mpu: SimpleNamespace | None
) -> Any:
    if layout.ep > 1 and layout.zero_stage < 3:  # ZeRO-3 goes by marks alone
        model.add_module("has_experts", ExpertsMarker())
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    # ZeRO-3 has cut them by now and remembers how large they were
    held = sum(getattr(weight, "ds_numel", weight.numel()) for weight in parameters)
    config["zero_optimization"] |= bucket_sizes(held)
    # torch's fused AdamW: DeepSpeed's own is compiled at the first use, which takes a minute
    # those of experts that are dealt to ranks in a group of their own; DeepSpeed would cut it into
    # several, and fails at a weight that is larger than one
    by_kind = split_params_into_different_moe_groups_for_optimizer(
        {"params": parameters, "name": "dense"}, max_group_size=None
    )
    optimizer = torch.optim.AdamW(by_kind, lr=0.0, betas=BETAS, weight_decay=0.0, fused=True)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=parameters, optimizer=optimizer, config=config, mpu=mpu
    )
    if layout.zero_stage == 0 and layout.dp * layout.cp == 1:
        # a single replica: DeepSpeed would join all gradients in a copy and take them out again
        engine.enable_backward_allreduce = engine.pipeline_enable_backward_allreduce = False
    if skips_gradient_reduction(
        layout
    ):  # ZeRO's optimizer would as well, to reduce them over one rank
        engine.optimizer.buffered_reduce_fallback = lambda *_, **__: None
    _begin_at_step_zero(engine, optimizer)
    # all that follows a step's last backward, in a pipeline too
    engine._take_model_step = torch.profiler.record_function(OPTIMIZER)(engine._take_model_step)
    return engine


def _begin_at_step_zero(engine: Any, optimizer: torch.optim.Optimizer) -> None:
    """Undo the step that FP16_UnfusedOptimizer (ZeRO-0 in bf16, fp16) takes to allocate its states.

    It steps on zero gradients. Rate and decay are 0 until here, so weights and moments are
    untouched; what remains is Adam's count of steps, which would correct its bias for one too many.
    """
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = LEARNING_RATE, WEIGHT_DECAY
    if isinstance(engine.optimizer, FP16_UnfusedOptimizer):
        for state in optimizer.state.values():
            state["step"].zero_()


def _accumulate(engine: Any, micro_batches: int) -> None:
    """Let the next step have so many micro-batches."""
    if engine.gradient_accumulation_steps() != micro_batches:
        engine.micro_steps = 0  # by which DeepSpeed sees where a step ends
        of_one = engine.train_micro_batch_size_per_gpu() * engine.dp_world_size
        engine.set_train_batch_size(micro_batches * of_one)


def _norm_is_right(engine: Any, plan: Blueprint) -> bool:
    """Whether the norm that DeepSpeed keeps is the norm of all gradients.

    FP16_UnfusedOptimizer (ZeRO-0 in bf16) looks for the mark of a sharded weight on its gradient,
    finds none, and counts only the first tp rank's part; experts that are dealt to ranks it leaves
    out. In fp16 norms are scaled with the loss.
    """
    if plan.layout.precision == "fp16":
        return False
    alike = plan.layout.tp == plan.layout.ep == 1
    return alike or not isinstance(engine.optimizer, FP16_UnfusedOptimizer)
