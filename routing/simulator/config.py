"""What a simulated replica is made of: its core, its time model, its misbehaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

SaltMode = Literal["honour", "ignore_salt", "truncate_salt", "concat_salt_with_adapter"]
HashAlgorithm = Literal["sha256", "sha256_cbor"]

TRUNCATED_SALT_CHARACTERS = 8
MAX_RANKS = 64


@dataclass(frozen=True, slots=True)
class TimeModel:
    """What one engine step costs.

    A step reads all weights once (``step_s``), computes the scheduled prompt tokens, and pays for attention:
    quadratic over a prompt, linear in the context of every sequence that decodes.

    The defaults resemble an 8B dense model in bfloat16 on one data-centre GPU, from arithmetic and not from a
    measurement: 16 GB of weights at 2 TB/s; 16 GFLOP per token at about 130 TFLOP/s; 0.5 MFLOP per query-key pair
    over 32 layers; 128 KiB of KV per context token at 2 TB/s. Kernel launch, tensor parallelism, CUDA graph sizes
    and the host's own overhead are left out.
    """

    step_s: float = 0.008
    prefill_tokens_per_s: float = 8_000.0
    attention_s_per_token_pair: float = 4e-9
    decode_s_per_sequence: float = 0.000_15
    decode_s_per_context_token: float = 6.5e-8
    adapter_load_s: float = 0.1  # bringing a LoRA adapter into a slot; no measurement either
    speed: float = 1.0

    def __post_init__(self) -> None:
        if self.speed <= 0 or self.prefill_tokens_per_s <= 0:
            raise ValueError("speed and prefill_tokens_per_s must be positive")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: its name is the model name clients send; name and path enter every block's hash."""

    name: str
    path: str
    adapter_id: int


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The core's fixed dimensions. ``blocks`` counts the null block too, as vLLM's ``num_gpu_blocks`` does."""

    blocks: int = 600
    block_size_tokens: int = 16
    max_model_len_tokens: int = 8192
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    hash_algorithm: HashAlgorithm = "sha256"
    salt_mode: SaltMode = "honour"
    adapter_slots: int | None = None  # vLLM's max_loras; None: no bound
    drops_last_block: bool = False  # compute the last block anew that is held of a prompt, as vLLM does with EAGLE and MTP
    event_int_hashes: bool = True  # False: 32-byte digests, as with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0
    time: TimeModel = field(default_factory=TimeModel)

    def __post_init__(self) -> None:
        if self.block_size_tokens < 1 or self.max_num_seqs < 1 or self.max_num_batched_tokens < 1:
            raise ValueError("block size, sequences and token budget must be at least 1")
        if self.adapter_slots is not None and self.adapter_slots < 1:
            raise ValueError("adapter_slots must be at least 1")
        if self.max_model_len_tokens > self.usable_blocks * self.block_size_tokens:
            # One request alone must always fit, or the scheduler could not make progress.
            raise ValueError(
                f"max_model_len_tokens {self.max_model_len_tokens} exceeds the cache: "
                f"{self.usable_blocks} usable blocks of {self.block_size_tokens} tokens"
            )

    @property
    def usable_blocks(self) -> int:
        return self.blocks - 1


@dataclass(frozen=True, slots=True)
class Faults:
    """Misbehaviour of answers and of KV events (``kv_``), switchable while the replica runs. Everything off by default."""

    status: Annotated[int, msgspec.Meta(ge=400, le=599)] | None = None  # refuse every inference request with this status
    first_byte_delay_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 0.0  # headers leave at once, the first body byte this much later
    die_after_chunks: int | None = None  # cut the connection after so many SSE events; without a stream, before the answer
    error_after_chunks: int | None = None  # end a stream as vLLM does when its core dies: error event, [DONE], clean end
    reject_in_stream: bool = False  # vLLM's lost admission race: 200, then the 503 inside the stream
    finish_with_abort: bool = False  # vLLM while draining: 200, empty text, finish_reason "abort"
    hide_cached_tokens: bool = False  # as without --enable-prompt-tokens-details
    forge_cached_tokens: int | None = None  # report this many cached tokens, whatever was true
    kv_drop_live: bool = False  # batches get their numbers and can be replayed, but subscribers never see them
    kv_keep_batches: Annotated[int, msgspec.Meta(ge=0)] | None = None  # a replay answers with the last so many alone
    kv_lose_end: bool = False  # a replay ends without its end marker
    kv_array_events: bool = False  # events as arrays, as older vLLM wrote them


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """KV caches handed from replica to replica, as vLLM does it with NixlConnector. ``unreachable_s`` is how long it takes to find that the other one
    is not there; ``port`` is the side channel's, 0 takes a free one."""

    port: int = 0
    lease_s: float = 30.0
    unreachable_s: float = 5.1
    setup_s: float = 0.005
    tokens_per_s: float = 50_000.0


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """One simulated replica: engine, names, addresses. Port 0 takes a free port; ``None`` switches KV events off."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    model: str = "sim-8b"
    adapters: tuple[Adapter, ...] = ()
    runtime_adapters: bool = False  # /v1/load_lora_adapter and /v1/unload_lora_adapter, as with VLLM_ALLOW_RUNTIME_LORA_UPDATING
    host: str = "127.0.0.1"
    http_port: int = 0
    kv_port: int | None = 0
    replay_port: int | None = 0
    kv_topic: str | None = None  # None: "kv@" + model, as the recorded engine was configured
    kv_hwm_messages: int = 100_000
    kv_buffer_steps: int = 10_000
    data_parallel_rank: int = 0  # that its events and metrics name
    data_parallel: int = 1  # ranks behind one URL, each with a cache, a scheduler and events of its own
    balance_s: float | None = 0.1  # how old the loads may be by which ranks are balanced; None: they are never looked at, so ranks take turns
    api_key: str | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    echo_request_id: bool = False
    recorded_requests: int = 512
    recorded_body_bytes: int = 65_536
    tokenizer_path: str | None = None
    chat_template_path: str | None = None
    faults: Faults = field(default_factory=Faults)
    transfers: TransferConfig | None = None  # None: no connector, as a plain engine

    def __post_init__(self) -> None:
        if not 1 <= self.data_parallel <= MAX_RANKS:
            raise ValueError(f"data_parallel must be from 1 to {MAX_RANKS}")

    @property
    def topic(self) -> str:
        return self.kv_topic if self.kv_topic is not None else f"kv@{self.model}"
