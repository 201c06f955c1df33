"""What the console itself keeps: counters of sign-in attempts. It holds no tenant's rows and no e-mail address."""

from __future__ import annotations

from django.db import models


class SignInBucket(models.Model):
    """Attempts to sign in within one window, for one account or one network peer. ``key`` is an HMAC, so the table names nobody."""

    key = models.BinaryField(primary_key=True, max_length=32)
    attempts = models.IntegerField()
    window_started_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return bytes(self.key).hex()
