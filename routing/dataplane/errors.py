"""Every error a client of the data plane can see: OpenAI's shape, stable codes, nothing of the inside in it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

JSON = "application/json"


class ApiError(Exception):
    """An answer that is not a success. ``body`` replaces the usual JSON where an engine's own error is passed on."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        type: str | None = None,  # noqa: A002 - the name of the field in OpenAI's error object
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.message = message
        self.type = type or _type_of(status)
        self.param = param
        self.headers = dict(headers or {})
        self.raw = body

    def body(self) -> bytes:
        return self.raw if self.raw is not None else error_body(self.message, self.type, self.param, self.code)


def _type_of(status: int) -> str:
    return {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_exceeded"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )


def error_body(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    """An error object as JSON bytes."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def invalid_key() -> ApiError:
    """One answer for absent, unknown, revoked, expired and another tenant's keys."""
    return ApiError(401, "invalid_api_key", "Incorrect API key provided.", type="invalid_request_error", headers={"WWW-Authenticate": "Bearer"})


def invalid_probe() -> ApiError:
    """One answer for absent, forged, expired and used probe tokens."""
    return ApiError(401, "invalid_probe_token", "Incorrect probe token provided.", headers={"WWW-Authenticate": "Probe"})


def unknown_probe_target() -> ApiError:
    """An authentic token names a tenant, endpoint or replica that this router does not know (yet)."""
    return ApiError(404, "unknown_probe_target", "This router does not know what the probe token names.")


def conflicting_keys() -> ApiError:
    return ApiError(
        401,
        "conflicting_credentials",
        "Two different valid API keys were presented. Send one.",
        type="invalid_request_error",
        headers={"WWW-Authenticate": "Bearer"},
    )


def suspended() -> ApiError:
    return ApiError(403, "tenant_suspended", "This account is suspended.")


def scope_refused() -> ApiError:
    """One answer for a scope that does not exist and for one that the key may not use."""
    return ApiError(403, "scope_not_allowed", "This key may not act in that scope.")


def bad_request(message: str, param: str | None = None, code: str = "invalid_request") -> ApiError:
    return ApiError(400, code, message, param=param)


def model_not_found(name: str) -> ApiError:
    """One answer for a model that does not exist, is switched off, or that the key may not use."""
    shown = name if len(name) <= 200 and name.isprintable() else name[:200].encode("ascii", "backslashreplace").decode()
    return ApiError(404, "model_not_found", f"The model {shown!r} does not exist or you do not have access to it.", param="model")


def unknown_url(canonical: str | None) -> ApiError:
    hint = f" Did you mean {canonical}?" if canonical else ""
    return ApiError(404, "unknown_url", f"Unknown request URL.{hint}")


def method_not_allowed(allowed: str) -> ApiError:
    return ApiError(405, "method_not_allowed", f"This URL takes {allowed} only.", headers={"Allow": f"{allowed}, OPTIONS"})


def body_too_large(limit_bytes: int) -> ApiError:
    return ApiError(413, "request_too_large", f"The request body is larger than {limit_bytes} bytes.")


def encoding_refused() -> ApiError:
    return ApiError(415, "unsupported_encoding", "Request bodies must not be compressed.")


def loop_detected() -> ApiError:
    return ApiError(508, "loop_detected", "This request came from a router of ours: a replica's address must be an engine's.")


def no_ready_replica() -> ApiError:
    return ApiError(503, "no_ready_replica", "No replica of this model is ready. Try again shortly.", headers={"Retry-After": "2"})


def model_not_served() -> ApiError:
    """The model exists for the caller, and every replica that could answer says that it does not have it: the operator's to mend, and may be soon."""
    return ApiError(503, "model_not_served", "No replica serves this model at the moment.", headers={"Retry-After": "5"})


def isolation_unavailable() -> ApiError:
    message = "No replica that may serve this request's cache namespace is ready; a new one is audited first."
    return ApiError(503, "isolation_unavailable", message, headers={"Retry-After": "5"})


def overloaded() -> ApiError:
    """One answer whether the tenant alone holds its share or all tenants together hold what there is."""
    return unavailable("overloaded", "The router holds as many requests as it may.")


def no_room() -> ApiError:
    """As :func:`overloaded`, of bytes."""
    return unavailable("overloaded", "The router holds as many bytes of requests and answers as it may.")


def unavailable(code: str, message: str) -> ApiError:
    return ApiError(503, code, message, headers={"Retry-After": "2"})


_QUOTAS = {
    "quota_requests_per_minute": "Rate limit reached: no more requests are left in this minute.",
    "quota_tokens_per_minute": "Rate limit reached: not enough tokens are left in this minute.",
    "quota_tokens_per_month": "Quota reached: not enough tokens are left in this month.",
}


def quota_refused(code: str, retry_after_s: int, tokens: int) -> ApiError:
    """A quota has no room for the request. Whose quota it is of several is the tenant's own matter and not said."""
    asked = "" if code == "quota_requests_per_minute" else f" This request asks for up to {tokens} tokens: its prompt and the answers it allows."
    return ApiError(429, code, f"{_QUOTAS[code]}{asked}", headers={"Retry-After": str(retry_after_s)})


def upstream_error(status: int) -> ApiError:
    """The engine failed. Its own words stay with us; ``status`` is 502 or 503."""
    headers = {"Retry-After": "2"} if status == 503 else None
    return ApiError(status, "upstream_error", "The model server could not answer this request.", headers=headers)


def engine_busy() -> ApiError:
    """An engine that several tenants use is full."""
    return ApiError(429, "rate_limit_exceeded", "The model server is busy.", headers={"Retry-After": "2"})


def queue_refused(code: str, retry_after_s: int) -> ApiError:
    """No replica came free in the time that the endpoint's objective allows (``queue_timeout``; ``shed`` where it allows none), or the tenant has
    as many requests waiting as it may (``queue_full``). When to come back follows from the tenant's own queue alone."""
    message = "Too many of your requests are waiting." if code == "queue_full" else "No replica came free in the time allowed for waiting."
    return ApiError(429, code, message, headers={"Retry-After": str(retry_after_s)})


def upstream_timeout() -> ApiError:
    return ApiError(504, "upstream_timeout", "The model server did not answer in time.")


def internal() -> ApiError:
    return ApiError(500, "internal_error", "The router made a mistake. It was recorded under the decision id of this answer.")
