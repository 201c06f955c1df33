"""What no client may send to any engine: fields that choose a cache, an adapter or a slot, forge cached tokens, or name another request."""

from __future__ import annotations

STRIPPED = frozenset(
    {
        "cache_salt",
        "kv_transfer_params",
        "kv_hints",
        "session_params",
        "session_id",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "priority",
        "request_id",
        "rid",
        "routed_dp_rank",
        "data_parallel_rank",
        "skip_reading_prefix_cache",
        "extra_key",
        "extra_keys",
        "lora_path",
        "lora_request",
        "lora",
        "id_slot",
        "disaggregated_params",
    }
)
INSIDE = {
    "vllm_xargs": frozenset({"cache_salt", "kv_transfer_params", "kv_cache_report_mode", "session_id", "request_id", "priority"}),
    "nvext": frozenset({"cache_salt", "extra_key", "priority", "request_id", "session_id"}),
    "extra_body": STRIPPED,
}
