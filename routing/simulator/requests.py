"""From an HTTP body to what the engine is asked: the checks vLLM makes, in its words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from routing.simulator.config import Adapter, ReplicaConfig
from routing.simulator.errors import ApiError, bad_request, invalid_body, prompt_too_long, unknown_model
from routing.simulator.tokenizer import Tokenizer, UnrenderableConversationError

Kind = Literal["chat", "completion"]
MAX_SALT_CHARACTERS = 128
DEFAULT_COMPLETION_TOKENS = 16
MAX_CHOICES = 256  # bounds what one body can queue; the real engine's bound is higher
_TEMPLATE_FIELDS = ("documents", "continue_final_message")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that passed every check. ``max_tokens`` is already cut to what the context leaves."""

    kind: Kind
    model: str
    adapter: Adapter | None
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: tuple[int, ...]  # one for each prompt
    choices_per_prompt: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    salt: str | None = None
    session_id: str | None = None
    request_id: str | None = None
    report_reused: bool = False
    read_cache: bool = True
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    seed: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    forged_cached_tokens: int | None = None  # what kv_transfer_params claims; a plain engine believes it
    transfer: Mapping[str, Any] | None = None  # kv_transfer_params

    @property
    def hands_over(self) -> bool:
        """Another engine is to fetch the blocks."""
        return self.transfer is not None and self.transfer.get("do_remote_decode") is True

    @property
    def fetches(self) -> bool:
        """Another engine has the blocks."""
        return self.transfer is not None and self.transfer.get("do_remote_prefill") is True


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in a body.

    Raises:
        ApiError: empty, not JSON, or not an object.
    """
    if not raw:
        raise invalid_body("missing", "body", "Field required", "None")
    try:
        body = json.loads(raw)
    except json.JSONDecodeError as error:
        context = f", 'ctx': {{'error': '{error.msg}'}}"
        raise invalid_body("json_invalid", f"body.{error.pos}", "JSON decode error", "<dict of 0 items>", context) from None
    except (UnicodeDecodeError, RecursionError):
        raise ApiError(400, "There was an error parsing the body", kind="Bad Request") from None
    if not isinstance(body, dict):
        shown = f"<list of {len(body)} items>" if isinstance(body, list) else str(body)
        text = "Input should be a valid dictionary or object to extract fields from"
        raise invalid_body("model_attributes_type", "body", text, shown)
    return body


def parse_call(kind: Kind, body: Mapping[str, Any], headers: Mapping[str, str], config: ReplicaConfig, tokenizer: Tokenizer) -> Call:
    """Check a body and tokenise its prompt.

    Raises:
        ApiError: what vLLM would answer.
    """
    required = "messages" if kind == "chat" else "prompt"
    if required not in body:
        raise invalid_body("missing", f"body.{required}", "Field required", f"<dict of {len(body)} items>")
    salt = checked_salt(body.get("cache_salt"))
    stream = body.get("stream") is True
    options = body.get("stream_options")
    if options is not None and not stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", param="stream_options")
    options = options if isinstance(options, dict) else {}
    model, adapter = resolve_model(body.get("model"), config)
    prompts = prompt_token_ids(kind, body, config, tokenizer)
    limit_tokens = config.engine.max_model_len_tokens
    if any(len(prompt) >= limit_tokens for prompt in prompts):
        raise prompt_too_long(limit_tokens)
    wanted_tokens = _wanted_tokens(kind, body)
    temperature = _number(body, "temperature", 1.0)
    if temperature < 0:
        raise bad_request(f"temperature must be non-negative, got {temperature}.", param="temperature", value=temperature)
    choices = int(_number(body, "n", 1))
    if choices > 1 and temperature == 0:
        raise bad_request(f"n must be 1 when using greedy sampling, got {choices}.")
    if not 1 <= choices <= MAX_CHOICES:
        raise bad_request(f"n must be at least 1 and at most {MAX_CHOICES}, got {choices}.")
    extra = body.get("vllm_xargs")
    extra = extra if isinstance(extra, dict) else {}
    logprobs_of_prompt = body.get("prompt_logprobs") is not None or (body.get("echo") is True and body.get("logprobs") is not None)
    return Call(
        kind=kind,
        model=model,
        adapter=adapter,
        prompts=prompts,
        max_tokens=tuple(min(wanted_tokens or limit_tokens, limit_tokens - len(prompt)) for prompt in prompts),
        choices_per_prompt=choices,
        stream=stream,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
        return_token_ids=body.get("return_token_ids") is True,
        salt=salt,
        session_id=_text(body.get("session_id"), headers.get("X-Session-ID"), extra.get("session_id")),
        request_id=_text(headers.get("X-Request-Id"), body.get("request_id"), extra.get("request_id")),
        report_reused=extra.get("kv_cache_report_mode") == "full",
        read_cache=not logprobs_of_prompt,
        min_tokens=int(_number(body, "min_tokens", 0)),
        ignore_eos=body.get("ignore_eos") is True,
        stop=_stop_strings(body.get("stop")),
        seed=body["seed"] if isinstance(body.get("seed"), int) else None,
        temperature=temperature,
        top_p=_number(body, "top_p", 1.0),
        forged_cached_tokens=_forged(body.get("kv_transfer_params")),
        transfer=body["kv_transfer_params"] if isinstance(body.get("kv_transfer_params"), dict) else None,
    )


def checked_salt(salt: object) -> str | None:
    """The salt of a body; None means none was given."""
    if salt is None:
        return None
    if not isinstance(salt, str) or not salt:
        raise bad_request("Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")
    if any(0xD800 <= ord(character) <= 0xDFFF for character in salt):
        text = "Input should be a valid string, unable to parse raw data as a unicode string"
        raise invalid_body("string_unicode", "body.cache_salt", text, salt.encode("unicode_escape").decode())
    if len(salt) > MAX_SALT_CHARACTERS or any(character in "@/\\\0" for character in salt):
        message = "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL."
        raise bad_request(message, param="cache_salt")
    return salt


def resolve_model(name: object, config: ReplicaConfig) -> tuple[str, Adapter | None]:
    """The model to answer for, and its adapter. No name means the base model."""
    if name is None or name == config.model:
        return config.model, None
    for adapter in config.adapters:
        if adapter.name == name:
            return adapter.name, adapter
    raise unknown_model(str(name), [config.model, *(adapter.name for adapter in config.adapters)])


def prompt_token_ids(kind: Kind, body: Mapping[str, Any], config: ReplicaConfig, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Every prompt of a body as the ids the engine will use."""
    if kind == "chat":
        text = rendered_chat(body, config, tokenizer)
        prompts = [tuple(tokenizer.encode(text, add_special_tokens=body.get("add_special_tokens") is True))]
    else:
        prompts = [
            _one_prompt(prompt, tokenizer, add_special_tokens=body.get("add_special_tokens") is not False)
            for prompt in _prompt_list(body.get("prompt"))
        ]
    kept = body.get("truncate_prompt_tokens")
    if isinstance(kept, int) and kept > 0:
        prompts = [prompt[-kept:] for prompt in prompts]
    if not all(prompts):
        raise bad_request("The decoder prompt cannot be empty")
    return tuple(prompts)


