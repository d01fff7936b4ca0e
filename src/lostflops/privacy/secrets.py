"""What looks like a secret: in command lines, where names tell, and in any text, where only the value can."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

REMOVED = "<removed>"

# Of a flag or a variable. 'keys' and 'tokens' count things, in this trade; 'key' and 'token' may open them.
NAME = re.compile(
    r"(?i)(?:token(?!s|i)|(?<!mon)(?<!tur)key(?!s|word|board|frame)|secret|passw(?:or)?d|passphrase|credential"
    r"|auth(?!or))"
)
PREFIXES = (
    "hf_", "sk-", "ghp_", "gho_", "ghs_", "ghu_", "github_pat_", "glpat-", "AKIA", "ASIA", "xoxa-", "xoxb-",
    "xoxp-", "xoxs-", "nvapi-", "npm_", "pypi-", "dop_v1_", "eyJhbGciOi",
)  # fmt: skip
# Behind an escape like '\\n', '\\u00fc' or two backslashes, in which no letter of a word may be seen.
ESCAPE = rb"(?<=\\[nrtbf])(?<!\\\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=\\\\)(?<!\\\\\\)"
_KNOWN = b"|".join(re.escape(p.encode()) for p in PREFIXES)
VALUE = re.compile(rb"(?:" + ESCAPE + rb"|(?<![A-Za-z0-9\\]))(?:" + _KNOWN + rb")[\w.+/=-]{8,}")
LOGIN = re.compile(rb"(?<=://)[^/@\s\"'\\]+:[^/@\s\"'\\]+(?=@)")
# Where a name says so in the middle of a text. Much is called a token or a key in this trade: what is short
# or a number is no secret.
# An escape is taken whole: half of it left over would break the text that it is in.
_OPENS = rb"(?:\\[bfnrt/\\]|\\u[0-9a-fA-F]{4}|\\?[\"']|\\(?![bfnrtu/\\])){0,4}"
_IS = rb"[\\\"']{0,4}\s{0,9}[=:]\s{0,9}" + _OPENS
_NO_NUMBER = rb"(?!\d+(?![\w.+/=-]))(?!<removed>)"
ASSIGNED = re.compile(
    rb"(?i)((?:api_?-?key|access_?-?key|secret(?:_?-?(?:access_?-?)?key)?|passw(?:or)?d|passphrase|credentials?)"
    + _IS
    + rb")"
    + _NO_NUMBER
    + rb"([\w.+/=~!@#$%^&*-]{4,})"
)
TOKEN = re.compile(rb"(?i)((?:[_-]token" + _IS + rb"|bearer\s+))" + _NO_NUMBER + rb"([\w.+/=~-]{12,})")
FLAG = re.compile(
    rb"(--[\w-]{0,64}(?:token(?![si])|key(?!s|word|board|frame)|secret|passw(?:or)?d|passphrase|credential)[\w-]*"
    rb"(?:=|[ \t]+))(?!-)" + _NO_NUMBER + rb"([\w.+/=~!@#$%^&*-]{4,})"
)
ASSIGNING = tuple(
    b"api_key api-key apikey access_key access-key accesskey secret passw passphrase _token -token bearer "
    b"--key -key "
    b"credential".split()
)
LONG, RANDOM = 32, 4.2  # characters, and bits of entropy in each


def without_secrets(words: Sequence[str]) -> list[str]:
    """A command line with what looks like a secret taken out."""
    kept: list[str] = []
    hide = False
    for word in words:
        name, equals, value = word.partition("=")
        if hide and not word.startswith("-"):
            kept.append(REMOVED)
        elif (equals and value and NAME.search(name)) or (equals and random(value)):
            kept.append(f"{name}={REMOVED}")
        elif random(word):
            kept.append(REMOVED)
        else:
            text = LOGIN.sub(REMOVED.encode(), word.encode(errors="surrogateescape"))
            kept.append(VALUE.sub(REMOVED.encode(), text).decode(errors="surrogateescape"))
        hide = word.startswith("-") and not equals and bool(NAME.search(word))
    return kept


def random(word: str) -> bool:
    """Whether a word is too long and too mixed to mean anything to a person."""
    if len(word) < LONG or not re.fullmatch(r"[A-Za-z0-9+=_-]+", word):
        return False
    if not (re.search("[a-z]", word) and re.search("[A-Z]", word) and re.search("[0-9]", word)):
        return False
    shares = [count / len(word) for count in Counter(word).values()]
    return -sum(share * math.log2(share) for share in shares) >= RANDOM
