"""The control plane as a WSGI application (console and API)."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings.django")

from django.conf import settings
from django.core.wsgi import get_wsgi_application

from settings.env import EnvError

if not settings.SECRET_KEY_IS_SET:
    raise EnvError("SALTROUTE_SECRET_KEY_FILE is not set: sessions could be forged")
if settings.ROOT:
    raise EnvError("SALTROUTE_ROOT or SALTROUTE_ROOT_KEY_FILE is set: the web holds no root key, only routers and the worker of the queue 'keys' do")
if any(len(key) != 32 for key in settings.SIGN_IN_KEYS):
    raise EnvError("SALTROUTE_SIGN_IN_KEY_FILES: a sign-in key has 32 bytes")

application = get_wsgi_application()
