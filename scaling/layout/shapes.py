"""The shape of a model, its number of parameters, and the FLOPs of one token."""

from dataclasses import dataclass
from typing import Literal

from scaling.layout.axes import ActivationCheckpointing
from scaling.layout.optional_parts import OptionalParts

Family = Literal["llama", "gpt", "t5"]

T5_BUCKETS = 32  # for distances between two tokens, as in every released T5


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape(OptionalParts):
    """The numbers that determine every weight of a transformer.

    Families: llama has RMSNorm and rotary positions and no biases; gpt has LayerNorm, biases and
    `max_positions` learned positions; t5 is an encoder-decoder with RMSNorm, one relative position
    bias per stack and no other biases. `num_layers` counts decoder layers; a t5 also has
    `num_encoder_layers`. `ffn_hidden_size` is the width of a dense feed-forward.
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

    @property
    def attention_params(self) -> int:
        """Matmul weights of one attention block: query, key, value and output projections.

        With latent attention: query down and up; key and value down, together with the rotated key,
        and up; output.
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
        """Width of query and of value over all heads; their mean where they differ (latent).

        The two s-by-s matmuls of a layer cost 4 * attention_width FLOPs per token and key.
        """
        if not self.key_value_rank:
            return self.num_heads * self.head_dim
        query_and_value = self.head_dim + self.rotary_head_dim + self.value_head_dim
        return self.num_heads * query_and_value // 2

    @property
    def mlp_params(self) -> int:
        """Weights of one dense feed-forward: up, down and, if it has one, the gate."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.ffn_hidden_size

    @property
    def expert_params(self) -> int:
        """Matmul weights of one expert."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.expert_ffn_hidden_size

    @property
    def expert_layers(self) -> int:
        """Layers whose feed-forward is a mixture of experts; they follow the dense ones."""
        return self.num_layers - self.dense_layers if self.num_experts else 0

    @property
    def decoder_layer_params(self) -> int:
        """Matmul weights of one dense decoder layer; in a t5 it has self- and cross-attention."""
        attentions = 2 if self.family == "t5" else 1
        return attentions * self.attention_params + self.mlp_params

    @property
    def expert_layer_params(self) -> int:
        """Matmul weights that one token meets in a layer of experts, router included."""
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
        """Biases that one token meets, and attention sinks (one number per head).

        A gpt has biases in all linear layers, `linear_biases` in attention, router and experts.
        """
        heads = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        single = self.num_layers * self.num_heads if self.attention_sinks else 0
        if self.family == "gpt":
            mlp = (2 if self.gated_mlp else 1) * self.ffn_hidden_size + self.hidden_size
            return self.num_layers * (heads + self.hidden_size + mlp) + single
        if self.router_bias:
            single += self.expert_layers * self.num_experts
        if not self.linear_biases:
            return single + (self.num_layers * heads if self.query_key_value_biases else 0)
        chosen = self.experts_per_token + self.shared_experts
        routed = self.expert_layers * (self.num_experts + chosen * self._expert_bias_params)
        return self.num_layers * (heads + self.hidden_size) + routed + single

    @property
    def _expert_bias_params(self) -> int:
        if not self.linear_biases:
            return 0
        return (2 if self.gated_mlp else 1) * self.expert_ffn_hidden_size + self.hidden_size

    @property
    def position_params(self) -> int:
        """Learned position vectors of a gpt; of a t5 the bias per head and bucket in each stack."""
        if self.family == "t5":
            return 2 * T5_BUCKETS * self.num_heads
        return self.max_positions * self.hidden_size

    @property
    def norm_params(self) -> int:
        """Scales of norms, and their shifts (gpt only).

        Two norms per layer, three in a t5 decoder layer, one after each stack. Normalised queries
        and keys add two vectors of `head_dim` per layer, or of their whole width, latents one of
        their rank each.
        """
        per_norm = (2 if self.family == "gpt" else 1) * self.hidden_size
        if self.family == "t5":
            norms = 3 * self.num_layers + 2 * self.num_encoder_layers + 2
        else:
            norms = 2 * self.num_layers + 1
        inside = 2 * self.head_dim if self.query_key_norm else 0
        if self.whole_query_key_norm:
            inside = (self.num_heads + self.num_kv_heads) * self.head_dim
        return norms * per_norm + self.num_layers * (inside + self.query_rank + self.key_value_rank)

    @property
    def matmul_params(self) -> int:
        """Weights that a token is multiplied with: layers and output head, not the look-up."""
        return (
            (self.num_layers - self.expert_layers) * self.decoder_layer_params
            + self.expert_layers * self.expert_layer_params
            + self.num_encoder_layers * self.encoder_layer_params
            + self.embedding_params
        )

    @property
    def flop_params(self) -> int:
        """N of the 6N rule: all weights but the norms, tied embeddings once (design, study B).

        It counts the experts that one token uses.
        """
        look_up = 0 if self.tied_embeddings else self.embedding_params
        return self.matmul_params + look_up + self.bias_params + self.position_params

    @property
    def active_params(self) -> int:
        """All parameters that one token uses, norms included."""
        return self.flop_params + self.norm_params

    @property
    def total_params(self) -> int:
        """All parameters, those of every expert included."""
        inactive = self.expert_layers * (self.num_experts - self.experts_per_token)
        return self.active_params + inactive * (self.expert_params + self._expert_bias_params)

    def attended_keys(self, seq_length: int) -> int:
        """Twice the mean number of keys per query, summed over decoder layers.

        Under a causal mask the mean is s / 2, so a layer counts s, as without a mask. A window of
        w < s leaves s * w - w^2 / 2 pairs in a sequence: a mean of w - w^2 / (2 s).
        """
        window = min(self.window, seq_length)
        windowed = window * (2 * seq_length - window) // seq_length if window else 0
        return (self.num_layers - self.windowed_layers) * seq_length + (
            self.windowed_layers * windowed
        )

    def tokens_per_sequence(self, seq_length: int) -> int:
        """Tokens of one sequence; in a t5 an input and a target of that length each."""
        return 2 * seq_length if self.family == "t5" else seq_length


