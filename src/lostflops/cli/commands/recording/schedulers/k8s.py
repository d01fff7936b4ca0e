"""Record training on Kubernetes: patch manifests, or let a webhook do it for every pod that opts in.

`patch FILE` prints the manifests, changed so that their pods are recorded; images stay as they are.
`install` prints the objects that collect a namespace's results, `fetch` downloads the results. `manifests`
prints an admission webhook that patches the pods of labelled namespaces.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lostflops.capture.kubernetes.certificate import Certificate
    from lostflops.capture.kubernetes.pod import Said

DAYS = 1095


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    below = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, doc: str) -> ArgumentParser:
        return below.add_parser(
            name,
            help=doc.partition(".")[0],
            description=doc,
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    patch = action("patch", "Print manifests, changed so that their pods are recorded.")
    patch.add_argument(
        "files", metavar="FILE", nargs="+", type=Path, help="a manifest; '-' is standard input"
    )
    patch.add_argument("--output", metavar="F", type=Path, help="write to F instead of printing")
    patch.add_argument("--diff", action="store_true", help="print what changes instead")
    patch.add_argument("--steps", metavar="A-B", help="the steps to record in full (default 10-14)")
    patch.add_argument("--every", metavar="N", help="record the steps again after each N steps")
    patch.add_argument("--duration", metavar="SECONDS", help="end a window at the first step after so long")
    patch.add_argument(
        "--ranks", metavar="LIST", help="record steps in full on these ranks only, as in 0,8-15"
    )
    patch.add_argument("--what", metavar="LIST", help="what to record of them, as in `lostflops record`")
    patch.add_argument(
        "--claim",
        metavar="NAME",
        help="keep the results on this persistent volume claim, without a collector",
    )
    _containers(patch)
    patch.add_argument(
        "--force-env",
        action="store_true",
        help="set PYTHONPATH in containers without a command, which replaces the image's own",
    )

    install = action("install", "Print what a namespace needs: the recorder, and the collector of results.")
    _namespace(install, None)
    install.add_argument(
        "--update",
        action="store_true",
        help="keep token and certificate, so that running jobs can still send results",
    )
    install.add_argument(
        "--size", metavar="SIZE", default="20Gi", help="what the collector keeps (default 20Gi)"
    )
    _image(install)
    _days(install)

    fetch = action("fetch", "Get the results of a job from the collector of its namespace.")
    fetch.add_argument("job", metavar="JOB", nargs="?", help="the job's name, where there are several")
    fetch.add_argument("--namespace", "-n", metavar="NS", help="where the job runs (default kubectl's)")
    fetch.add_argument("--output", metavar="RUN", type=Path, help="the folder to make (default runs/JOB)")
    fetch.add_argument("--list", action="store_true", help="only list the jobs")

    manifests = action("manifests", "Print the admission webhook with all it needs.")
    _namespace(manifests, "lostflops")
    _containers(manifests)
    _image(manifests)
    _days(manifests)

    certificate = action("certificate", "Print a certificate as values for the Helm chart.")
    _namespace(certificate, "lostflops")
    _days(certificate)

    serve = action("serve", "Run the webhook, in a container whose image has lostflops.")
    serve.add_argument(
        "--certificate", metavar="DIR", type=Path, required=True, help="a folder with tls.crt and tls.key"
    )
    serve.add_argument("--host", default="127.0.0.1", help="the address to answer on (default 127.0.0.1)")
    serve.add_argument("--port", metavar="N", type=int, default=8443, help="the port (default 8443)")
    _namespace(serve, "lostflops")
    _containers(serve)

    status = action("status", "Show whether the webhook works and how long its certificate is valid.")
    _namespace(status, "lostflops")


def _namespace(parser: ArgumentParser, default: str | None) -> None:
    said = f" (default {default})" if default else ""
    parser.add_argument(
        "--namespace",
        "-n",
        metavar="NS",
        default=default,
        required=default is None,
        help=f"the namespace{said}",
    )


def _containers(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--pattern",
        metavar="REGEX",
        help="record the containers whose command and arguments match (default: torchrun, accelerate, "
        "deepspeed, python, and workers of Ray and Dask)",
    )
    parser.add_argument(
        "--limit", metavar="SIZE", default="4Gi", help="what a pod may write of results (default 4Gi)"
    )


def _image(parser: ArgumentParser) -> None:
    parser.add_argument("--image", help="any image with Python 3.11 or later (default python:3.12-slim)")


def _days(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--days", metavar="N", type=int, default=DAYS, help=f"validity of the certificate (default {DAYS})"
    )


def run(given: Namespace) -> None:
    actions = {
        "patch": _patch,
        "install": _install,
        "fetch": _fetch,
        "manifests": _manifests,
        "certificate": _certificate,
        "serve": _serve,
        "status": _status,
    }
    _check_namespace(getattr(given, "namespace", None))
    actions[given.action](given)


def _check_namespace(name: str | None) -> None:
    """Raises BadOption for what Kubernetes would not take, before a certificate is made for it."""
    import re

    from lostflops.errors import BadOption, shown

    if name is not None and not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", name):
        raise BadOption(
            f"'{shown(name)}' cannot be a namespace: it takes small letters, digits and '-'.",
            "`kubectl get namespaces` lists those there are.",
        )


def _patch(given: Namespace) -> None:
    import difflib
    from copy import deepcopy

    from lostflops.capture.kubernetes import manifest
    from lostflops.capture.kubernetes import objects as k8s_objects
    from lostflops.capture.kubernetes.admission import settings
    from lostflops.capture.kubernetes.pod import Wish
    from lostflops.cli.output import files

    if given.output is not None:
        files.check(given.output, [])  # an input may be replaced: that is what patching is
    wish = Wish(
        sorted(k8s_objects.payload()),
        _regex(given.pattern),
        settings(given.steps, given.ranks, given.what, given.every, given.duration),
        given.claim,
        _bytes("--limit", given.limit),
        given.force_env,
    )
    read = [manifest.read(path) for path in given.files]
    before = "".join(text for text, _ in read)
    documents = [document for _, found in read for document in found]
    unchanged = manifest.written(deepcopy(documents), before) if given.diff else ""
    said = [one for document in documents for one in manifest.patch(document, wish)]
    recorded = any(one.recorded for _, one in said)
    made = manifest.missing_payloads(documents) if recorded else []
    payloads = [k8s_objects.payload_map(namespace) for namespace in made]
    after = manifest.written([*payloads, *documents], before)
    patched = manifest.written(documents, before)
    _say(said, recorded and given.claim is None, _comments(before) - _comments(patched))
    if given.diff:
        lines = difflib.unified_diff(
            unchanged.splitlines(), patched.splitlines(), "before", "after", lineterm=""
        )
        after = "".join(f"{line}\n" for line in lines)
    if given.output is None:
        print(after, end="")
        return
    with files.replacing(given.output) as place:
        place.write_text(after, "utf-8")


def _say(said: Sequence[tuple[str, Said]], unclaimed: bool, comments_lost: int) -> None:
    from lostflops.capture.kubernetes.pod import COLLECTOR

    for where, one in said:
        if one.recorded:
            print(f"{where}: recording {', '.join(one.recorded)}", file=sys.stderr)
        for note in one.notes:
            print(f"{where}: {note}", file=sys.stderr)
    if not said:
        print("no pods in these manifests", file=sys.stderr)
    if unclaimed:
        print(
            f"The pods send their results to '{COLLECTOR}' of their namespace. Install it once:\n"
            "  lostflops launch k8s install -n NAMESPACE | kubectl apply -f -\n"
            "Without it and without --claim, the results are lost when the pod ends.",
            file=sys.stderr,
        )
    if comments_lost > 0:
        print(
            f"{comments_lost} comment{'s' * (comments_lost != 1)} of the YAML could not be kept",
            file=sys.stderr,
        )


def _comments(text: str) -> int:
    import re

    return len(re.findall(r"(?:^|\s)#", text))


def _install(given: Namespace) -> None:
    from lostflops.capture.kubernetes import manifest
    from lostflops.capture.kubernetes import objects as k8s_objects

    image = given.image or k8s_objects.IMAGE
    objects = k8s_objects.collector(
        given.namespace, image, _bytes("--size", given.size), _positive(given.days), given.update
    )
    print(manifest.written(objects), end="")
    if given.update:
        return
    print(
        f"apply it with `| kubectl apply -f -`. To have the webhook record all pods of {given.namespace}:\n"
        f"  kubectl label namespace {given.namespace} lostflops.dev/record=enabled",
        file=sys.stderr,
    )


def _fetch(given: Namespace) -> None:
    from lostflops.capture.kubernetes import cluster

    with cluster.forwarded(given.namespace) as address:
        kept = cluster.listing(address)
        if given.list:
            for job in sorted({one.job for one in kept}):
                of_job = [one for one in kept if one.job == job]
                print(f"{job}  {len(of_job)} files, {sum(one.size for one in of_job) / 1e6:.1f} MB")
            return
        job = cluster.choose(kept, given.job)
        wanted = [one for one in kept if one.job == job]
        run = given.output or Path("runs") / job
        cluster.fetch(address, wanted, run)
    print(*cluster.summary(run, wanted), sep="\n", file=sys.stderr)


def _manifests(given: Namespace) -> None:
    from lostflops.capture.kubernetes import manifest
    from lostflops.capture.kubernetes import objects as k8s_objects

    made = _certificate_of(given)
    objects = k8s_objects.webhook(
        given.namespace,
        given.image or k8s_objects.IMAGE,
        made,
        _regex(given.pattern),
        _bytes("--limit", given.limit),
    )
    print(manifest.written(objects), end="")
    print(
        "this holds the private key of the webhook's certificate: apply it with `| kubectl apply -f -`, "
        "do not keep it in a repository.",
        file=sys.stderr,
    )


def _certificate_of(given: Namespace) -> Certificate:
    from lostflops.capture.kubernetes.certificate import certificate
    from lostflops.capture.kubernetes.objects import WEBHOOK

    names = [WEBHOOK, f"{WEBHOOK}.{given.namespace}", f"{WEBHOOK}.{given.namespace}.svc"]
    return certificate(names, _positive(given.days))


def _certificate(given: Namespace) -> None:
    from base64 import b64encode

    made = _certificate_of(given)
    for name in ("authority", "certificate", "key"):
        print(f"{name}: {b64encode(getattr(made, name).encode()).decode()}")


def _serve(given: Namespace) -> None:
    from lostflops.capture.kubernetes import objects as k8s_objects
    from lostflops.capture.kubernetes import webhook
    from lostflops.capture.kubernetes.pod import Wish
    from lostflops.errors import BadOption

    wish = Wish(sorted(k8s_objects.payload()), _regex(given.pattern), size=_bytes("--limit", given.limit))
    try:
        webhook.serve(wish, given.certificate, given.host, given.port, given.namespace)
    except OSError as error:
        raise BadOption(
            f"The webhook cannot answer on {given.host}:{given.port} with '{given.certificate}': {error}.",
            "the folder holds tls.crt and tls.key; the port must be free.",
        ) from error


def _status(given: Namespace) -> None:
    from lostflops.capture.kubernetes import cluster

    print(*cluster.status(given.namespace), sep="\n")


def _regex(text: str | None) -> str:
    import re

    from lostflops.capture.kubernetes.pod import PATTERN
    from lostflops.errors import BadOption, shown

    if text is None:
        return PATTERN
    try:
        re.compile(text)
    except re.error as error:
        raise BadOption(f"'{shown(text)}' is not a regular expression: {error}.") from error
    return text


def _bytes(option: str, text: str) -> int:
    from lostflops.capture.kubernetes.pod import quantity
    from lostflops.errors import BadOption, shown

    size = quantity(text)
    if not size:
        raise BadOption(f"'{shown(text)}' is not a size.", f"write `{option} 4Gi`.")
    return size


def _positive(days: int) -> int:
    from lostflops.errors import BadOption

    if not 1 <= days <= 36500:
        raise BadOption(f"A certificate cannot be valid for {days} days.", f"write `--days {DAYS}`.")
    return days
