"""A Qwen2 checkpoint of about 80 MB with random weights, written with the standard library alone.

What the tests need from a model is its tokenizer, its chat template and an engine that accepts it; the text it
produces does not matter. Weights come from a seeded generator, so every machine gets the same bytes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VOCABULARY = 151_936  # rows of the embedding of the Qwen2.5 family; the tokenizer's ids stay below it
END_OF_TEXT = 151_643
END_OF_TURN = 151_645


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of the network; the default is the smallest that vLLM's CPU attention serves well."""

    hidden: int = 256
    layers: int = 2
    head_dim: int = 64
    kv_heads: int = 2
    context_tokens: int = 32_768

    @property
    def heads(self) -> int:
        return self.hidden // self.head_dim

    @property
    def feed_forward(self) -> int:
        return 2 * self.hidden


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight. ``magnitude_exponent`` is a power of four (0.25 ** n), or None for a tensor of ones."""

    name: str
    shape: tuple[int, ...]
    magnitude_exponent: int | None

    @property
    def count(self) -> int:
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    @property
    def size_bytes(self) -> int:
        return 2 * self.count  # bfloat16


def tensors(shape: Shape) -> Iterator[Tensor]:
    """Every weight of a Qwen2 network of this shape; the output layer is tied to the embedding, so it is absent."""
    hidden, query, key = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield Tensor("model.embed_tokens.weight", (VOCABULARY, hidden), 3)
    yield Tensor("model.norm.weight", (hidden,), None)
    for layer in range(shape.layers):
        inside = f"model.layers.{layer}"
        for part, rows in (("q", query), ("k", key), ("v", key)):
            yield Tensor(f"{inside}.self_attn.{part}_proj.weight", (rows, hidden), 2)
            yield Tensor(f"{inside}.self_attn.{part}_proj.bias", (rows,), 3)
        yield Tensor(f"{inside}.self_attn.o_proj.weight", (hidden, query), 2)
        yield Tensor(f"{inside}.mlp.gate_proj.weight", (shape.feed_forward, hidden), 2)
        yield Tensor(f"{inside}.mlp.up_proj.weight", (shape.feed_forward, hidden), 2)
        yield Tensor(f"{inside}.mlp.down_proj.weight", (hidden, shape.feed_forward), 2)
        yield Tensor(f"{inside}.input_layernorm.weight", (hidden,), None)
        yield Tensor(f"{inside}.post_attention_layernorm.weight", (hidden,), None)


def weights(tensor: Tensor, rng: random.Random) -> bytes:
    """The tensor's values as little-endian bfloat16.

    A bfloat16 is one sign bit, eight exponent bits and seven of mantissa. The upper byte keeps a random sign over a
    fixed upper exponent, the lower byte is random: magnitudes fall in [0.5, 2) * 0.25 ** n, with both signs.
    """
    if tensor.magnitude_exponent is None:
        return b"\x80\x3f" * tensor.count  # 1.0
    upper_exponent = 63 - tensor.magnitude_exponent
    signed = bytes((byte & 0x80) | upper_exponent for byte in range(256))
    values = bytearray(tensor.size_bytes)
    values[0::2] = rng.randbytes(tensor.count)
    values[1::2] = rng.randbytes(tensor.count).translate(signed)
    return bytes(values)


def header(listed: list[Tensor]) -> bytes:
    """The safetensors header: length (8 bytes, little endian), then JSON with name, type, shape and byte range.

    Source: the format's description in the safetensors README; data begin at a multiple of eight bytes.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in listed:
        entries[tensor.name] = {
            "dtype": "BF16",
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.size_bytes],
        }
        offset += tensor.size_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def configuration(shape: Shape) -> dict[str, object]:
    """The model's config.json."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": shape.context_tokens,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "use_cache": True,
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": END_OF_TURN,
    }


def write(directory: Path, shape: Shape, *, seed: int = 7) -> None:
    """Write config.json, generation_config.json and model.safetensors; the weights last, so their presence means complete."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(configuration(shape), indent=1))
    generation = {"bos_token_id": END_OF_TEXT, "eos_token_id": [END_OF_TURN, END_OF_TEXT], "pad_token_id": END_OF_TEXT}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=1))
    rng = random.Random(seed)
    listed = list(tensors(shape))
    unfinished = directory / "model.safetensors.part"
    with unfinished.open("wb") as out:
        out.write(header(listed))
        for tensor in listed:
            out.write(weights(tensor, rng))
    unfinished.rename(directory / "model.safetensors")
