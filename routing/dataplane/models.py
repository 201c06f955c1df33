"""``/v1/models``: the model names a key may use. Reaches no engine, so it answers whatever the fleet does."""

from __future__ import annotations

from routing.dataplane.authenticate import Caller
from routing.dataplane.request_path import find_endpoint
from routing.dataplane.view import EndpointView


def _entry(caller: Caller, endpoint: EndpointView) -> dict[str, object]:
    entry: dict[str, object] = {
        "id": endpoint.entry.name,
        "object": "model",
        "created": int(endpoint.entry.created_at),
        "owned_by": caller.grant.tenant.snapshot.slug,
    }
    if endpoint.entry.model.context_window_tokens is not None:
        entry["max_model_len"] = endpoint.entry.model.context_window_tokens
    return entry


def listing(caller: Caller) -> dict[str, object]:
    """Every model of this key, once each, by name."""
    allowed = caller.grant.key.endpoints
    endpoints = sorted(caller.grant.tenant.endpoints.values(), key=lambda endpoint: endpoint.entry.name)
    shown = [endpoint for endpoint in endpoints if endpoint.entry.enabled and (allowed is None or endpoint.entry.name in allowed)]
    return {"object": "list", "data": [_entry(caller, endpoint) for endpoint in shown]}


def one(caller: Caller, name: str) -> dict[str, object]:
    """One model.

    Raises:
        ApiError: 404.
    """
    return _entry(caller, find_endpoint(caller, name))
