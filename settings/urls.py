"""Every URL of the control plane."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [
    path("api/", include("routing.api.urls")),
    path("", include("console.urls")),
]

handler400 = "settings.errors.bad_request"
handler500 = "settings.errors.server_error"
