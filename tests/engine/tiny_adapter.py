"""A LoRA adapter for the tiny checkpoint, with random weights, in the form that PEFT writes and vLLM reads."""

from __future__ import annotations

import json
import random
from pathlib import Path

from tests.engine.tiny_model import Shape, Tensor, header, weights

RANK = 8


def tensors(shape: Shape) -> list[Tensor]:
    """Both factors for the query and value projections of every layer."""
    rows = {"q": shape.heads * shape.head_dim, "v": shape.kv_heads * shape.head_dim}
    found = []
    for layer in range(shape.layers):
        for part, count in rows.items():
            inside = f"base_model.model.model.layers.{layer}.self_attn.{part}_proj"
            found.append(Tensor(f"{inside}.lora_A.weight", (RANK, shape.hidden), 2))
            found.append(Tensor(f"{inside}.lora_B.weight", (count, RANK), 2))
    return found


def write(directory: Path, shape: Shape, *, seed: int) -> None:
    """Write adapter_config.json and adapter_model.safetensors; the weights last."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": ["q_proj", "v_proj"],
    }
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=1))
    rng = random.Random(seed)
    listed = tensors(shape)
    unfinished = directory / "adapter_model.safetensors.part"
    unfinished.write_bytes(header(listed) + b"".join(weights(tensor, rng) for tensor in listed))
    unfinished.rename(directory / "adapter_model.safetensors")
