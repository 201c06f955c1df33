"""vLLM's error answers, word for word where they were recorded."""

from __future__ import annotations

from typing import Any

BUSY_MESSAGE = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
BACKLOG_MESSAGE = "The engine has reached its prefill token backlog limit. Please try again later or on a different instance."
DEAD_MESSAGE = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class ApiError(Exception):
    """A request that the engine's API refuses."""

    def __init__(self, status: int, message: str, *, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        message = self.message.encode("utf-8", "replace").decode()  # it may quote a client's lone surrogate
        return {"error": {"message": message, "type": self.kind, "param": self.param, "code": self.status}}


def bad_request(message: str, *, param: str | None = None, value: object = None) -> ApiError:
    """A refusal by vLLM's own checks; it names the parameter, and sometimes the value, at the end of the text."""
    if param is not None:
        message += f" (parameter={param})" if value is None else f" (parameter={param}, value={value})"
    return ApiError(400, message, kind="BadRequestError", param=param)


def invalid_body(kind: str, location: str, text: str, shown_input: str, context: str = "") -> ApiError:
    """A refusal by the schema: one validation error printed as a dict."""
    detail = f"{{'type': '{kind}', 'loc': '{location}', 'msg': '{text}', 'input': '{shown_input}'{context}}}"
    return ApiError(400, f"1 validation error:\n  {detail}", kind="Bad Request", param=location)


def unsupported_media_type() -> ApiError:
    return ApiError(400, "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", kind="Bad Request")


def unknown_model(name: str, known: list[str]) -> ApiError:
    return ApiError(404, f"The model `{name}` does not exist. Valid aliases: {', '.join(known)}.", kind="NotFoundError", param="model")


def prompt_too_long(limit_tokens: int) -> ApiError:
    message = (
        f"This model's maximum context length is {limit_tokens} tokens. However, your prompt contains at least {limit_tokens + 1} "
        "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
    )
    return bad_request(message, param="input_tokens", value=limit_tokens + 1)


def busy(message: str = BUSY_MESSAGE) -> ApiError:
    return ApiError(503, message, kind="Service Unavailable")


def engine_dead() -> ApiError:
    return ApiError(500, DEAD_MESSAGE, kind="InternalServerError")
