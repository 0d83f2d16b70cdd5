"""Places that a configuration names by path or URL, and the passwords that may stand in them.

A password reaches the server and nothing else: what is printed goes through `redacted`, what is written down
through `without_password`.
"""

from __future__ import annotations

import re
from typing import Literal

StudyKind = Literal["journal", "postgresql"]
JOURNAL_PREFIX = "journal:"
POSTGRES_SCHEMES = ("postgresql", "postgresql+psycopg")

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*)://")
# like SQLAlchemy: a password ends at the first @; a further @ before the path can only be part of a raw password
_USER_PASSWORD = re.compile(r"(?P<user>[A-Za-z][\w+.-]*://[^:/?#@]*):[^@]*@(?:[^/?#@]*@)*", re.DOTALL)
_QUERY_PASSWORD = re.compile(r"(?P<name>[?&](?:ssl)?password=)[^&\s'\"]*", re.IGNORECASE)


def redacted(text: str) -> str:
    """The text with the password of every URL in it as three stars."""
    text = _USER_PASSWORD.sub(r"\g<user>:***@", text)
    return _QUERY_PASSWORD.sub(r"\g<name>***", text)


def without_password(url: str) -> str:
    """The same place without its password: what the driver finds elsewhere (PGPASSWORD, .pgpass) has to do."""
    place, mark, query = _USER_PASSWORD.sub(r"\g<user>@", url).partition("?")
    kept = [part for part in query.split("&") if not _QUERY_PASSWORD.match(f"&{part}")]
    return place + mark + "&".join(kept) if kept else place


def has_password(url: str) -> bool:
    return without_password(url) != url


def study_location(text: str) -> tuple[StudyKind, str]:
    """Kind and place of a study's storage: `PATH` or `journal:PATH`, or a `postgresql://` URL.

    Raises ValueError naming what is known, with the password left out.
    """
    found = _SCHEME.match(text)
    if found is None:
        path = text.removeprefix(JOURNAL_PREFIX)
        if not path.strip():
            raise ValueError("a journal needs a path: journal:PATH")
        return "journal", path
    if found["scheme"] not in POSTGRES_SCHEMES:
        raise ValueError(
            f"a study is stored in a file (PATH or journal:PATH) or at postgresql://USER@HOST/DATABASE, got "
            f"'{redacted(text)}'"
        )
    return "postgresql", text
