"""Rules for names that people choose. Unicode is never normalised silently: what cannot be told apart is refused."""

from __future__ import annotations

import re
import unicodedata

from tenants.core.errors import Invalid

SALT_PREFIX = "sr1-"  # our own salts on the wire; engines publish extra keys untagged, so no adapter may look like one
SLUG_MAX = 63
NAME_MAX = 200
REASON_MAX = 500
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def slug(value: object, *, field: str) -> str:
    """Check a slug: lower-case letters, digits and inner hyphens, 1 to 63 characters.

    Raises:
        Invalid: anything else.
    """
    if not isinstance(value, str) or not _SLUG.fullmatch(value):
        raise Invalid("Use 1 to 63 lower-case letters, digits and inner hyphens.", field=field)
    return value


def label(value: object, *, field: str, maximum: int = NAME_MAX) -> str:
    """Check a free name: 1 to ``maximum`` printable characters in NFC, no white space at the ends.

    NFD text is refused rather than converted: two spellings of one name must not become two identities, nor one.

    Raises:
        Invalid: not text, empty, too long, control characters, lone surrogates, not NFC.
    """
    if not isinstance(value, str):
        raise Invalid("This must be text.", field=field)
    if not 1 <= len(value) <= maximum:
        raise Invalid(f"This must have 1 to {maximum} characters.", field=field)
    if value != value.strip():
        raise Invalid("White space at the ends is not allowed.", field=field)
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for character in value):
        raise Invalid("Control, format, private or unassigned characters are not allowed.", field=field)
    if unicodedata.normalize("NFC", value) != value:
        raise Invalid("Use the composed (NFC) form of Unicode text.", field=field)
    return value


def reason(value: object, *, field: str = "reason") -> str:
    """Check a reason that need not be given: empty, or a label. It is read in the audit log, where nothing may look like another line or word.

    Raises:
        Invalid: as :func:`label`, longer than ``REASON_MAX`` characters.
    """
    return "" if value == "" else label(value, field=field, maximum=REASON_MAX)


def model_name(value: object, *, field: str) -> str:
    """Check a name that clients send as ``model`` or that an engine serves: a label that may hold slashes and colons.

    Raises:
        Invalid: as :func:`label`, or it begins like one of our cache salts.
    """
    name = label(value, field=field)
    if name.lower().startswith(SALT_PREFIX):
        raise Invalid(f"Names that begin with {SALT_PREFIX!r} are reserved: they could be taken for a cache salt.", field=field)
    return name
