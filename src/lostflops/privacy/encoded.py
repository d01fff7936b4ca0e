"""Text in another spelling: escaped as JSON may escape any letter, percent-encoded as in URLs, in Base64.

What is spelled so holds what the text holds that it stands for.
"""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import quote_from_bytes, unquote_to_bytes

from lostflops.privacy.secrets import BOUND, without

# A letter as JSON may escape it, but for quotes and backslashes, which must stay escaped.
_LETTER = re.compile(rb"(\\+)u00((?!22|5[cC]|7[fF])[2-7][0-9a-fA-F])")
# An address whose slashes are escaped, and what escapes them.
_ADDRESS = re.compile(rb":\\+/\\+/[^\s\"'<>]*")
_SLASH = re.compile(rb"\\+/")
_MARKUP = re.compile(rb"[<>&]")
ESCAPED = re.compile(rb"[^\s\"]*\\u00[2-7][0-9a-fA-F][^\s\"]*")
# It does not begin with the letter of an escaped line break.
PERCENT = re.compile(rb"(?!(?<=\\)[nrt]%)[^\s\"'\\<>]*%[0-9a-fA-F]{2}[^\s\"'\\<>]*")
# 15 letters at least: less is no secret that tells itself. No name that is decoded by chance gives a text.
BASE64 = re.compile(rb"(?=[A-Za-z0-9+/]{20})" + BOUND + rb"[A-Za-z0-9+/]{20,}={0,2}(?![A-Za-z0-9+/=])")
_TEXT = re.compile(rb"[\t\n\r -~]+")
DEEP = 4  # how often something may be encoded again


def plainly(text: bytes) -> bytes:
    """The text with the slashes of its addresses as they are."""
    return _ADDRESS.sub(lambda match: _SLASH.sub(b"/", match[0]), text) if b":\\" in text else text


def unescaped(word: bytes) -> bytes:
    """What a word stands for whose letters are escaped as JSON may."""
    return _LETTER.sub(_unescaped, word)


def _unescaped(match: re.Match[bytes]) -> bytes:
    backslashes = len(match[1])
    if backslashes > 2 and backslashes % 2 == 0:
        return match[0]
    # Two are one that is escaped itself, as where JSON stands in a string of JSON.
    return b"\\" * (backslashes - 1 if backslashes % 2 else 0) + bytes([int(match[2], 16)])


def escaped(word: bytes) -> bytes:
    """The same without what would end the script that it may stand in."""
    return _MARKUP.sub(lambda match: b"\\u00%02x" % match[0][0], word)


def unquoted(word: bytes) -> bytes:
    """What a percent-encoded word stands for; the word itself where that is no text."""
    decoded = unquote_to_bytes(word)
    return word if b"\0" in decoded else decoded


def quoted(word: bytes) -> bytes:
    return quote_from_bytes(word).encode()


def hides(word: bytes, deep: int = DEEP) -> bool:
    """Whether a word in Base64 stands for a secret."""
    cut = word.rstrip(b"=")
    cut = cut[: len(cut) - (len(cut) % 4 == 1)]
    try:
        decoded = base64.b64decode(cut + b"=" * (-len(cut) % 4))
    except binascii.Error:
        return False
    if not _TEXT.fullmatch(decoded):
        return False
    if without(decoded, lambda _: b"") != decoded:
        return True
    return deep > 0 and any(hides(match[0], deep - 1) for match in BASE64.finditer(decoded))
