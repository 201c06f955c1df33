"""Every URL of the control plane."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [
    path("api/", include("routing.api.urls")),
    path("", include("console.urls")),
]

handler400 = "routing.api.unanswered.bad_request"
handler500 = "routing.api.unanswered.server_error"
