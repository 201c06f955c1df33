"""Django settings of the control plane, its Celery workers and its commands.

One file for every environment: what differs is read from the environment through :mod:`settings.env`, so nothing exists only in production.
The data plane never imports this module.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from settings import env

BASE_DIR = Path(__file__).resolve().parent.parent

_secret = env.optional_secret_file("SALTROUTE_SECRET_KEY_FILE")
# Commands such as makemigrations and `namespace explain` work without any secret; a server refuses to start without one (settings.wsgi).
SECRET_KEY = hashlib.sha256(_secret).hexdigest() if _secret else "unset: commands only"
SECRET_KEY_IS_SET = _secret is not None

DEBUG = env.flag("SALTROUTE_DEBUG", False)
ALLOWED_HOSTS = list(env.words("SALTROUTE_ALLOWED_HOSTS", ("localhost", "127.0.0.1", "[::1]")))
CSRF_TRUSTED_ORIGINS = list(env.words("SALTROUTE_TRUSTED_ORIGINS"))

INSTALLED_APPS = [
    # django.contrib.admin is absent on purpose: it would walk round the services and their audit log.
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "tenants.apps.TenantsConfig",
    "namespaces.apps.NamespacesConfig",
    "routing.apps.RoutingConfig",
    "console.apps.ConsoleConfig",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "console.middleware.ContentSecurityPolicy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "console.middleware.SessionActivity",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "settings.urls"
WSGI_APPLICATION = "settings.wsgi.application"
APPEND_SLASH = False  # a redirect would turn a POST into a GET; both spellings are routed instead

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]


def _database(url: str) -> dict[str, object]:
    """Turn a ``postgresql://`` URL into Django's dictionary. A unix socket is given as ``?host=/directory``.

    Source: libpq connection URIs; psycopg parses them, so our own code splits no URL.
    """
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(env.password_in(url, "DATABASE_PASSWORD_FILE"))
    known = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    options = {key: value for key, value in parts.items() if key not in known}
    database: dict[str, object] = {name: str(parts.get(key) or "") for key, name in known.items()}
    return {
        **database,
        "ENGINE": "django.db.backends.postgresql",
        "OPTIONS": {**options, "connect_timeout": 5},
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "ATOMIC_REQUESTS": False,  # the tenant scope opens the transaction; see tenants.scoping
        "DISABLE_SERVER_SIDE_CURSORS": True,  # works behind a pooler in transaction mode
    }


DATABASE_URL = env.text("DATABASE_URL", "postgresql://saltroute_app@localhost/saltroute")
DATABASES = {"default": _database(DATABASE_URL)}

VALKEY_URL = env.password_in(env.text("VALKEY_URL", "redis://localhost:6379/0"), "VALKEY_PASSWORD_FILE")

AUTH_USER_MODEL = "tenants.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "/login"
LOGIN_REDIRECT_URL = "/"
HTTPS = env.flag("SALTROUTE_HTTPS", False)  # people reach the console over TLS; it ends at a proxy before us
SESSION_ENGINE = "tenants.sessions"
# The prefix makes browsers refuse the cookie from anywhere but this very host, over TLS.
SESSION_COOKIE_NAME = "__Host-sessionid" if HTTPS else "sessionid"
CSRF_COOKIE_NAME = "__Host-csrftoken" if HTTPS else "csrftoken"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"  # Strict would lose the session of whoever follows a link from a chat or a mail
CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SESSION_COOKIE_AGE = env.integer("SALTROUTE_SESSION_S", 12 * 3600, low=60, high=30 * 86400)  # life of a session, however busy
SESSION_IDLE_S = env.integer(
    "SALTROUTE_SESSION_IDLE_S", 3600, low=60, high=30 * 86400
)  # without a page asked for; pages that refresh themselves do not count
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
SECURE_HSTS_SECONDS = env.integer("SALTROUTE_HSTS_S", 365 * 86400) if HTTPS else 0
SILENCED_SYSTEM_CHECKS = [
    "security.W005",  # whether other hosts below this name speak TLS is not ours to promise
    "security.W021",  # nor whether browsers should ship with that promise
    "security.W008",  # the proxy that ends TLS redirects; we see plain HTTP from it alone
]
PASSWORD_RESET_TIMEOUT = env.integer("SALTROUTE_RESET_S", 3600, low=60, high=86400)  # life of a mailed link
INVITATION_DAYS = env.integer("SALTROUTE_INVITATION_DAYS", 7, low=1, high=90)

# Second factors: 32-byte keys that seal their secrets at rest, current first. The web alone holds them; they open nothing else.
SIGN_IN_KEYS = env.secret_files("SALTROUTE_SIGN_IN_KEY_FILES")
OPERATORS_SECOND_FACTOR = env.flag("SALTROUTE_OPERATORS_SECOND_FACTOR", False)  # platform operators must have one

# Mail: a server, or a directory into which each mail is written as a file, or none. Read by the worker that sends; the web asks whether it is set.
CONSOLE_URL = env.text("SALTROUTE_CONSOLE_URL", f"http://127.0.0.1:{env.integer('CONTROL_PORT', 8000)}")
if HTTPS and CONSOLE_URL.startswith("https://"):
    CSRF_TRUSTED_ORIGINS.append("https://" + CONSOLE_URL.removeprefix("https://").split("/", 1)[0])  # forms come from there; we see plain HTTP
EMAIL_HOST = env.text("SALTROUTE_SMTP_HOST", "") or "localhost"
EMAIL_PORT = env.integer("SALTROUTE_SMTP_PORT", 587, low=1, high=65535)
EMAIL_HOST_USER = env.text("SALTROUTE_SMTP_USER", "")
EMAIL_HOST_PASSWORD = (env.optional_secret_file("SALTROUTE_SMTP_PASSWORD_FILE") or b"").decode().strip()
EMAIL_USE_TLS = env.flag("SALTROUTE_SMTP_STARTTLS", True)
EMAIL_TIMEOUT = env.integer("SALTROUTE_SMTP_TIMEOUT_S", 5, low=1, high=60)
EMAIL_FILE_PATH = env.text("SALTROUTE_MAIL_DIR", "") or None
MAIL_IS_SET = bool(EMAIL_FILE_PATH or env.text("SALTROUTE_SMTP_HOST", ""))
EMAIL_BACKEND = f"django.core.mail.backends.{'filebased' if EMAIL_FILE_PATH else 'smtp'}.EmailBackend"
DEFAULT_FROM_EMAIL = env.text("SALTROUTE_MAIL_FROM", "saltroute@localhost")

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATA_UPLOAD_MAX_MEMORY_SIZE = 32 * 1024 * 1024  # bytes; a tokenizer.json can be 17 MB
# What is sent with a form (a trace, which may be text) is never written to a disk; what is larger than this is as if it were not there.
FILE_UPLOAD_HANDLERS = ["django.core.files.uploadhandler.MemoryFileUploadHandler"]
FILE_UPLOAD_MAX_MEMORY_SIZE = 65 * 1024 * 1024  # bytes of the whole form; services.traces.files bounds the trace itself

STATIC_URL = "/static/"
STATIC_ROOT = env.text("SALTROUTE_STATIC_ROOT", "") or None  # only for collectstatic; a missing directory would be a warning at every start
WHITENOISE_USE_FINDERS = True  # static files are few and come from packages, so no collect step is needed

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "tenants.api.authentication.ControlTokenAuthentication",
        "tenants.api.authentication.ConsoleSession",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "tenants.api.errors.handle",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Saltroute control API",
    "DESCRIPTION": "Tenants, keys, scopes, models, pools, endpoints, policies, decisions.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1/",
    "POSTPROCESSING_HOOKS": [],  # the default one renames enums, and expects each to state its type; our structs name theirs
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_AUTHENTICATION": [],
}

# Celery: JSON only; redelivery after a lost worker within seconds, not the library's default of about 100 s.
CELERY_BROKER_URL = env.broker_url(VALKEY_URL)
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": env.integer("CELERY_VISIBILITY_TIMEOUT_S", 120, low=1),
    "unacked_restore_interval": 2,
    "unacked_restore_throttle": 1,
    "global_keyprefix": "celery:",
    "socket_connect_timeout": 0.2,
    "retry_on_timeout": False,
    "max_retries": 0,
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_SERIALIZER = "json"
CELERY_RESULT_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_DEFAULT_QUEUE = "bulk"
CELERY_TASK_ROUTES = {
    "routing.publish*": {"queue": "publish"},
    "routing.sweep*": {"queue": "publish"},
    "namespaces.keys*": {"queue": "keys"},
    "routing.audit*": {"queue": "audit"},
    "routing.plan_audits": {"queue": "bulk"},
    "routing.note_key_use": {"queue": "bulk"},
    "routing.reconcile*": {"queue": "bulk"},
    "routing.alerts*": {"queue": "bulk"},
    "routing.webhooks*": {"queue": "keys"},
    "routing.tend_records": {"queue": "bulk"},
    "routing.keep_partitions": {"queue": "bulk"},
    "routing.trace*": {"queue": "bulk"},
    "routing.correct_quotas": {"queue": "bulk"},
    "tenants.mail*": {"queue": "bulk"},
    "tenants.sign_ins*": {"queue": "bulk"},
}
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BEAT_SCHEDULE = {
    "publish-sweep": {"task": "routing.sweep_publications", "schedule": 5.0},
    "isolation-sweep": {"task": "routing.sweep_isolation", "schedule": 2.0},
    "audit-plan": {"task": "routing.plan_audits", "schedule": 15.0},
    "key-use": {"task": "routing.note_key_use", "schedule": 30.0},
    "reconciliation": {"task": "routing.reconcile", "schedule": 60.0},
    "alerts": {"task": "routing.alerts_sweep", "schedule": 60.0},
    "webhooks": {"task": "routing.webhooks_sweep", "schedule": 10.0},
    "mail": {"task": "tenants.mail_sweep", "schedule": 3.0},
    "sign-ins": {"task": "tenants.sign_ins_sweep", "schedule": 60.0},
    "records-tend": {"task": "routing.tend_records", "schedule": 60.0},
    "quotas-correct": {"task": "routing.correct_quotas", "schedule": 120.0},
    "records-partitions": {"task": "routing.keep_partitions", "schedule": 3600.0},
    "trace-jobs": {"task": "routing.trace_jobs_sweep", "schedule": 15.0},
    "keys-sweep": {"task": "namespaces.keys_provision_missing", "schedule": 10.0},
    "keys-operations": {"task": "namespaces.keys_operations", "schedule": 5.0},
    "keys-destroy": {"task": "namespaces.keys_destroy_expired", "schedule": 3600.0},
}
CELERY_BEAT_SCHEDULE_FILENAME = env.text("CELERY_BEAT_SCHEDULE_FILE", "/tmp/saltroute-beat")  # noqa: S108 - a schedule, no secret; the launcher sets its own path

# Ranges on which replicas may live although they are loopback or private; empty in production, the demo names 127.0.0.0/8.
ALLOWED_RANGES = env.words("SALTROUTE_ALLOWED_RANGES")
# Inner ranges to which webhooks may be sent. Never those of replicas by themselves: a path of the tenant's choice there would be an engine's.
WEBHOOK_RANGES = env.words("SALTROUTE_WEBHOOK_RANGES")
WEBHOOKS_HTTP = env.flag("SALTROUTE_WEBHOOKS_HTTP")  # webhooks may be plain HTTP
SEAL_PUBLIC_KEY = env.optional_secret_file("SALTROUTE_SEAL_PUBLIC_KEY_FILE")
PUBLISH_KEY = env.optional_secret_file("SALTROUTE_PUBLISH_KEY_FILE")
ROOT = env.root_references()  # where root keys lie, current first; set for the `keys` worker alone. Opened at first use: namespaces.roots.held
RECORDS_DAYS = env.integer("SALTROUTE_RECORDS_DAYS", 30, low=1, high=3650)  # decisions are kept no longer; tenants may keep them shorter
CAPTURE_BUDGET_BYTES = env.integer("SALTROUTE_CAPTURE_BUDGET_BYTES", 1024**3, low=1024**2)  # of captured requests of one tenant, in PostgreSQL
INGEST_CLAIM_IDLE_S = env.seconds("INGEST_CLAIM_IDLE_S", 30.0)  # until a silent consumer's entries are taken over
RECORDS_KEY = env.optional_secret_file("SALTROUTE_RECORDS_KEY_FILE")  # set for ingest alone
# Where applications reach the router: shown in the console's snippets, used for nothing else.
ROUTER_PUBLIC_URL = env.text("SALTROUTE_ROUTER_URL", f"http://127.0.0.1:{env.integer('ROUTER_PORT', 8080)}")
# The console's playground: where its requests go, and how many answers one process carries at once. Each holds a thread; 0 switches sending off.
PLAYGROUND_ROUTER_URL = env.text("SALTROUTE_PLAYGROUND_ROUTER_URL", ROUTER_PUBLIC_URL)
PLAYGROUND_STREAMS = env.integer("SALTROUTE_PLAYGROUND_STREAMS", 3, high=64)
PUBLISH_TIMEOUT_S = env.seconds("SALTROUTE_PUBLISH_TIMEOUT_S", 0.2)

# Isolation audits. The evidence key signs their reports: held by the worker of the queue `audit` and by `manage.py audit`; its public half is public.
EVIDENCE_KEY = env.optional_secret_file("SALTROUTE_EVIDENCE_KEY_FILE")
EVIDENCE_PUBLIC_KEY = env.optional_secret_file("SALTROUTE_EVIDENCE_PUBLIC_KEY_FILE")
DOOR_URL = env.text("SALTROUTE_DOOR_URL", f"http://127.0.0.1:{env.integer('ROUTER_INTERNAL_PORT', 8081)}")  # a router's internal port
AUDIT_TOKENS_A_DAY = env.integer("SALTROUTE_AUDIT_TOKENS_A_DAY", 300_000)  # per replica; half a percent of its traffic where that is more

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    # Two lines for each of a dozen tasks a second would bury what matters; a task that fails is logged as an error.
    "loggers": {name: {"level": "WARNING"} for name in ("celery.worker.strategy", "celery.app.trace")},
}
