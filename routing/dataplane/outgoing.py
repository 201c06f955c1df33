"""The one door by which a client's body leaves for an engine: with our salt, or not at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from routing.core import body as bodies
from routing.core.engine import Engine
from routing.dataplane import errors

if TYPE_CHECKING:
    from routing.dataplane.attempt import Attempt
    from routing.dataplane.inflight import Flight


def body_for(
    flight: Flight, attempt: Attempt, *, written: Mapping[str, bytes] | None = None, left_out: Collection[str] = (), transfer: bytes | None = None
) -> bytes:
    """The body for the engine of ``attempt``. ``bodies.edit`` reads it again and refuses to hand out one that does not carry exactly our salt.

    Raises:
        ApiError: 503 ``isolation_unavailable``.
    """
    call, namespace, endpoint = flight.call, flight.namespace, flight.endpoint
    if call is None or namespace is None or endpoint is None:
        raise RuntimeError("nothing to send")
    try:
        return bodies.edit(
            call.body,
            engine=attempt.choice.replica.engine,
            salt=namespace.salt,
            served_model=endpoint.entry.served_model,
            full_report=attempt.prediction.full_report,
            written=written,
            left_out=left_out,
            transfer=transfer,
        )
    except bodies.SaltError:
        raise errors.isolation_unavailable() from None


def checked(body: dict[str, Any], *, engine: Engine, salt: str, served_model: str) -> bytes:
    """A body of our own, to an engine that is looked at before it is added: through the same strip and the same salt as a client's.

    Raises:
        SaltError: the result does not carry exactly ``salt`` (a mistake of ours).
    """
    return bodies.edit(bodies.read(msgspec.json.encode(body)), engine=engine, salt=salt, served_model=served_model)