def rendered_chat(body: Mapping[str, Any], config: ReplicaConfig, tokenizer: Tokenizer) -> str:
    """The conversation as the text the model would read."""
    messages = body.get("messages")
    if body.get("chat_template") is not None:
        message = "Chat template is passed with request, but --trust-request-chat-template is not set."
        raise bad_request(f"{message} Refused request with untrusted chat template.")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise invalid_body("list_type", "body.messages", "Input should be a valid list", str(messages)[:40])
    if not messages:
        raise bad_request("Cannot apply chat template to an empty conversation. Provide at least one message.")
    if any(_is_media(part) for message in messages for part in _parts(message.get("content"))):
        raise bad_request(f"{config.model} is not a multimodal model")
    add_generation_prompt = body.get("add_generation_prompt") is not False
    if body.get("continue_final_message") is True and add_generation_prompt:
        raise bad_request("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    given = body.get("chat_template_kwargs")
    template_kwargs = {name: body[name] for name in _TEMPLATE_FIELDS if body.get(name) is not None}
    template_kwargs |= given if isinstance(given, dict) else {}
    tools = body.get("tools")  # with tool_choice "none" too, as vLLM shows them by default
    try:
        return tokenizer.render(
            messages,
            tools=tools if isinstance(tools, list) else None,
            add_generation_prompt=add_generation_prompt,
            template_kwargs=template_kwargs,
        )
    except UnrenderableConversationError as error:
        raise bad_request(str(error)) from None


def _prompt_list(prompt: object) -> Sequence[object]:
    if isinstance(prompt, list) and prompt and all(isinstance(part, int) for part in prompt):
        return [prompt]
    if isinstance(prompt, list):
        return prompt or [""]
    return [prompt]


def _one_prompt(prompt: object, tokenizer: Tokenizer, *, add_special_tokens: bool) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return tuple(tokenizer.encode(prompt, add_special_tokens=add_special_tokens))
    if isinstance(prompt, list) and all(isinstance(token_id, int) and not isinstance(token_id, bool) for token_id in prompt):
        strange = next((token_id for token_id in prompt if not 0 <= token_id < tokenizer.vocabulary_size), None)
        if strange is not None:
            raise bad_request(f"Token id {strange} is out of vocabulary")
        return tuple(prompt)
    raise invalid_body("string_type", "body.prompt", "Input should be a valid string", str(prompt)[:40])


def _parts(content: object) -> Sequence[object]:
    return content if isinstance(content, list) else ()


def _is_media(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in {"image_url", "input_image", "input_audio", "audio_url", "video_url"}


def _wanted_tokens(kind: Kind, body: Mapping[str, Any]) -> int | None:
    names = ("max_completion_tokens", "max_tokens") if kind == "chat" else ("max_tokens",)
    wanted = next((body[name] for name in names if body.get(name) is not None), None)
    if wanted is None:
        return None if kind == "chat" else DEFAULT_COMPLETION_TOKENS
    if not isinstance(wanted, int) or isinstance(wanted, bool):
        text = "Input should be a valid integer, unable to parse string as an integer"
        raise invalid_body("int_parsing", "body.max_tokens", text, str(wanted)[:40])
    if wanted < 1:
        raise bad_request(f"max_tokens must be at least 1, got {wanted}.", param="max_tokens", value=wanted)
    return wanted


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise invalid_body("float_parsing", f"body.{name}", "Input should be a valid number", str(value)[:40])
    return float(value)


def _text(*candidates: object) -> str | None:
    """The first that is a string; lone surrogates are replaced, for it will be encoded."""
    found = next((candidate for candidate in candidates if isinstance(candidate, str) and candidate), None)
    return found.encode("utf-8", "replace").decode() if found else None


def _stop_strings(stop: object) -> tuple[str, ...]:
    if isinstance(stop, str):
        return (stop,) if stop else ()
    return tuple(string for string in stop if isinstance(string, str) and string) if isinstance(stop, list) else ()


def _forged(params: object) -> int | None:
    if not isinstance(params, dict) or params.get("do_remote_prefill") is not True:
        return None
    claimed = params.get("remote_prefill_cached_tokens")
    return claimed if isinstance(claimed, int) else None
