"""vLLM's answers: bodies and stream chunks, fields in its order."""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from routing.simulator.config import Faults, ReplicaConfig
from routing.simulator.language import Speech
from routing.simulator.requests import Call
from routing.simulator.submission import Output

VLLM_VERSION = "0.32.0"
DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def to_json(value: object) -> bytes:
    return _encode(value)


def chunk_bytes(value: object) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"


def error_event(body: dict[str, Any]) -> bytes:
    """An error inside a stream; it is printed with spaces, unlike the chunks."""
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def fingerprint(model: str) -> str:
    return f"vllm-{VLLM_VERSION}-{zlib.crc32(model.encode()):08x}"


@dataclass(slots=True)
class Choice:
    """One answer of a call while it grows."""

    index: int
    prompt: tuple[int, ...]
    speech: Speech
    token_ids: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    stored_tokens: int = 0
    finished: bool = False

    def take(self, output: Output) -> str:
        """Add a token; returns the text it adds."""
        self.token_ids.append(output.token_id)
        self.cached_tokens, self.stored_tokens = output.cached_tokens, output.stored_tokens
        self.finished = output.finished is not None
        return self.speech.texts[output.index]

    @property
    def text(self) -> str:
        return "".join(self.speech.texts[: len(self.token_ids)])

    @property
    def finish_reason(self) -> str | None:
        return self.speech.finish_reason if self.finished else None

    @property
    def stop_reason(self) -> str | None:
        return self.speech.stop_reason if self.finished else None


