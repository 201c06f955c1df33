"""Every URL of the control plane."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [
    path("api/", include("routing.api.urls")),
    path("", include("console.urls")),
]
