"""What is trained: the shape of a model, its parameters and the FLOPs of one token."""

from dataclasses import dataclass
from typing import Literal

from scaling.layout.axes import ActivationCheckpointing

Family = Literal["llama", "gpt", "t5"]

T5_BUCKETS = 32  # of distances between two tokens, as in every released T5


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The numbers that fix every weight of a transformer.

    `family` fixes the rest: llama is RMSNorm and rotary positions without biases, gpt is LayerNorm
    and learned positions (`max_positions` of them) with biases, t5 is an encoder-decoder with
    RMSNorm and one relative position bias per stack, without biases. `num_layers` counts decoder
    layers; a t5 has `num_encoder_layers` beside them.
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
        """Weights of one attention block: query and output, key and value (fewer heads)."""
        query_and_output = 2 * self.hidden_size * self.num_heads * self.head_dim
        key_and_value = 2 * self.hidden_size * self.num_kv_heads * self.head_dim
        return query_and_output + key_and_value

    @property
    def mlp_params(self) -> int:
        """Weights of one feed-forward block: up and down, and the gate if there is one."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.ffn_hidden_size

    @property
    def decoder_layer_params(self) -> int:
        """Matmul weights of one decoder layer; a t5 decoder attends twice (self and cross)."""
        attentions = 2 if self.family == "t5" else 1
        return attentions * self.attention_params + self.mlp_params

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
        """Biases of every linear layer; only the gpt family has them."""
        if self.family != "gpt":
            return 0
        heads = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim + self.hidden_size
        mlp = (2 if self.gated_mlp else 1) * self.ffn_hidden_size + self.hidden_size
        return self.num_layers * (heads + mlp)

    @property
    def position_params(self) -> int:
        """Learned position vectors (gpt); t5's bias per head and bucket in each stack."""
        if self.family == "t5":
            return 2 * T5_BUCKETS * self.num_heads
        return self.max_positions * self.hidden_size

    @property
    def norm_params(self) -> int:
        """Norm scales (and shifts, gpt): two a layer, three in a t5 decoder, one after a stack."""
        per_norm = (2 if self.family == "gpt" else 1) * self.hidden_size
        if self.family == "t5":
            norms = 3 * self.num_layers + 2 * self.num_encoder_layers + 2
        else:
            norms = 2 * self.num_layers + 1
        return norms * per_norm

    @property
    def matmul_params(self) -> int:
        """Weights a token is multiplied with: layers and the output head, not the look-up."""
        return (
            self.num_layers * self.decoder_layer_params
            + self.num_encoder_layers * self.encoder_layer_params
            + self.embedding_params
        )

    @property
    def flop_params(self) -> int:
        """N of the 6N rule: every weight but the norms, tied embeddings once (design, study B)."""
        look_up = 0 if self.tied_embeddings else self.embedding_params
        return self.matmul_params + look_up + self.bias_params + self.position_params

    @property
    def total_params(self) -> int:
        """Every trained number, the norms too."""
        return self.flop_params + self.norm_params

    def tokens_per_sequence(self, seq_length: int) -> int:
        """Tokens one sequence trains on; a t5 sequence has an input and a target of that length."""
        return 2 * seq_length if self.family == "t5" else seq_length


def model_flops_per_token(shape: ModelShape, seq_length: int) -> int:
    """FLOPs one token costs in forward and backward, recomputation excluded.

    6 per weight: 2 (multiply, add) x 3 (forward, gradient of input, gradient of weight), with N
    every weight but the norms. 12 * L * h * s for attention: two s-by-s matmuls (scores, values) of
    2 * h * s FLOPs a token each, x 3; the causal half is counted in full. This is the convention of
    PaLM (arXiv 2204.02311, appendix B), which reproduces the published MFU of arXiv 2311.05610.

    Encoder-decoder: per sequence 6 (N_enc S_enc + (N_dec + V d) S_dec) + 12 L d (S_enc^2 + S_dec^2
    + S_enc S_dec), the cross-attention's key and value weights counted with S_enc; both lengths are
    `seq_length` here. The look-up costs nothing, since two thirds of mT5-base are embeddings.
    """
    if shape.family == "t5":
        return _encoder_decoder_flops_per_sequence(shape, seq_length) // (2 * seq_length)
    width = shape.num_heads * shape.head_dim
    return 6 * shape.flop_params + 12 * shape.num_layers * width * seq_length


def _encoder_decoder_flops_per_sequence(shape: ModelShape, seq_length: int) -> int:
    width = shape.num_heads * shape.head_dim
    encoder = 6 * shape.num_encoder_layers * shape.encoder_layer_params * seq_length
    decoder = 6 * shape.num_layers * shape.decoder_layer_params * seq_length
    head = 6 * shape.embedding_params * seq_length
    attentions = shape.num_encoder_layers + 2 * shape.num_layers
    return encoder + decoder + head + 12 * attentions * width * seq_length**2


def matmul_flops_per_token(shape: ModelShape, seq_length: int) -> int:
    """The strict count: no embedding look-up, no biases, causal attention at half its square.

    An encoder and a cross-attention are not causal and count in full.
    """
    width = shape.num_heads * shape.head_dim
    weights = 6 * shape.matmul_params
    if shape.family == "t5":
        attentions = 2 * shape.num_encoder_layers + 3 * shape.num_layers  # halves of a square
        return weights // 2 + 6 * attentions * width * seq_length // 2
    return weights + 6 * shape.num_layers * width * seq_length


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
    width = shape.num_heads * shape.head_dim
    layers = shape.num_layers * shape.decoder_layer_params
    attentions = shape.num_layers
    streams = 1
    if shape.family == "t5":  # every layer sees one of the two tokens a pair has
        layers += shape.num_encoder_layers * shape.encoder_layer_params
        attentions = shape.num_encoder_layers + 2 * shape.num_layers
        streams = 2
    core = 4 * attentions * width * seq_length
    again = core if activation_checkpointing == "selective" else 2 * layers + core
    return model + again // streams