class Answer:
    """The answer to one call. ``created`` is unix time in seconds."""

    def __init__(self, call: Call, choices: list[Choice], faults: Faults, *, answer_id: str, created: int) -> None:
        self._call = call
        self.choices = choices
        self._faults = faults
        self.id = answer_id
        self._created = created
        self.handed: dict[str, Any] | None = None  # where another engine finds the prompt's blocks

    # -- usage -----------------------------------------------------------------------------------------------------

    def _counts(self) -> dict[str, Any]:
        prompt_tokens = sum(len(prompt) for prompt in self._call.prompts)
        completion_tokens = sum(len(choice.token_ids) for choice in self.choices)
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
        }

    def _cached(self) -> dict[str, Any]:
        """Of several prompts the engine reports the last one's hit alone."""
        last = self.choices[-1]
        cached = last.cached_tokens
        for forged in (self._call.forged_cached_tokens, self._faults.forge_cached_tokens):
            cached = cached if forged is None else forged
        return {"cached_tokens": cached, "created_cache_tokens": last.stored_tokens if self._call.kind == "chat" else None}

    def usage(self) -> dict[str, Any]:
        details = None if self._faults.hide_cached_tokens else {**self._cached(), "multimodal_tokens": None}
        return {**self._counts(), "prompt_tokens_details": details, "completion_tokens_details": None}

    def _stream_usage(self) -> dict[str, Any]:
        if self._faults.hide_cached_tokens:
            return self._counts()
        details = {name: value for name, value in self._cached().items() if value is not None}
        return {**self._counts(), "prompt_tokens_details": details}

    def _running_usage(self) -> dict[str, Any]:
        return {"usage": {**self._counts(), "completion_tokens_details": None}} if self._call.continuous_usage else {}

    # -- whole answers ---------------------------------------------------------------------------------------------

    def body(self) -> dict[str, Any]:
        chat = self._call.kind == "chat"
        ids = self._call.return_token_ids
        head = {
            "id": self.id,
            "object": "chat.completion" if chat else "text_completion",
            "created": self._created,
            "model": self._call.model,
            "choices": [self._chat_choice(choice) if chat else self._text_choice(choice) for choice in self.choices],
            "service_tier": None,
            "system_fingerprint": fingerprint(self._call.model),
            "usage": self.usage(),
        }
        tail = {"kv_transfer_params": self.handed, "ec_transfer_params": None, "metrics": None}
        if not chat:
            return head | tail
        prompt = {"prompt_logprobs": None, "prompt_token_ids": list(self._call.prompts[0]) if ids else None, "prompt_text": None}
        return head | prompt | tail

    def _ids(self, choice: Choice) -> list[int] | None:
        return choice.token_ids if self._call.return_token_ids else None

    def _chat_choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {
                "role": "assistant",
                "content": choice.text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": self._ids(choice),
            "routed_experts": None,
        }

    def _text_choice(self, choice: Choice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": choice.text,
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": self._ids(choice),
            "prompt_logprobs": None,
            "prompt_token_ids": list(choice.prompt) if self._call.return_token_ids else None,
            "routed_experts": None,
        }

    # -- streams ---------------------------------------------------------------------------------------------------

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "chat.completion.chunk" if self._call.kind == "chat" else "text_completion",
            "created": self._created,
            "model": self._call.model,
            "choices": choices,
        }

    def role_chunk(self, choice: Choice) -> bytes:
        """The chat stream's first chunk. It is sent when the first token exists, not before."""
        delta = {"index": choice.index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        chunk = self._chunk([delta]) | self._running_usage()
        return chunk_bytes(chunk | {"prompt_token_ids": list(choice.prompt) if self._call.return_token_ids else None, "prompt_text": None})

    def token_chunk(self, choice: Choice, text: str) -> bytes:
        ids = [choice.token_ids[-1]] if self._call.return_token_ids else None
        row: dict[str, Any] = {"index": choice.index}
        if self._call.kind == "chat":
            row |= {"delta": {"content": text}, "logprobs": None, "finish_reason": choice.finish_reason}
            if choice.finished:
                row["stop_reason"] = choice.stop_reason
            row["token_ids"] = ids
        else:
            first = self._call.return_token_ids and len(choice.token_ids) == 1
            row |= {"text": text, "logprobs": None, "finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
            row |= {"prompt_token_ids": list(choice.prompt) if first else None, "token_ids": ids}
        chunk = self._chunk([row]) | self._running_usage()
        if not self._call.include_usage and all(other.finished for other in self.choices):
            chunk["system_fingerprint"] = fingerprint(self._call.model)
        return chunk_bytes(chunk)

    def usage_chunk(self) -> bytes:
        """The last chunk before [DONE], sent only to those who asked; the only one that tells cached tokens."""
        chunk = self._chunk([]) | {"usage": self._stream_usage(), "system_fingerprint": fingerprint(self._call.model)}
        return chunk_bytes(chunk)

    def aborted(self) -> bytes:
        """What a draining engine streams: an empty answer that looks like success but for its reason."""
        row: dict[str, Any] = {"index": 0, "finish_reason": "abort", "logprobs": None}
        row |= {"delta": {"content": ""}} if self._call.kind == "chat" else {"text": ""}
        return chunk_bytes(self._chunk([row]))

    def aborted_body(self) -> dict[str, Any]:
        body = self.body()
        for choice in body["choices"]:
            choice["finish_reason"] = "abort"
        return body


def rendered(call: Call, prompt: tuple[int, ...], max_tokens: int, request_id: str) -> dict[str, Any]:
    """One prompt as the render routes show it."""
    return {
        "request_id": request_id,
        "token_ids": list(prompt),
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": {
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "temperature": call.temperature,
            "top_p": call.top_p,
            "min_p": 0.0,
            "stop": list(call.stop),
            "stop_token_ids": [],
            "max_tokens": max_tokens,
            "output_kind": 2,
            "skip_clone": True,
            "bad_words": [],
            "skip_reading_prefix_cache": not call.read_cache,
        },
        "model": call.model,
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": True if call.return_token_ids else None,
        "output_mode": "tokens",
        "stream": call.stream,
        "stream_options": None,
        "cache_salt": call.salt,
        "priority": 0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }


def model_list(config: ReplicaConfig) -> dict[str, Any]:
    """GET /v1/models: the base model, then its adapters as its children."""
    created = int(time.time())
    rows: list[tuple[str, str, str | None, int | None]] = [(config.model, config.model, None, config.engine.max_model_len_tokens)]
    rows += [(adapter.name, adapter.path, config.model, None) for adapter in config.adapters]
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "vllm",
                "root": root,
                "parent": parent,
                "max_model_len": limit_tokens,
                "permission": [_permission(name, created)],
            }
            for name, root, parent, limit_tokens in rows
        ],
    }


def _permission(name: str, created: int) -> dict[str, Any]:
    return {
        "id": f"modelperm-{zlib.crc32(name.encode()):016x}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
