"""Takes out of any text what could identify a person or a machine, and keeps count of it.

Works on bytes and on nothing but the bytes: traces hold broken JSON, and what breaks a parser must not save a
secret. The same thing gets the same new name throughout, so what was different stays different and what was
the same stays the same; every number stays as it was written.
"""

from __future__ import annotations

import re
import secrets as random
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import accumulate
from os.path import commonprefix

from lostflops.privacy import encoded, secrets, suspects
from lostflops.privacy.patterns import named, values
from lostflops.privacy.suspects import Suspects, parted, without_overlap

REMOVED = secrets.REMOVED.encode()
SECRETS, HOSTS, USERS, PATHS = "secrets", "hosts", "users", "paths"
ADDRESSES, HARDWARE, JOBS, ENVIRONMENT = "addresses", "hardware", "jobs", "environment"
OUTPUT = "output"
KINDS = {
    SECRETS: "what looks like a token, a key or a password",
    ENVIRONMENT: "values of environment variables",
    OUTPUT: "what the job printed, and files that were captured",
    HOSTS: "names of machines",
    USERS: "names of people",
    PATHS: "folders",
    ADDRESSES: "network addresses, e-mail addresses and servers",
    HARDWARE: "serial numbers of devices",
    JOBS: "names of jobs, as a cluster gives them",
}

_AFTER = rb"(?:" + values.ESCAPE + rb"|(?<![A-Za-z0-9\\]))"
_NAME = rb"(?:\\u[0-9a-fA-F]{4}|[^\s/\"'\\:;,()<>|*?\[\]{}=&#\x00-\x1f])+"
# What may stand before a path without a blank: an escaped line break, a compiler's flag, 'file://', dots.
# It is looked for behind the slash, because an expression that begins with a letter is found much faster.
_BEHIND = rb"(?:(?<![\w/~.]/)|(?<=\\[nrt]/)|(?<=\\u[0-9a-fA-F]{4}/)|(?<=-[IL]/)|(?<=:///)|(?<=[\s\"'(=:]\./)|(?<=[\s\"'(=:]\.\./)|(?<=\\[nrt]\.\./)|(?<=^\.\./))"
_PATH = re.compile(rb"/" + _BEHIND + _NAME + rb"(?:/" + _NAME + rb")*/?")
# A Python frame: its file may have blanks in its name.
_FRAMES = [re.compile(start + rb"[^\"\\\n]{1,1000}?(?=\(\d+\): )") for start in (rb"\"/", rb"\"\.\./")]
# All of a string that is a place below a home, which may have blanks.
_HOME = re.compile(rb"(?<=\")/(?:home|Users|Volumes)/[^\"\\:;,\n]+(?=\\{0,3}\")")
# As Windows parts folders: once, escaped, and escaped twice; never half of an escaped quote.
_BACK = rb"(?:(?:\\\\){1,8}|\\(?![\"u\\])|/)"
# A folder's name may have blanks where another folder follows.
_WINDOWS_NAME = rb"[^\s\"\\:*?<>|/]+"
_WINDOWS = re.compile(
    rb"(?:" + named.START + rb"|(?<=\?\\))[A-Za-z]:" + _BACK
    + rb"(?:" + _WINDOWS_NAME + rb"(?: " + _WINDOWS_NAME + rb"){0,3}" + _BACK + rb")+[^\s\"\\:*?<>|/()]*"
)  # fmt: skip
# A folder of another machine, written as Windows and some file systems take it.
_ELSEWHERE = re.compile(rb"//(?:(?<![\w:/\\]//)|(?<=\\[nrt]//))[A-Za-z][\w.-]*(?:/" + _NAME + rb"){2,}")
_COPIED = re.compile(
    rb"(?:" + values.ESCAPE + rb"|(?<![\w.+\\-]))([A-Za-z_][\w.+-]{0,200})@([A-Za-z0-9][\w.-]{0,250}):"
    rb"((?:[~/]|[\w.-]{1,200}/)[^\s\"'\\]*)"
)
_INSTALLED = re.compile(rb"^.*[\\/](?:site-packages|dist-packages|python\d+\.\d+t?)[\\/]+")
_FILE = re.compile(rb"[^/]+\.[A-Za-z]\w{0,7}(?:\.\d+)*")
_PROGRAM = re.compile(rb"(?:python[\d.]*|torchrun|accelerate|deepspeed|mpirun|srun|nsys|bash|sh)")
# First folders of a path. A name like '/layer1/attention' is no path unless something else says so.
_ROOTS = set(
    b"home users root tmp var opt usr mnt data datasets scratch work workspace workspaces nfs gpfs lustre "
    b"fsx efs proj projects project share shared export exports srv media run dev proc sys etc lib lib64 bin "
    b"sbin app apps code src net storage vol volumes cluster global pfs beegfs ceph private content kaggle "
    b"local nvme ssd raid group groups depot orcd iopsstor capstor leonardo lus ptmp "
    b"gscratch pscratch blue orange red cfs fs vast weka wekafs flash bulk archive stornext panfs isilon nas "
    b"san tank zfs lfs hdd hpc hpcwork rwthfs cephyr mimer nobackup lab labs staff students faculty rds "
    b"bigdata disk disks drive efs ebs mounts workspaces dbfs gdrive teamspace studio notebooks "
    b"gdata cvmfs afs u ccs".split()
)
_PEOPLE = re.compile(rb"[\\/](?:home|Users)[\\/]+([^\s/\"'\\:;,()<>]+)")
_STRING = rb"\"((?:[^\"\\]|\\.)*)\""
# A machine's whole name: at least three parts, the last one a network's.
_DOMAIN = re.compile(
    named.START + rb"(?<![\w.+-]@)(?<!\w-)(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.){2,}"
    rb"(?:com|org|edu|gov|local|internal|lan|corp|intra|intranet|cluster|home|arpa|example|localdomain"
    rb"|compute)"
    rb"(?![\w(]|\.\w|-)"
)
_DOMAINS = (b".com", b".org", b".edu", b".gov", b".local", b".internal", b".lan", b".corp", b".intra",
            b".cluster", b".home", b".arpa", b".example", b".compute")  # fmt: skip
