"""What each recorded change takes: the permission that its actor must hold, whichever view, page or task they came through.

The views ask first, by method; this is asked again in the one place that every change goes through (``tenants.changes``), so that a service
called from a page that forgot to ask still refuses.
"""

from __future__ import annotations

from tenants.core.roles import Permission

# By noun, or by whole action where one differs. What is not here takes OPERATE: whoever only reads changes nothing.
_NEEDS: dict[str, Permission] = {
    "request.denied": Permission.READ,  # the note that something was refused
    "account": Permission.READ,  # a person's own sign-in
    "sign_in": Permission.READ,
    "password_reset": Permission.READ,
    "session": Permission.READ,
    "invitation.accept": Permission.READ,
    "member": Permission.MEMBERS,
    "invitation": Permission.MEMBERS,
    "control_token": Permission.MEMBERS,
    "api_key": Permission.CONFIGURE,
    "scope.create": Permission.CONFIGURE,
    "scope.delete": Permission.CONFIGURE,
    "model": Permission.CONFIGURE,
    "artifact": Permission.CONFIGURE,
    "adapter": Permission.CONFIGURE,
    "adapter.reload": Permission.OPERATE,
    "pool": Permission.CONFIGURE,
    "replica.create": Permission.CONFIGURE,
    "replica.delete": Permission.CONFIGURE,
    "replica.check": Permission.CONFIGURE,
    "endpoint.create": Permission.CONFIGURE,
    "endpoint.delete": Permission.CONFIGURE,
    "webhook": Permission.CONFIGURE,
    "records": Permission.CONFIGURE,
    "quota": Permission.CONFIGURE,
    "capture": Permission.CONFIGURE,
    "tenant.require_second_factor": Permission.OWN,
    "tenant.create": Permission.PLATFORM,
    "tenant.rename": Permission.PLATFORM,
    "tenant.suspend": Permission.PLATFORM,
    "tenant.resume": Permission.PLATFORM,
    "tenant.delete": Permission.PLATFORM,
    "pool_grant": Permission.PLATFORM,
}


def needed(action: str) -> Permission:
    """The permission that recording ``noun.verb`` takes."""
    return _NEEDS.get(action) or _NEEDS.get(action.partition(".")[0]) or Permission.OPERATE
