"""What is trained: the shape of a model, its parameters and the FLOPs of one token."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from scaling.layout.axes import ActivationCheckpointing
from scaling.layout.optional_parts import PART_DEFAULTS as ABSENT
from scaling.layout.optional_parts import OptionalParts

Family = Literal["llama", "gpt", "t5"]

T5_BUCKETS = 32  # of distances between two tokens, as in every released T5


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape(OptionalParts):
    """The numbers that fix every weight of a transformer.

    `family` fixes the rest: llama is RMSNorm and rotary positions without biases, gpt is LayerNorm
    and learned positions (`max_positions` of them) with biases, t5 is an encoder-decoder with
    RMSNorm and one relative position bias per stack, without biases. `num_layers` counts decoder
    layers; a t5 has `num_encoder_layers` beside them. `ffn_hidden_size` is that of a dense layer.
    """

    family: Family = "llama"
    num_layers: int
    num_encoder_layers: int = 0
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_hidden_size: int
    gated_mlp: bool = True
    vocab_size: int
    tied_embeddings: bool = False
    max_positions: int = 0

    def stored_fields(self) -> dict[str, Any]:
        """The fields by name, those of `OptionalParts` only where the model has the part."""
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if name not in ABSENT or value != ABSENT[name]
        }

    @property
    def attention_params(self) -> int:
        """Matmul weights of one attention block.

        Query and output, key and value (fewer heads). Latent: query down and up; key and value down
        together with the key that is rotated, and up; output.
        """
        h, heads = self.hidden_size, self.num_heads
        if not self.key_value_rank:
            return 2 * h * self.head_dim * (heads + self.num_kv_heads)
        query_width = heads * (self.head_dim + self.rotary_head_dim)
        query = self.query_rank * (h + query_width) if self.query_rank else h * query_width
        down = h * (self.key_value_rank + self.rotary_head_dim)
        up = self.key_value_rank * heads * (self.head_dim + self.value_head_dim)
        return query + down + up + heads * self.value_head_dim * h

    @property
    def attention_width(self) -> int:
        """Mean width of all heads of what scores multiply and of what is summed: query and value.

        The two s-by-s matmuls of a layer cost 4 * attention_width FLOPs a token and key.
        """
        if not self.key_value_rank:
            return self.num_heads * self.head_dim
        both = self.head_dim + self.rotary_head_dim + self.value_head_dim
        return self.num_heads * both // 2

    @property
    def mlp_params(self) -> int:
        """Weights of one dense feed-forward block: up and down, and the gate if there is one."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.ffn_hidden_size

    @property
    def expert_params(self) -> int:
        """Matmul weights of one expert."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.expert_ffn_hidden_size

    @property
    def expert_layers(self) -> int:
        """Layers whose feed-forward is a mixture of experts; the first ones are dense."""
        return self.num_layers - self.dense_layers if self.num_experts else 0

    @property
    def decoder_layer_params(self) -> int:
        """Matmul weights of one dense decoder layer; a t5's attends twice (self and cross)."""
        attentions = 2 if self.family == "t5" else 1
        return attentions * self.attention_params + self.mlp_params

    @property
    def expert_layer_params(self) -> int:
        """Matmul weights that one token is multiplied with in a layer of experts."""
        chosen = (self.experts_per_token + self.shared_experts) * self.expert_params
        return self.attention_params + chosen + self.hidden_size * self.num_experts

    @property
    def encoder_layer_params(self) -> int:
        """Matmul weights of one encoder layer."""
        return self.attention_params + self.mlp_params

    @property
    def embedding_params(self) -> int:
        """Weights of one vocabulary matrix; there are two unless `tied_embeddings`."""
        return self.vocab_size * self.hidden_size

    @property
    def bias_params(self) -> int:
        """Biases of every linear layer that one token meets.

        The gpt family has them everywhere, `linear_biases` in attention, router and experts; an
        attention sink is a number a head.
        """
        heads = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim + self.hidden_size
        sinks = self.num_layers * self.num_heads if self.attention_sinks else 0
        if self.family == "gpt":
            mlp = (2 if self.gated_mlp else 1) * self.ffn_hidden_size + self.hidden_size
            return self.num_layers * (heads + mlp) + sinks
        if not self.linear_biases:
            return sinks
        chosen = self.experts_per_token + self.shared_experts
        routed = self.expert_layers * (self.num_experts + chosen * self._expert_bias_params)
        return self.num_layers * heads + routed + sinks

    @property
    def _expert_bias_params(self) -> int:
        if not self.linear_biases:
            return 0
        return (2 if self.gated_mlp else 1) * self.expert_ffn_hidden_size + self.hidden_size

    @property
    def position_params(self) -> int:
        """Learned position vectors (gpt); t5's bias per head and bucket in each stack."""
        if self.family == "t5":
            return 2 * T5_BUCKETS * self.num_heads
        return self.max_positions * self.hidden_size

    @property
    def norm_params(self) -> int:
        """Norm scales (and shifts, gpt): two a layer, three in a t5 decoder, one after a stack.

        Queries and keys are normalised by one scale of a head each, latents by one of their rank.
        """
        per_norm = (2 if self.family == "gpt" else 1) * self.hidden_size
        if self.family == "t5":
            norms = 3 * self.num_layers + 2 * self.num_encoder_layers + 2
        else:
            norms = 2 * self.num_layers + 1
        inside = 2 * self.head_dim if self.query_key_norm else 0
        return norms * per_norm + self.num_layers * (inside + self.query_rank + self.key_value_rank)

    @property
    def matmul_params(self) -> int:
        """Weights a token is multiplied with: layers and the output head, not the look-up."""
        return (
            (self.num_layers - self.expert_layers) * self.decoder_layer_params
            + self.expert_layers * self.expert_layer_params
            + self.num_encoder_layers * self.encoder_layer_params
            + self.embedding_params
        )

    @property
    def flop_params(self) -> int:
        """N of the 6N rule: every weight but the norms, tied embeddings once (design, study B).

        Of experts those that one token takes.
        """
        look_up = 0 if self.tied_embeddings else self.embedding_params
        return self.matmul_params + look_up + self.bias_params + self.position_params

    @property
    def active_params(self) -> int:
        """Every trained number that one token meets, the norms too."""
        return self.flop_params + self.norm_params

    @property
    def total_params(self) -> int:
        """Every trained number, those of all experts too."""
        others = self.num_experts - self.experts_per_token
        unseen = self.expert_layers * others * (self.expert_params + self._expert_bias_params)
        return self.active_params + unseen

    def attended_keys(self, seq_length: int) -> int:
        """Keys per query summed over decoder layers, twice the mean of a causal kernel.

        A layer's mean is s / 2, so that twice it is the full square's s. A window of w < s leaves
        s * w - w^2 / 2 pairs of a sequence: w - w^2 / (2 s) a query.
        """
        seen = min(self.window, seq_length)
        windowed = seen * (2 * seq_length - seen) // seq_length if seen else 0
        return (self.num_layers - self.windowed_layers) * seq_length + (
            self.windowed_layers * windowed
        )

    def tokens_per_sequence(self, seq_length: int) -> int:
        """Tokens one sequence trains on; a t5 sequence has an input and a target of that length."""
        return 2 * seq_length if self.family == "t5" else seq_length


