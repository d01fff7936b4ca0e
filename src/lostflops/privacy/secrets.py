"""What looks like a secret: in command lines, where names tell, and in any text, where only the value can.

The shapes of keys and tokens follow the detectors of detect-secrets (Yelp, Apache License 2.0, as is ours)
and what the vendors publish of their prefixes; where those match only a value's beginning, ours take all of
it.

What stands outside of a JSON string is never touched, so the file stays JSON.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

from lostflops.privacy.patterns.spellings import ONE_VALUE
from lostflops.privacy.patterns.values import (
    ESCAPE,
    LINE,
    NEW,
    NO_NUMBER,
    QUOTED,
    assignment,
    begins_as,
    flagged,
)

REMOVED = "<removed>"
Removed = Callable[[bytes], bytes]
Replace = Callable[["re.Pattern[bytes]", Callable[["re.Match[bytes]"], bytes], bytes], bytes]

# Of a flag or a variable. 'keys' and 'tokens' count things, in this trade; 'key' and 'token' may open them.
NAME = re.compile(
    r"(?i)(?:token(?!s|i)|(?<!mon)(?<!tur)key(?!s|word|board|frame)|secret|passw(?:or)?d|passphrase|passcode"
    r"|credential|auth(?!or(?!iz))|(?<![a-z])pwd|[_-]pass(?![a-z])|cookie|session_?id|webhook|(?<![a-z])dsn(?![a-z])"
    r"|connection_?string|(?<![a-z])sas(?![a-z]))"
)
# A value, whichever its vendor: what it begins with, which is looked for first, and what follows.
_SHAPES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        tuple(
            word.decode()
            for word in (
                b"api_org_ nvapi- npm_ pypi- sk- glsa_ lin_api_ figd_ xai- gsk_ pplx- tgp_v1_ wandb_v1_ "
                b"KGAT_ rubygems_ CLOJARS_ PMAK- NRAK- sntrys_ sntryu_ tskey- HRKU- ATATT3 ATCTT3 whsec_ "
                b"GOCSPX- dp.pt. dp.st. dckr_pat_ dckr_oat_ pscale_tkn_ pscale_pw_ LTAI AKID ops_eyJ "
                b"AGE-SECRET-KEY-1 dt0c01. shpat_ shpss_ shpca_ shppa_ lsv2_pt_ lsv2_sk_ pk-lf- csk- "
                b"ATBB pcsk_ fo1_ fm2_ sb_secret_ CCIPAT_ CCIPRJ_ NRII- NRJS-"
            ).split()
        ),
        r"[\w.+/=~-]{8,}",
    ),
    (("FlyV1 ",), r"[\w.+/=~-]{8,}"),
    (("hf_",), r"(?!transfer(?![a-z]))[\w.+/=~-]{8,}"),
    # Names of kernels begin like these too.
    (("secret_",), r"(?:[\w-]{1,40}_[0-9a-f]{16,32}(?:\.[\w.]+|(?<=[0-9a-f]{32})[\w.]*)|[A-Za-z0-9]{43})"),
    (("r8_", "sbp_", "glc_", "ntn_", "rpa_", "fw_", "nfp_", "nfc_", "vcp_", "vci_"),
     r"[A-Za-z0-9]{22,}[\w.+/=-]*"),
    (("pul-", "bkua_", "bkpat_"), r"[0-9a-f]{32,}"),
    (("SSWS ",), r"[\w-]{20,}"),
    (("ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat_"), r"[\w.-]{8,}"),
    (("glpat-", "gldt-", "glptt-", "glrt-", "glcbt-", "glft-", "glsoat-", "glimt-", "glagent-", "gloas-",
      "GR1348941"),
     r"[\w.-]{8,}"),
    (("AKIA", "ASIA", "ABIA", "ACCA", "AGPA", "AIDA", "AROA", "A3T"), r"[A-Z0-9]{12,}[\w.+/=-]*"),
    (("xoxa-", "xoxb-", "xoxe-", "xoxe.", "xoxo-", "xoxp-", "xoxr-", "xoxs-", "xapp-"), r"[\w.-]{8,}"),
    (("AIza",), r"[\w-]{20,}"),
    (("ya29.", "1//0"), r"[\w./-]{8,}"),
    (("sk_live_", "sk_test_", "rk_live_", "rk_test_", "pk_live_", "pk_test_"), r"\w{8,}"),
    (("SG.",), r"[\w-]{8,}(?:\.[\w-]+)*"),
    (("dapi", "dkea", "dose"), r"[0-9a-f]{28,}(?:-\d+)?"),
    (("SK", "AC"), r"[0-9a-f]{32}(?![0-9A-Za-z])"),
    (("key-", "pubkey-"), r"[0-9a-f]{32}(?![0-9A-Za-z])"),
    (("dop_v1_", "doo_v1_", "dor_v1_"), r"\w{8,}"),
    (("hvs.", "hvb.", "hvr."), r"[\w-]{16,}"),
    (("sq0atp-", "sq0csp-", "sq0idp-"), r"[\w-]{8,}"),
    (("eyJ",), r"[\w-]{8,}(?:\.[\w=-]+)*"),
    (("AKC",), r"[A-Za-z0-9]{10,}"),
    (("EAA",), r"[A-Za-z0-9]{40,}"),
    (("age1",), r"[a-z0-9]{40,}"),
    (("MUNGE:",), r"[\w+/=]{20,}:?"),
    (("SHA256:",), r"[\w+/]{43}=?"),
    (("|1|",), r"[\w+/]{27}=\|[\w+/]{27}="),
)  # fmt: skip
BOUND = rb"(?:" + ESCAPE + rb"|(?<=%[0-9a-fA-F]{2})|(?<![A-Za-z0-9\\]))"


@cache
def _shape(prefix: bytes, rest: bytes) -> re.Pattern[bytes]:
    """Finds a prefix where a word begins, and what follows.

    The prefix stands first and what is before it is looked at behind it: an expression that begins with a
    letter is found much faster.
    """
    begins = re.escape(prefix)
    before = (rb"(?<=\\[nrtbf]%s)|(?<=\\u[0-9a-fA-F]{4}%s)|(?<=\\\\%s)(?<!\\\\\\%s)"
              rb"|(?<=%%[0-9a-fA-F]{2}%s)|(?<![A-Za-z0-9\\]%s)") % ((begins,) * 6)  # fmt: skip
    return re.compile(begins + rb"(?:" + before + rb")" + rest)


SHAPES = [(prefix.encode(), rest.encode()) for prefixes, rest in _SHAPES for prefix in prefixes]
# Values without a beginning of their own: Twilio's, Telegram's, Discord's, Mailchimp's, Azure's, Terraform's.
_OTHERS: tuple[tuple[bytes, re.Pattern[bytes]], ...] = (
    (b":AA", re.compile(BOUND + rb"(?:bot)?\d{6,12}:AA[\w-]{32,}")),
    (b":APA91b", re.compile(BOUND + rb"[\w-]{11,}:APA91b[\w-]{20,}")),  # Firebase's
    (b"-us", re.compile(BOUND + rb"[0-9a-f]{32}-us\d{1,2}(?!\w)")),
    (b"8Q~", re.compile(BOUND + rb"[\w~.-]{3,20}?8Q~[\w~.-]{20,}")),
    (b".atlasv1.", re.compile(BOUND + rb"\w{10,}\.atlasv1\.[\w-]{20,}")),
    # Vault's of before 1.10.
    (
        b"s.",
        re.compile(
            rb"(?:"
            + ESCAPE
            + rb"|(?<![\w.\\]))s\.(?=[A-Za-z0-9]{0,23}\d)(?=[A-Za-z0-9]{0,23}[A-Z])(?=[A-Za-z0-9]{0,23}[a-z])"
            rb"[A-Za-z0-9]{24}(?![\w.(])"
        ),
    ),
    (
        b"/",
        re.compile(
            BOUND + rb"(?:hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)"
            rb"|(?:\w+\.)?discord(?:app)?\.com/api/(?:v\d+/)?webhooks"
            rb"|[\w.-]*webhook\.office\.com)/[^\s\"'\\<>]+"
        ),
    ),
    # What is stored in the place of a password.
    (
        b"$",
        re.compile(
            rb"(?:(?<![\w.\\-])[\w.-]{1,64}:)?\$(?:apr1|[156y]|2[abxy]|argon2id?|argon2d"
            rb"|scrypt)\$[\w./$=,+-]{12,}"
        ),
    ),
    (b".apps.googleusercontent.com", re.compile(BOUND + rb"[\w-]+\.apps\.googleusercontent\.com")),
)
_DISCORD = re.compile(BOUND + rb"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}")
# Keys and certificates as files hold them; without an end, as far as the text looks like one.
PEM = re.compile(
    rb"-----BEGIN (?:[^-]{1,40})-----(?:[^\"\\]|\\.){0,20000}?-----END [^-]{1,40}-----"
    rb"|-----BEGIN (?:[^-]{1,40})-----(?:" + LINE + rb"|[\w+/=: ,-])*",
    re.DOTALL,
)
# Of PuTTY, and of Ansible: all their lines.
_FILES = (
    (
        b"PuTTY-User-Key-File-",
        re.compile(
            rb"PuTTY-User-Key-File-(?:[^\"\\]|\\.){0,20000}?Private-(?:MAC|Hash): [0-9a-f]+", re.DOTALL
        ),
    ),
    (
        b"---- BEGIN SSH2 ",
        re.compile(
            rb"(?<!-)---- BEGIN SSH2 (?:[^\"\\]|\\.){0,20000}?---- END SSH2 [^-]{1,40} ----", re.DOTALL
        ),
    ),
    (b"$ANSIBLE_VAULT;", re.compile(rb"\$ANSIBLE_VAULT;[\w.;-]+(?:" + LINE + rb"[ \t]*[0-9a-f]+)+")),
)
# The machines of a known one stand before it.
SSH = re.compile(
    rb"(?:(?:"
    + ESCAPE
    + rb"|(?<![^\s\"]))(?=[^\s\"'\\=]{0,400}[\d.,\[])(?:[\w.,:\[\]-]|%\w){2,400}[ \t]{1,4})?"
    rb"(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-[\w-]+|sk-ssh-[\w@.-]+) +AAAA[\w+/=]+(?: [\w.+-]+@[\w.-]+)?"
)
# Who logs in at a server: all up to the last '@' of the word. A password may hold a slash.
LOGIN = re.compile(rb"(?<=//)(?:[^\s\"'\\/@<>]*:(?:[^\s\"'\\<>]|\\\\)*|[^\s\"'\\/@<>]+)(?=@)")

_ENDS = rb"(?i:[_-]?(?:base|hash|value|id|key|file|data|\d{1,3}))?"
STRONG_BEGINS = begins_as(
    "ap ac pr si en ma ss li sh st cl se de we co pa _p -p my pw cr ds _a ps sa mo wa \xe5\xaf \\\\ \\u"
    " ce tl js ph cs xs x- ke ot au"
)
# Names that leave no doubt.
STRONG = assignment(
    rb"(?i:(?:api|access|private|account|signing|encryption|master|ssh|licen[sc]e|shared[_-]?access"
    rb"|storage|client"
    rb"|service|deploy|webhook|consumer|application)[_-]?key(?!s)|secret(?!s)|passw(?:or)?ds?|passphrase"
    rb"|passcode"
    rb"|(?<![a-z])(?:my)?pwd(?!=/)|(?-i:_PASS|_PAT)|[_-]pass(?==)|credentials?|connection[_-]?string"
    rb"|(?<![a-z])dsn|(?:(?<=\\[nrt])|(?<![a-z]))_auth(?![a-z])|(?:(?<=\\[nrt])|(?<![a-z]))psk(?![a-z])"
    rb"|pre-?shared_?key"
    rb"|samlresponse|passwort|mot de passe|contrase(?:\xc3\xb1|\\{1,3}u00f1)a|wachtwoord|senha|parola"
    rb"|\xe5\xaf\x86\xe7\xa0\x81|\\{1,3}u5bc6\\{1,3}u7801|(?:client-certificate"
    rb"|certificate-authority)(?=-data)"
    rb"|(?:tls|ssl|server|client)\.key|session[_-]?(?:id|key)"
    rb"|j?sessionid|phpsessid|csrf\w{0,10}|xsrf\w{0,10}|x-amz-(?:signature|credential|security-token)"
    rb"|signature"
    rb"|(?<![a-z])sig|key-pair-id|webhook(?:[_-]?url)?|(?<![a-z])otp|authkey|x-auth-key|(?<=[\"'])auth(?=\\{0,3}[\"']))"
    + _ENDS,
    least=1,
    begins=STRONG_BEGINS,
    word=rb"(?![\[{(]|[|>][+-]?\d?[ \t]*(?:\\|[\r\n])|None\b|null\b|true\b|false\b)",
)
# Much is called a token in this trade: what is short or a number is no secret.
TOKEN = assignment(rb"(?i:token(?![a-z]))" + _ENDS, least=6, word=NO_NUMBER)
# All of a header, whatever it consists of.
HEADER = re.compile(
    rb"(?P<before>(?i:(?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]{0,20}(?:token|key|auth))"
    rb"(?:\\{0,3}[\"'])?[ \t]{0,9}[:=]"
    rb"[ \t]{0,9}+(?:\\{0,3}[\"'])?+(?:(?i:basic|bearer|digest|negotiate|token)[ \t]{1,9}+)?+)"
    + NEW
    + rb"(?P<pw>[^\"'\\\r\n]{4,4000})"
)
BEARER = re.compile(
    rb"(?P<before>(?i:bearer[ \t]{1,9}|basic[ \t]{1,9}(?=[\w.+/~-]*[\d=])))"
    + NEW + NO_NUMBER + rb"(?P<pw>[\w.+/=~-]{12,})"
)  # fmt: skip
FLAG = flagged(
    rb"[\w-]{0,64}(?:token(?![si])|key(?!s|word|board|frame)|secret|passw(?:or)?d|passphrase|pwd|-pass"
    rb"|credential|auth(?!or)"
    rb"|cookie|webhook|dsn)[\w-]*|pass",
    least=1,
    word=NO_NUMBER,
)
# Who logs in, and with what: `curl -u alice:x`.
WHO = flagged(rb"u|U|user|proxy-user", like=rb"(?=\$?\\{0,3}[\"']?[\w.@+-]{1,200}:(?!//)[^\s\"'\\:<])")
WHO_WORDS = (b"-u ", b"-u=", b'-u"', b"-u\\", b"-u'", b"-U", b"--user", b"--proxy-user")
_WORDS = rb"(?i:[\w:.-]{0,40}(?:passw(?:or)?d|passphrase|secret|token|api_?key|credentials?)[\w.-]{0,20})"
ELEMENT = re.compile(rb"(?P<before><" + _WORDS + rb">)" + NEW + rb"(?P<pw>[^<\s\"]{1,4000})(?=</)")
# `('PASSWORD', 'x')`: a pair, and no list of several.
PAIR = re.compile(
    rb"(?P<before>[(\[]\\{0,3}[\"']" + _WORDS + rb"\\{0,3}[\"'][ \t]{0,3},[ \t]{0,3}"
    rb"(?=\\{0,3}[\"'](?!\w*(?:_ids?|_type|_mask)\b)[^\"'\\\n]{6,4000}\\{0,3}[\"'][ \t]{0,3}[)\]]))"
    + NEW + QUOTED
)  # fmt: skip
# What stands indented below a name in YAML.
BLOCK = re.compile(
    rb"(?P<before>(?i:passw(?:or)?d|passphrase|secret|token|key)[\w-]{0,20}\\{0,3}[\"']?"
    rb":[ \t]{0,9}[|>][+-]?\d?[ \t]*" + LINE + rb"[ \t]+)" + NEW
    + rb"(?P<pw>[^\s\"\\]{1,4000}(?:" + LINE + rb"[ \t]+[^\s\"\\]{1,4000})*)"
)  # fmt: skip
_SAID = rb"\w{1,20}=(?:\\{0,3}\"[^\"\\]{0,400}\\{0,3}\"|[^\s,\"'\\]{1,400})"
DIGEST = re.compile(
    rb"(?P<before>(?i:digest)[ \t]{1,9})(?P<pw>" + _SAID + rb"(?:,[ \t]{0,9}" + _SAID + rb"){1,20})"
)
_RARE = ((b"digest", DIGEST), (b": |", BLOCK), (b": >", BLOCK), (b"</", ELEMENT))
ASSIGNING = (
    *b"key secret passw passphrase passcode pwd pass token bearer basic credential cookie dsn sess".split(),
    *b"authorization connection csrf xsrf signature sig webhook otp auth digest psk samlresponse".split(),
    *b'_pat= _pat" wachtwoord senha parola contrase certificate- \\u5bc6 \xe5\xaf\x86'.split(),
    b"mot de passe",
)
LONG, RANDOM = 32, 4.2  # characters, and bits of entropy in each


def without(text: bytes, removed: Removed, sub: Replace | None = None) -> bytes:
    """The text with what looks like a secret replaced by what `removed` gives for it.

    `sub` is what replaces the matches of a pattern.
    """
    sub = sub or _sub

    def whole(match: re.Match[bytes]) -> bytes:
        return removed(match[0])

    if b"-----BEGIN " in text:
        text = sub(PEM, whole, text)
    for word, pattern in _FILES:
        if word in text:
            text = sub(pattern, whole, text)
    if b" AAAA" in text:
        text = sub(SSH, whole, text)
    if b"//" in text:
        text = sub(LOGIN, whole, text)
    for prefix, rest in SHAPES:
        if prefix in text:
            text = sub(_shape(prefix, rest), whole, text)
    for word, pattern in _OTHERS:
        if word in text:
            text = sub(pattern, whole, text)
    if b"." in text:
        text = sub(_DISCORD, whole, text)
    if any(word in text for word in WHO_WORDS):
        text = sub(WHO, lambda match: replaced(match, removed), text)
    lower = text.lower()
    for word, pattern in ONE_VALUE:
        if word in lower:
            text = sub(pattern, lambda match: replaced(match, removed), text)
    if any(word in lower for word in ASSIGNING):
        rare = [pattern for word, pattern in _RARE if word in lower]
        for pattern in (*rare, PAIR, HEADER, FLAG, STRONG, TOKEN, BEARER):
            text = sub(pattern, lambda match: replaced(match, removed), text)
    return text


def _sub(pattern: re.Pattern[bytes], made: Callable[[re.Match[bytes]], bytes], text: bytes) -> bytes:
    return pattern.sub(made, text)


def replaced(match: re.Match[bytes], removed: Removed) -> bytes:
    """What an assignment becomes when `removed` replaces its value."""
    name = next(
        (n for n, value in match.groupdict().items() if n[0] in "qp" and n != "plain" and value), None
    )
    if name is None:
        return match[0]
    start, end = match.span(name)
    before = match.string[match.start() : start]
    return before + removed(match[name]) + match.string[end : match.end()]


def without_secrets(words: Sequence[str]) -> list[str]:
    """A command line with what looks like a secret taken out."""
    kept: list[str] = []
    hide = False
    for word in words:
        name, equals, value = word.partition("=")
        if hide and word.lower() in ("basic", "bearer", "digest", "token"):  # of a header: the value follows
            kept.append(word)
            continue
        if hide and not word.startswith("-"):
            kept.append(REMOVED)
        elif (equals and value and NAME.search(name)) or (equals and random(value)):
            kept.append(f"{name}={REMOVED}")
        elif random(word):
            kept.append(REMOVED)
        else:
            raw = word.encode(errors="surrogateescape")
            kept.append(without(raw, lambda _: REMOVED.encode()).decode(errors="surrogateescape"))
        opens = (word.startswith("-") and not equals) or word.endswith((":", "="))
        hide = opens and bool(NAME.search(word))
    return kept


def random(word: str) -> bool:
    """Whether a word is too long and too mixed to mean anything to a person."""
    if len(word) < LONG or not re.fullmatch(r"[A-Za-z0-9+=_-]+", word):
        return False
    if not (re.search("[a-z]", word) and re.search("[A-Z]", word) and re.search("[0-9]", word)):
        return False
    shares = [count / len(word) for count in Counter(word).values()]
    return -sum(share * math.log2(share) for share in shares) >= RANDOM
