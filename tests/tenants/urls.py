"""This app's part of the control API alone, until routing includes it."""

from django.urls import include, path

urlpatterns = [path("api/v1/", include("tenants.api.urls"))]
