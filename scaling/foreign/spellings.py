"""How other tools spell the words of this project's columns, in small letters."""

from collections.abc import Collection, Mapping

# PyTorch, Lightning and NeMo name a format with what is mixed in; Megatron an 8-bit recipe.
SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "precision": {
        "bfloat16": "bf16", "bf16-mixed": "bf16", "bf16_mixed": "bf16", "bf16-true": "bf16",
        "float16": "fp16", "fp16-mixed": "fp16", "16-mixed": "fp16", "half": "fp16",
        "float32": "fp32", "32-true": "fp32",
        "float8": "fp8", "fp8-mixed": "fp8", "fp8_cs": "fp8", "fp8-cs": "fp8", "fp8_ds": "fp8",
        "fp8-ds": "fp8", "fp8_sc": "fp8", "fp8-sc": "fp8",
        "fp8_mx": "mxfp8", "fp8-mx": "mxfp8", "mxfp8-mixed": "mxfp8",
        "fp4": "nvfp4", "nvfp4-mixed": "nvfp4",
    },
    "attention": {
        "flash_attention_2": "flash2", "flash_attention_3": "flash3", "flash-attention-2": "flash2",
        "flash-attention-3": "flash3", "fa2": "flash2", "fa3": "flash3",
    },
}  # fmt: skip


def respelled(column: str, word: str, known: Collection[str]) -> str:
    """The word of `known` that a cell means, whatever its case; the cell itself if none."""
    small = word.lower()
    meant = SPELLINGS.get(column, {}).get(small, small)
    return meant if word not in known and meant in known else word
