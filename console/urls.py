"""URLs of the admin console. Each is routed with and without a trailing slash: a redirect would turn a POST into a GET."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpResponseBase
from django.urls import URLPattern, URLResolver, re_path

from console.views import (
    account,
    alerts,
    audit,
    captures,
    causes,
    decisions,
    endpoints,
    invitations,
    isolation,
    keys,
    members,
    overview,
    platform,
    policies,
    pools,
    quotas,
    reconciliation,
    replicas,
    reset,
    sign_in,
    trials,
    usage,
)

app_name = "console"
_SLUG = r"^t/(?P<slug>[a-z0-9-]{1,63})"
_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"


def _tenant(route: str, view: Callable[..., HttpResponseBase], name: str) -> URLPattern:
    return re_path(f"{_SLUG}{route}/?$", view, name=name)


urlpatterns: list[URLPattern | URLResolver] = [
    re_path(r"^$", sign_in.home, name="home"),
    re_path(r"^login/?$", sign_in.sign_in, name="sign_in"),
    re_path(r"^logout/?$", sign_in.sign_out, name="sign_out"),
    re_path(r"^tenants/?$", sign_in.tenants, name="tenants"),
    re_path(r"^login/code/?$", sign_in.sign_in_code, name="sign_in_code"),
    re_path(r"^reset/ask/?$", reset.ask, name="reset_ask"),
    re_path(r"^reset/?$", reset.opened, name="reset"),
    re_path(r"^reset/new/?$", reset.new, name="reset_new"),
    re_path(r"^invitation/?$", invitations.opened, name="invitation"),
    re_path(r"^invitation/accept/?$", invitations.accept, name="invitation_accept"),
    re_path(r"^account/?$", account.Account.as_view(), name="account"),
    re_path(r"^account/password/?$", account.Password.as_view(), name="account_password"),
    re_path(r"^account/second-factor/?$", account.SecondFactor.as_view(), name="second_factor"),
    re_path(r"^account/second-factor/off/?$", account.SecondFactorOff.as_view(), name="second_factor_off"),
    re_path(r"^account/recovery-codes/?$", account.RecoveryCodes.as_view(), name="recovery_codes"),
    re_path(r"^account/sessions/end-others/?$", account.EndOtherSessions.as_view(), name="sessions_end_others"),
    re_path(rf"^account/sessions/(?P<session_id>{_ID})/end/?$", account.EndSession.as_view(), name="session_end"),
    re_path(rf"^account/tokens/(?P<slug>[a-z0-9-]{{1,63}})/(?P<token_id>{_ID})/revoke/?$", account.RevokeOwnToken.as_view(), name="own_token_revoke"),
    re_path(r"^platform/?$", platform.Tenants.as_view(), name="platform"),
    re_path(r"^platform/pools/?$", platform.Pools.as_view(), name="platform_pools"),
    re_path(r"^platform/routers/?$", platform.Routers.as_view(), name="platform_routers"),
    re_path(r"^platform/isolation/?$", platform.Isolation.as_view(), name="platform_isolation"),
    re_path(r"^platform/tenants/(?P<slug>[a-z0-9-]{1,63})/(?P<verb>suspend|resume)/?$", platform.Suspension.as_view(), name="platform_suspend"),
    _tenant("", overview.Overview.as_view(), "overview"),
    _tenant("/overview/replicas", overview.Residency.as_view(), "overview_replicas"),
    _tenant("/applied", overview.Applied.as_view(), "applied"),
    _tenant("/pools", pools.Pools.as_view(), "pools"),
    _tenant(rf"/replicas/(?P<replica_id>{_ID})", replicas.ReplicaPage.as_view(), "replica"),
    _tenant(rf"/replicas/(?P<replica_id>{_ID})/(?P<verb>drain|pause|resume)", pools.ReplicaVerb.as_view(), "replica_verb"),
    _tenant("/endpoints", endpoints.Endpoints.as_view(), "endpoints"),
    _tenant(rf"/endpoints/(?P<endpoint_id>{_ID})", endpoints.EndpointPage.as_view(), "endpoint"),
    _tenant(rf"/endpoints/(?P<endpoint_id>{_ID})/rotate-epoch", isolation.RotateEpoch.as_view(), "endpoint_rotate"),
    _tenant(rf"/endpoints/(?P<endpoint_id>{_ID})/trial", trials.TryPolicy.as_view(), "endpoint_try"),
    _tenant(rf"/endpoints/(?P<endpoint_id>{_ID})/promote", trials.Promote.as_view(), "endpoint_promote"),
    _tenant(rf"/endpoints/(?P<endpoint_id>{_ID})/rollback", trials.RollBack.as_view(), "endpoint_rollback"),
    _tenant(rf"/endpoints/(?P<endpoint_id>{_ID})/capture", captures.SwitchOn.as_view(), "endpoint_capture"),
    _tenant(rf"/endpoints/(?P<endpoint_id>{_ID})/capture/off", captures.SwitchOff.as_view(), "endpoint_capture_off"),
    _tenant(rf"/endpoints/(?P<endpoint_id>{_ID})/capture/delete", captures.Delete.as_view(), "endpoint_capture_delete"),
    _tenant(rf"/endpoints/(?P<endpoint_id>{_ID})/capture/export", captures.Export.as_view(), "endpoint_capture_export"),
    _tenant(rf"/endpoints/(?P<endpoint_id>{_ID})/dry-run", trials.DryRun.as_view(), "endpoint_dry_run"),
    _tenant("/policies", policies.Policies.as_view(), "policies"),
    _tenant("/policies/new/(?P<kind>routing|slo)", policies.NewPolicy.as_view(), "policy_new"),
    _tenant("/policies/check/(?P<kind>routing|slo)", policies.CheckPolicy.as_view(), "policy_check"),
    _tenant(rf"/policies/(?P<policy_id>{_ID})", policies.PolicyPage.as_view(), "policy"),
    _tenant(rf"/policies/(?P<policy_id>{_ID})/edit", policies.EditPolicy.as_view(), "policy_edit"),
    _tenant("/isolation", isolation.Isolation.as_view(), "isolation"),
    _tenant(rf"/isolation/audits/(?P<run_id>{_ID})", isolation.AuditRunPage.as_view(), "audit_run"),
    _tenant(rf"/isolation/audits/(?P<run_id>{_ID})/report", isolation.AuditReport.as_view(), "audit_report"),
    _tenant("/reconciliation", reconciliation.Reconciliation.as_view(), "reconciliation"),
    _tenant("/alerts", alerts.Alerts.as_view(), "alerts"),
    _tenant(rf"/alerts/webhooks/(?P<webhook_id>{_ID})/test", alerts.WebhookTest.as_view(), "webhook_test"),
    _tenant("/usage", usage.UsagePage.as_view(), "usage"),
    _tenant("/usage/export", usage.UsageExport.as_view(), "usage_export"),
    _tenant("/quotas", quotas.Quotas.as_view(), "quotas"),
    _tenant(rf"/quotas/(?P<quota_id>{_ID})/remove", quotas.RemoveQuota.as_view(), "quota_remove"),
    _tenant("/keys", keys.Keys.as_view(), "keys"),
    _tenant("/keys/new", keys.IssueKey.as_view(), "key_issue"),
    _tenant(rf"/keys/(?P<key_id>{_ID})/revoke", keys.RevokeKey.as_view(), "key_revoke"),
    _tenant("/causes", causes.CausesPage.as_view(), "causes"),
    _tenant("/decisions", decisions.Decisions.as_view(), "decisions"),
    _tenant(rf"/decisions/(?P<decision_id>{_ID})", decisions.DecisionPage.as_view(), "decision"),
    _tenant("/audit", audit.AuditLog.as_view(), "audit"),
    _tenant("/members", members.Members.as_view(), "members"),
    _tenant("/members/invite", members.Invite.as_view(), "member_invite"),
    _tenant("/members/second-factor", members.RequireSecondFactor.as_view(), "require_second_factor"),
    _tenant(rf"/members/(?P<member_id>{_ID})/role", members.ChangeRole.as_view(), "member_role"),
    _tenant(rf"/members/(?P<member_id>{_ID})/remove", members.RemoveMember.as_view(), "member_remove"),
    _tenant(rf"/members/invitations/(?P<invitation_id>{_ID})/revoke", members.RevokeInvitation.as_view(), "invitation_revoke"),
]