def model_flops_per_token(shape: ModelShape, seq_length: int) -> int:
    """FLOPs per token of forward and backward, without recomputation.

    6 N + 12 L h s. Weights: 2 (multiply, add) x 3 (forward, gradient of input, gradient of weight)
    for each of N = `flop_params`. Attention: two s-by-s matmuls (scores, values) of 2 h s FLOPs per
    token, x 3, counted as if there were no causal mask. This is the convention of PaLM (arXiv
    2204.02311, appendix B), which reproduces the published MFU of arXiv 2311.05610. With a window,
    `attended_keys` replaces L s; with latent attention h is `attention_width`.

    Encoder-decoder, per sequence: 6 (N_enc S_enc + (N_dec + V d) S_dec) + 12 L d (S_enc^2 + S_dec^2
    + S_enc S_dec), where key and value weights of the cross-attention count with S_enc; here both
    lengths are `seq_length`. The look-up is left out: two thirds of mT5-base are embeddings.
    """
    if shape.family == "t5":
        encoder = shape.num_encoder_layers * shape.encoder_layer_params
        decoder = shape.num_layers * shape.decoder_layer_params + shape.embedding_params
        attentions = shape.num_encoder_layers + 2 * shape.num_layers
        keys = 2 * attentions * shape.attention_width * seq_length
        return 6 * (encoder + decoder + keys) // 2  # a pair is an input and a target token
    return 6 * shape.flop_params + 12 * shape.attention_width * shape.attended_keys(seq_length)


def matmul_flops_per_token(shape: ModelShape, seq_length: int) -> int:
    """FLOPs per token of matmuls only: no look-up, no biases, and half of causal attention.

    Encoder and cross-attention are not causal and count in full.
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
    """`model_flops_per_token` plus what activation checkpointing recomputes.

    full: the forward of all layers, 2 per weight and 4 L h s for attention, without head and
    look-up. selective: the attention core only, 4 L h s (arXiv 2205.05198, section 5).
    """
    model = model_flops_per_token(shape, seq_length)
    if activation_checkpointing == "none":
        return model
    keys, tokens_per_pair = shape.attended_keys(seq_length), 1
    if shape.family == "t5":  # each layer sees either the input or the target token of a pair
        keys = (shape.num_encoder_layers + 2 * shape.num_layers) * seq_length
        tokens_per_pair = 2
    recomputed = 4 * shape.attention_width * keys
    if activation_checkpointing == "full":
        recomputed += 2 * (shape.matmul_params - shape.embedding_params)
    return model + recomputed // tokens_per_pair


def counts_per_token(
    shape: ModelShape, seq_length: int, activation_checkpointing: ActivationCheckpointing | None
) -> dict[str, int]:
    """The columns of a row that follow from its shape; recomputation only if it is stated."""
    counts = {
        "total_params": shape.total_params,
        "active_params": shape.active_params,
        "model_flops_per_token": model_flops_per_token(shape, seq_length),
        "matmul_flops_per_token": matmul_flops_per_token(shape, seq_length),
    }
    if activation_checkpointing is not None:
        counts["hardware_flops_per_token"] = hardware_flops_per_token(
            shape, seq_length, activation_checkpointing
        )
    return counts