def model_flops_per_token(shape: ModelShape, seq_length: int) -> int:
    """FLOPs one token costs in forward and backward, recomputation excluded.

    6 per weight: 2 (multiply, add) x 3 (forward, gradient of input, gradient of weight), with N
    every weight but the norms. 12 * L * h * s for attention: two s-by-s matmuls (scores, values) of
    2 * h * s FLOPs a token each, x 3; the causal half is counted in full. This is the convention of
    PaLM (arXiv 2204.02311, appendix B), which reproduces the published MFU of arXiv 2311.05610.
    Of experts N counts those that a token takes; a layer with a window counts what it skips as
    little as the causal half: twice the pairs that are left; latent attention's h is the mean of
    its query's and its value's width.

    Encoder-decoder: per sequence 6 (N_enc S_enc + (N_dec + V d) S_dec) + 12 L d (S_enc^2 + S_dec^2
    + S_enc S_dec), the cross-attention's key and value weights counted with S_enc; both lengths are
    `seq_length` here. The look-up costs nothing, since two thirds of mT5-base are embeddings.
    """
    if shape.family == "t5":
        encoder = shape.num_encoder_layers * shape.encoder_layer_params
        decoder = shape.num_layers * shape.decoder_layer_params + shape.embedding_params
        attentions = shape.num_encoder_layers + 2 * shape.num_layers
        keys = 2 * attentions * shape.attention_width * seq_length
        return 6 * (encoder + decoder + keys) // 2  # of one of the two tokens of a pair
    return 6 * shape.flop_params + 12 * shape.attention_width * shape.attended_keys(seq_length)


def matmul_flops_per_token(shape: ModelShape, seq_length: int) -> int:
    """The strict count: no embedding look-up, no biases, causal attention at half its square.

    An encoder and a cross-attention are not causal and count in full.
    """
    width = shape.attention_width
    weights = 6 * shape.matmul_params
    if shape.family == "t5":
        attentions = 2 * shape.num_encoder_layers + 3 * shape.num_layers  # halves of a square
        return weights // 2 + 6 * attentions * width * seq_length // 2
    return weights + 6 * width * shape.attended_keys(seq_length)


def hardware_flops_per_token(
    shape: ModelShape, seq_length: int, activation_checkpointing: ActivationCheckpointing
) -> int:
    """`model_flops_per_token` plus what checkpointing computes a second time.

    full: the forward of every layer again, 2 per layer weight and 4 * L * h * s for attention (the
    head and the look-up are not recomputed). selective: only the attention core, 4 * L * h * s
    (arXiv 2205.05198, section 5).
    """
    model = model_flops_per_token(shape, seq_length)
    if activation_checkpointing == "none":
        return model
    width = shape.attention_width
    dense = shape.num_layers - shape.expert_layers
    layers = dense * shape.decoder_layer_params + shape.expert_layers * shape.expert_layer_params
    keys = shape.attended_keys(seq_length)
    streams = 1
    if shape.family == "t5":  # every layer sees one of the two tokens a pair has
        layers += shape.num_encoder_layers * shape.encoder_layer_params
        keys = (shape.num_encoder_layers + 2 * shape.num_layers) * seq_length
        streams = 2
    core = 4 * width * keys
    again = core if activation_checkpointing == "selective" else 2 * layers + core
    return model + again // streams