# What we called something when we cleaned it before.
_MADE = re.compile(
    rb"(?:node-[0-9a-f]{4}-\d+|node-\d{4}|(?:user|server|address|mail|folder|GPU|MIG|DLA)-\d+|<removed>)"
)
_FOLDER_GIVEN = re.compile(
    rb"((?:--[\w-]*(?:dir|path|folder|root|file|ckpt|checkpoint|cache|home)"
    + named.FLAG_GIVEN
    + rb")|(?:(?:[A-Z]+_){0,4}"
    rb"(?:PWD|HOME|DIR|PATH|ROOT|TMPDIR|FOLDER|CACHE|ENV|PREFIX|WORKDIR|ASKPASS|COMMAND|WorkDir|Command"
    rb"|StdOut|StdErr)=" + named.QUOTE + rb"))(/" + _NAME + rb"(?:/" + _NAME + rb")*/?)"
)
_SHARE = re.compile(
    rb"(?:" + values.ESCAPE + rb"|(?<![\w\\:]))(?:\\\\){1,4}[A-Za-z][\w.-]+(?:" + _BACK + rb"[\w.$ -]+)+"
)
_HOST_KEY = re.compile(rb"(\"(?:\w*_)?(?:host_?name|node_?name|host)\"\s*:\s*)" + _STRING, re.IGNORECASE)
_USER_KEY = re.compile(
    rb"(\"(?:[\w.]*[_.])?(?:user_?name|user|owner|e?mail|login|account)\"\s*:\s*)" + _STRING, re.IGNORECASE
)
_JOB_KEY = re.compile(
    rb"(\"(?:(?:PT_PROFILER|tw|mast|slurm|k8s)_\w+|cluster)\"\s*:\s*)" + _STRING, re.IGNORECASE
)
# Looking for these is a hundred times faster than for the expressions, and most text has none of them.
_HOST_KEYS = (b'host"', b'hostname"', b'host_name"', b'nodename"', b'node_name"')
_USER_KEYS = (b'username"', b'user_name"', b'user"', b'owner"', b'mail"', b'login"', b'account"')
_JOB_KEYS = (b'"pt_profiler_', b'"tw_', b'"mast_', b'"slurm_', b'"k8s_', b'"cluster"')
_SERVER = re.compile(
    rb"(?<=://)((?:<removed>@)?)([A-Za-z0-9][\w.-]*|\[[0-9a-fA-F:.]+\])(:\d+)?([/?#][^\s\"'\\<>]*)?"
)
# A container's image in a registry of one's own.
_REGISTRIES = (b".amazonaws.com/", b"gcr.io/", b".pkg.dev/", b".azurecr.io/", b"ghcr.io/")
_IMAGE = re.compile(
    named.START + rb"(?:\d{6,20}\.dkr\.ecr\.[\w-]+\.amazonaws\.com|(?:[a-z]{2,9}\.)?gcr\.io|[\w-]+\.pkg\.dev"
    rb"|[\w-]+\.azurecr\.io|ghcr\.io)/[\w./-]+(?::[\w.-]+)?"
)
_AT = re.compile(rb"(?:@|%40)[\w-]+\.[A-Za-z]")
_MAIL = re.compile(
    rb"(?:" + values.ESCAPE + rb"|(?<![\w.+\\-]))[\w.+-]{1,200}(?:@|%40)[\w-]{1,64}(?:\.[A-Za-z][\w-]+)+"
)
_OCTET = rb"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_DOTS = re.compile(rb"\.\d{1,3}\.\d{1,3}\.\d")
_END = re.compile(rb",\s*\"|\n")
_NO_MORE = rb"(?!\w|\.\w)"
_IPV4 = re.compile(named.START + rb"(?:" + _OCTET + rb"\.){3}" + _OCTET + _NO_MORE)
# Within a name, where a version could stand too, only an address of a private net is told.
_PRIVATE = re.compile(
    rb"(?<=_)(?:10\.\d{1,3}|192\.168|172\.(?:1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}(?!\d|\.\w)"
)
_AS_A_HOST = re.compile(named.START + rb"ip(?:-\d{1,3}){4}(?![\w-])")
_COLONS = re.compile(suspects.COLONS, re.IGNORECASE)
_LINK = re.compile(
    named.START + rb"(?:(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}|(?:[0-9a-fA-F]{4}:){3,7}[0-9a-fA-F]{4}"
    rb"|(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|fe80:(?::[0-9a-fA-F]{1,4}){1,4}|::ffff:[0-9a-fA-F]{1,4}:[0-9a-fA-F]{1,4}"
    # Shortened: the first group is that of an address of the Internet or of a private net.
    rb"|(?:[23][0-9a-fA-F]{3}|f[cdef][0-9a-fA-F]{2})(?::[0-9a-fA-F]{1,4}){0,6}::(?:[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){0,6})?)"
    rb"(?![\w:])"
)
# The number of a network card in other ways of writing it. What has no letter is a date.
_DASHES = re.compile(rb"-[0-9a-fA-F]{2}-[0-9a-fA-F]{2}-|\.[0-9a-fA-F]{4}\.[0-9a-fA-F]{4}")
_CARD = re.compile(
    named.START + rb"(?=[0-9.-]{0,16}[a-fA-F])(?:(?:[0-9a-fA-F]{2}-){5}[0-9a-fA-F]{2}"
    rb"|(?=[a-fA-F.]{0,13}\d)[0-9a-fA-F]{4}(?:\.[0-9a-fA-F]{4}){2})(?![\w.-])"
)
_IDENTITIES = values.assignment(
    _AFTER + rb"(?i:(?:uuid|serial(?:[_ ]?(?:no|number))?|board[_ ]?(?:id|serial)|service[_ ]?tag))",
    least=8,
    word=rb"(?=[^\s\"'\\]{0,40}\d)",
)
_IDENTITY_WORDS = (b"uuid", b"serial", b"board", b"service")
_DEVICE = re.compile(named.START + rb"(GPU|MIG|DLA)-[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
# Shorter texts are looked into as they are.
SMALL = 2048
_APART = b"\n\0\n"
_OWN = (b"localhost", b"127.", b"0.0.0.0", b"::1")
# A name like these is told from a word; others are taken out only where a field says what they are.
_TELLING = re.compile(rb"[\d.-]")

Spelling = Callable[[bytes], bytes]


class Cleaner:
    """Text in, clean text out. `keep` names KINDS to leave alone, `also` words to take out everywhere.

    `node` is what every machine is called; without it each gets a name of its own.
    """

    def __init__(
        self, keep: Collection[str] = (), also: Collection[str] = (), node: Callable[[str], str] | None = None
    ) -> None:
        self.found: dict[str, Counter[bytes]] = {kind: Counter() for kind in KINDS}
        self._keep = frozenset(keep)
        self._node = node
        # Two recordings that are cleaned at different times must not seem to be of one machine.
        self._tag = random.token_hex(2)
        self._names: dict[str, dict[bytes, bytes]] = {kind: {} for kind in (*KINDS, "also")}
        self._made: set[bytes] = set()  # names that we gave
        self._words: re.Pattern[bytes] | None = None
        self._suspects = Suspects()
        # While several texts are looked into at once: what each holds, and which of them has the match.
        self._notes: list[list[tuple[str, bytes]]] | None = None
        self._at = 0
        for word in also:
            self._names["also"][word.encode()] = REMOVED
        self._learned()

    def learn(self, text: bytes) -> None:
        """Note the machines that a text names as such, so that they are known wherever they stand."""
        if _any(_HOST_KEYS, text.lower()):
            for match in _HOST_KEY.finditer(text):
                self.host(match[2])

    def host(self, name: bytes) -> bytes:
        """What a machine is called from now on."""
        known = self._names[HOSTS]
        if (
            name
            and name not in known
            and not self._is_made(name)
            and HOSTS not in self._keep
            and not name.startswith(_OWN)
        ):
            made = (
                f"node-{self._tag}-{len(known)}"
                if self._node is None
                else self._node(name.decode("utf8", "replace"))
            )
            known[name] = made.encode()
            self._made.add(known[name])
            short = name.split(b".")[0]
            if short != name and not short.isdigit():
                known.setdefault(short, known[name])
            self._learned()
        return known.get(name, name)

    def removed(self, kind: str, value: bytes) -> bytes:
        """Count a value and give what stands in its place."""
        if kind in self._keep or not value or self._is_made(value):
            return value
        self._note(kind, value)
        return REMOVED

    def _is_made(self, value: bytes) -> bool:
        """Whether it is what stands in the place of something that was taken out, now or before."""
        return value in self._made or _MADE.fullmatch(value) is not None

    def text(self, text: bytes) -> bytes:
        """The text without what identifies. Numbers outside of strings are never touched.

        Only what could hold something is looked into, and what is said often only once.
        """
        if len(text) < SMALL:
            return self.whole(text) if self._suspects.suspects(text) else text
        pieces = parted(text)
        runs: list[tuple[int, int]] = []
        words = None
        made = pieces.copy()
        while words != self._suspects.words:  # what is learned on the way may stand elsewhere too
            words = self._suspects.words
            new = without_overlap(self._suspects.runs(pieces), runs)
            runs += new
            texts = [b"".join(pieces[first:end]) for first, end in new]
            for (first, end), clean in zip(new, self._once_each(texts), strict=True):
                made[first:end] = [clean] + [b""] * (end - first - 1)
        return b"".join(made)

    def _once_each(self, texts: list[bytes]) -> list[bytes]:
        """Clean texts that stand apart, each only once; what it holds counts as often as it is there."""
        if not texts:
            return []
        answers = self._suspects.answers
        middle = Counter(texts[1:-1])
        new = [text for text in middle if text not in answers]
        order = [*texts[:1], *new, *texts[1:][-1:]]
        self._notes = [[] for _ in order]
        try:
            clean = self.whole(_APART.join(order)).split(_APART)
            notes = self._notes
        finally:
            self._notes = None
        assert len(clean) == len(order), "a match went beyond its piece"
        ends = {0, len(order) - 1}
        answers.update((text, (clean[n], notes[n])) for n, text in enumerate(order) if n not in ends)
        for n in ends:
            self._count(notes[n], 1)
        for text, times in middle.items():
            self._count(answers[text][1], times)
        return [*clean[:1], *(answers[t][0] for t in texts[1:-1]), *clean[1:][-1:]]

    def _count(self, notes: list[tuple[str, bytes]], times: int) -> None:
        for kind, value in notes:
            self.found[kind][value] += times

    def _note(self, kind: str, value: bytes) -> None:
        if self._notes is None:
            self.found[kind][value] += 1
        else:
            self._notes[self._at].append((kind, value))

    def _sub(
        self, pattern: re.Pattern[bytes], made: Callable[[re.Match[bytes]], bytes], text: bytes
    ) -> bytes:
        if self._notes is None:
            return pattern.sub(made, text)
        marks: list[int] = []

        def placed(match: re.Match[bytes]) -> bytes:
            if not marks:  # where each text begins: behind the zero that ends the one before
                marks.extend(accumulate(len(part) + 1 for part in text.split(b"\0")))
            self._at = bisect(marks, match.start())
            return made(match)

        return pattern.sub(placed, text)

    def whole(self, text: bytes) -> bytes:
        """The same as `text`, but every expression looks at all of it: slow."""
        text = encoded.plainly(text)
        if SECRETS not in self._keep:
            text = secrets.without(text, partial(self.removed, SECRETS), self._sub)
        if b"://" in text:
            text = self._sub(_SERVER, self._server, text)
        if ADDRESSES not in self._keep and _any(_REGISTRIES, text):
            text = self._sub(_IMAGE, lambda m: self._named(ADDRESSES, m[0], "server"), text)
        text = self._without_variables(text)
        lower = text.lower()
        if _any(_HOST_KEYS, lower):
            text = self._sub(_HOST_KEY, lambda m: m[1] + b'"' + self._host(m[2]) + b'"', text)
        if _any(_USER_KEYS, lower):
            text = self._sub(_USER_KEY, lambda m: m[1] + b'"' + self._named(USERS, m[2], "user") + b'"', text)
        if _any(_JOB_KEYS, lower):
            text = self._sub(_JOB_KEY, lambda m: m[1] + b'"' + self.removed(JOBS, m[2]) + b'"', text)
        if PATHS not in self._keep:
            text = self._without_paths(text)
        if self._words is not None:
            text = self._sub(self._words, self._word, text)
        if ADDRESSES not in self._keep:
            text = self._without_addresses(text)
        if HARDWARE not in self._keep and _any((b"GPU-", b"MIG-", b"DLA-"), text):
            text = self._sub(_DEVICE, lambda m: self._named(HARDWARE, m[0], m[1].decode()), text)
        if HARDWARE not in self._keep and _any(_IDENTITY_WORDS, lower):
            text = self._sub(
                _IDENTITIES, lambda m: secrets.replaced(m, partial(self.removed, HARDWARE)), text
            )
        if b"\\u00" in text:
            text = self._spelled(encoded.ESCAPED, encoded.unescaped, encoded.escaped, text)
        if b"%" in text:
            text = self._spelled(encoded.PERCENT, encoded.unquoted, encoded.quoted, text)
        if SECRETS not in self._keep:
            text = self._sub(encoded.BASE64, self._base64, text)
        return text

    def _spelled(self, words: re.Pattern[bytes], read: Spelling, write: Spelling, text: bytes) -> bytes:
        """Words cleaned as what they stand for, and spelled again where that changed them."""

        def made(match: re.Match[bytes]) -> bytes:
            meant = read(match[0])
            if meant == match[0]:
                return meant
            notes, at = self._notes, self._at
            self._notes = [[]]
            try:
                clean, found = self.whole(meant), self._notes[0]
            finally:
                self._notes, self._at = notes, at
            for kind, value in found:
                self._note(kind, value)
            return match[0] if clean == meant else write(clean)

        return self._sub(words, made, text)

    def _base64(self, match: re.Match[bytes]) -> bytes:
        return self.removed(SECRETS, match[0]) if encoded.hides(match[0]) else match[0]

    def _without_variables(self, text: bytes) -> bytes:
        """Without machines, people, jobs and folders that a variable or a flag names."""
        if _any(named.HOST_WORDS, text):
            for pattern in named.HOSTS:
                text = self._sub(pattern, lambda m: m[1] + self._host(m[m.lastindex or 0]), text)
        if _any(named.USER_WORDS, text):
            lower = text.lower()
            for needed, pattern in named.USERS:
                if needed(lower):
                    text = self._sub(pattern, lambda m: m[1] + self._named(USERS, m[2], "user"), text)
                    lower = text.lower()
        if USERS not in self._keep and b"GIT_" in text:
            text = self._sub(named.AUTHOR, lambda m: secrets.replaced(m, partial(self.removed, USERS)), text)
        if b"HOSTS=" in text:
            text = self._sub(named.LSF, lambda m: named.LSF_HOST.sub(lambda h: self._host(h[0]), m[0]), text)
        if b"@" in text:
            text = self._sub(_COPIED, self._copied, text)
        if b"@" in text:
            text = self._sub(named.TO_HOSTS, lambda m: named.AT_HOST.sub(self._at_host, m[0]), text)
        if JOBS not in self._keep and _any(named.JOB_WORDS, text):
            for pattern in named.JOBS:
                text = self._sub(pattern, lambda m: secrets.replaced(m, partial(self.removed, JOBS)), text)
        if PATHS not in self._keep and b"/" in text:
            text = self._sub(_FOLDER_GIVEN, self._folder_given, text)
        if PATHS not in self._keep and b"\\\\" in text:
            text = self._sub(_SHARE, lambda m: self.path(m[0]), text)
        if _any(_DOMAINS, text):
            text = self._sub(_DOMAIN, lambda m: self._host(m[0]), text)
        return text

    def _at_host(self, match: re.Match[bytes]) -> bytes:
        return self._named(USERS, match[1], "user") + b"@" + self._host(match[2])

    def _copied(self, match: re.Match[bytes]) -> bytes:
        """`user@machine:folder`, as scp and git take it."""
        user, place = match[1], match[3]
        who = user if user == b"git" else self._named(USERS, user, "user")
        if PATHS not in self._keep and not place.startswith(b"/folder-"):
            place = self.path(place) if place[:1] in b"/~" else self.removed(PATHS, place)
        return who + b"@" + self._host(match[2]) + b":" + place

    def _folder_given(self, match: re.Match[bytes]) -> bytes:
        return match[0] if match[2].startswith(b"/folder-") else match[1] + self.path(match[2])

    def blob(self, data: bytes) -> bytes:
        """Data whose length means something: what identifies is blotted out."""
        clean = self.text(data)
        if clean == data:
            return data
        head = len(commonprefix([data, clean]))  # noqa: RUF071 - bytes, not paths
        tail = len(commonprefix([data[head:][::-1], clean[head:][::-1]]))  # noqa: RUF071
        return data[:head] + b"x" * (len(data) - head - tail) + data[len(data) - tail :]

    def path(self, path: bytes) -> bytes:
        """A path without the folders that somebody chose. Inside an installed package they remain."""
        inside = _INSTALLED.sub(b"", path)
        people = _PEOPLE.search(path)
        if people:
            self._named(USERS, people[1], "user")
        if inside != path:
            self._note(PATHS, path[: len(path) - len(inside)])
            return inside
        folder, _, name = path.replace(b"\\", b"/").rstrip(b"/").rpartition(b"/")
        if not (_FILE.fullmatch(name) or _PROGRAM.fullmatch(name)):
            folder, name = path.rstrip(b"/"), b""
        up = path[: len(path) - len(path.lstrip(b"."))]  # '..' before the first slash
        known = self._names[PATHS].setdefault(folder, b"/folder-%d" % len(self._names[PATHS]))
        self._note(PATHS, folder)
        return up + known + (b"/" + name if name else b"")

    def _without_paths(self, text: bytes) -> bytes:
        if b"/" in text:
            if b"): " in text:
                for frame in _FRAMES:
                    text = self._sub(frame, self._frame, text)
            if b'"/' in text:
                text = self._sub(_HOME, lambda m: self.path(m[0]), text)
            if b"//" in text:
                text = self._sub(_ELSEWHERE, self._elsewhere, text)
            text = self._sub(_PATH, self._path, text)
        if b":\\" in text:
            text = self._sub(_WINDOWS, lambda m: self.path(m[0]) if m[0][1:3] == b":\\" else m[0], text)
        return text

    def _frame(self, match: re.Match[bytes]) -> bytes:
        return match[0] if match[0].startswith(b'"/folder-') else b'"' + self.path(match[0][1:])

    def _elsewhere(self, match: re.Match[bytes]) -> bytes:
        parts = match[0][2:].split(b"/")
        return self.path(match[0]) if len(parts) >= 4 or _FILE.fullmatch(parts[-1]) else match[0]

    def _path(self, match: re.Match[bytes]) -> bytes:
        path = match[0]
        parts = [part for part in path.split(b"/") if part not in (b"", b".", b"..")]
        if not parts or path.startswith(b"/folder-"):
            return path
        telling = len(parts) >= 4 or (len(parts) > 1 and bool(_FILE.fullmatch(parts[-1])))
        telling = telling or (len(parts) > 1 and parts[-1].startswith(b"id_"))
        folders = [part.lower().rstrip(b"0123456789") for part in parts[:-1]]
        rooted = any(folders) and (
            folders[0] in _ROOTS or any(f.endswith((b"home", b"users")) for f in folders)
        )
        return self.path(path) if telling or rooted else path

    def _without_addresses(self, text: bytes) -> bytes:
        if _DOTS.search(text):
            text = self._sub(_IPV4, self._number_of_a_net, text)
            text = self._sub(_PRIVATE, self._number_of_a_net, text)
        if b"ip-" in text:
            text = self._sub(_AS_A_HOST, lambda m: self._named(ADDRESSES, m[0], "address"), text)
        if _DASHES.search(text):
            text = self._sub(_CARD, lambda m: self._named(ADDRESSES, m[0], "address"), text)
        if _COLONS.search(text):
            text = self._sub(_LINK, lambda m: self._named(ADDRESSES, m[0], "address"), text)
        if _AT.search(text):
            text = self._sub(_MAIL, lambda m: self._named(ADDRESSES, m[0], "mail"), text)
        return text

    def _number_of_a_net(self, match: re.Match[bytes]) -> bytes:
        # Versions have four parts, too.
        before = match.string[max(0, match.start() - 40) : match.start()].lower()
        before = _END.split(before)[-1]
        if (
            match[0].startswith(_OWN)
            or before.endswith(b"==")
            or b"version" in before
            or b"release" in before
        ):
            return match[0]
        return self._named(ADDRESSES, match[0], "address")

    def _server(self, match: re.Match[bytes]) -> bytes:
        if ADDRESSES in self._keep or match[2].startswith(_OWN):
            return match[0]
        return match[1] + self._named(ADDRESSES, match[2], "server") + (match[3] or b"")

    def _host(self, name: bytes) -> bytes:
        made = self.host(name)
        if made != name:
            self._note(HOSTS, name)
        return made

    def _named(self, kind: str, value: bytes, name: str) -> bytes:
        if kind in self._keep or not value or value == REMOVED or value.startswith(_OWN):
            return value
        known = self._names[kind]
        if self._is_made(value):
            return value
        self._note(kind, value)
        if value not in known:
            known[value] = f"{name}-{len(known)}".encode()
            self._made.add(known[value])
            self._learned()
        return known[value]

    def _learned(self) -> None:
        words = [w for kind in (HOSTS, USERS) for w in self._names[kind] if len(w) > 3 and _TELLING.search(w)]
        words += self._names["also"]
        self._suspects.look_for(words)
        if words:
            longest = sorted(map(re.escape, words), key=len, reverse=True)
            self._words = re.compile(_AFTER + rb"(?:" + b"|".join(longest) + rb")(?![A-Za-z0-9])")

    def _word(self, match: re.Match[bytes]) -> bytes:
        for kind in (HOSTS, USERS, "also"):
            if match[0] in self._names[kind]:
                self._note(SECRETS if kind == "also" else kind, match[0])
                return self._names[kind][match[0]]
        return match[0]


def _any(words: Iterable[bytes], text: bytes) -> bool:
    return any(word in text for word in words)
