"""Planted a fourth time: what folders of real jobs hold, of trackers, clusters, clouds, registries and logs.

Lines are as in `planted`.
"""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

from planted import ALNUM as A
from planted import B64 as B
from planted import HEX32 as H

S = "Zq7xVb3nMk"
H40, H64 = H + H[:8], H + H


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


AUTH = b64(f"alice17:{S}")
CERTIFICATE = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk" + A

PULL = b64(json.dumps({"auths": {"r7": {"username": "alice17", "password": S}}}))

IN_JOBS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    # Trackers of experiments.
    (
        "job: mlflow uri",
        f"MLFLOW_TRACKING_URI=https://alice17:{S}@mlflow.corp.example",
        (S, "alice17", "mlflow.corp"),
    ),
    ("job: mlflow user", "MLFLOW_TRACKING_USERNAME=alicesmith", ("alicesmith",)),
    (
        "job: tag of a tracker",
        '{"tracker.user": "alicesmith", "tracker.source.name": "/vault9/hushgroup/x.py"}',
        ("alicesmith", "hushgroup"),
    ),
    (
        "job: mlflow meta.yaml",
        "artifact_uri: s3://corp-weights-eu/7/artifacts\nuser_id: alicesmith",
        ("corp-weights-eu", "alicesmith"),
    ),
    ("job: wandb netrc lines", f"machine api.wandb.ai\n  login user\n  password {H40}", (H40,)),
    (
        "job: wandb metadata",
        json.dumps({"host": "rackbox77", "username": "alicesmith", "email": "alice@corp.example"}),
        ("rackbox77", "alicesmith", "alice@"),
    ),
    (
        "job: wandb run url",
        "wandb: View run at https://wandb.ai/hushgroup/hushproj/runs/x7",
        ("hushgroup", "hushproj"),
    ),
    ("job: wandb entity", "WANDB_ENTITY=hushgroup", ("hushgroup",)),
    ("job: aim repo", "aim://rackbox77:53800", ("rackbox77",)),
    # Clusters.
    ("job: kubeconfig user", f"users:\n- name: alicesmith\n  user:\n    token: {A}", (A, "alicesmith")),
    ("job: kubeconfig cert", f"client-certificate-data: {CERTIFICATE}", (CERTIFICATE,)),
    (
        "job: kubeconfig JSON",
        json.dumps({"client-key-data": CERTIFICATE, "certificate-authority-data": CERTIFICATE}),
        (CERTIFICATE,),
    ),
    ("job: kubeconfig server", "server: https://rackbox77:6443", ("rackbox77",)),
    ("job: known hosts", f"rackbox77,10.20.30.40 ssh-ed25519 AAAAC3{B}", ("rackbox77", B, "10.20.30.40")),
    ("job: known hosts hashed", f"|1|{B[:27]}=|{A[:27]}= ssh-rsa AAAAB3{B}", (B[:27], A[:27])),
    ("job: known hosts port", f"[rackbox77]:2222 ecdsa-sha2-nistp256 AAAAE2{B}", ("rackbox77", B)),
    (
        "job: ssh config",
        "Host gate\n  HostName rackbox77\n  User alicesmith\n  IdentityFile ~/.ssh/id_hush",
        ("rackbox77", "alicesmith"),
    ),
    ("job: ssh fingerprint", f"ED25519 key fingerprint is SHA256:{A}xyz.", (A,)),
    ("job: ssh agent", "SSH_CONNECTION='10.20.30.40 51234 10.20.30.41 22'", ("10.20.30.40",)),
    ("job: ssh client", "SSH_CLIENT=fd12:3456:789a:1::17 51234 22", ("fd12:3456",)),
    (
        "job: slurm submit",
        "SLURM_SUBMIT_HOST=rackbox77 SLURM_SUBMIT_DIR=/vault9/hushgroup",
        ("rackbox77", "hushgroup"),
    ),
    (
        "job: slurm nodename",
        "SLURMD_NODENAME=rackbox77 SLURM_LAUNCH_NODE_IPADDR=10.20.30.40",
        ("rackbox77", "10.20.30.40"),
    ),
    ("job: slurm user", "SLURM_JOB_USER=alicesmith SLURM_JOB_QOS=hush-hush", ("alicesmith", "hush-hush")),
    ("job: slurm reservation", "SLURM_JOB_RESERVATION=hush-hush", ("hush-hush",)),
    ("job: slurm mail", "#SBATCH --mail-user=alicesmith@corp.example", ("alicesmith",)),
    (
        "job: scontrol",
        "JobId=77 JobName=hush-hush\n   UserId=alicesmith(1017) GroupId=hushgroup(100)",
        ("hush-hush", "alicesmith", "hushgroup"),
    ),
    ("job: scontrol nodes", "NodeList=rackbox[77-79] BatchHost=rackbox77", ("rackbox",)),
    ("job: scontrol workdir", "   WorkDir=/vault9/hushgroup", ("hushgroup",)),
    ("job: squeue", "ReqNodeList=rackbox77 ExcNodeList=rackbox78", ("rackbox",)),
    (
        "job: k8s pod yaml",
        "nodeName: rackbox77\nserviceAccountName: hush-robot\nnamespace: hush-hush",
        ("rackbox77", "hush-robot", "hush-hush"),
    ),
    (
        "job: k8s env",
        "KUBERNETES_SERVICE_HOST=10.20.30.40 KUBERNETES_PORT=tcp://10.20.30.40:443",
        ("10.20.30.40",),
    ),
    ("job: torchrun", "--node-rank 1 --rdzv-endpoint rackbox77:29400 --local-addr rackbox78", ("rackbox",)),
    ("job: host of a rank", '"hostname": "rackbox77-rank3"', ("rackbox77",)),
    ("job: host_rank file", '"traceName": "/tmp/rackbox77_4711.1764000000000.pt.trace.json"', ("rackbox77",)),
    ("job: elastic", "torchelastic: [rackbox77_4711_0] workers", ("rackbox77",)),
    ("job: ray log", "(RayTrainWorker pid=4711, ip=10.20.30.40) step", ("10.20.30.40",)),
    # Clouds and stores.
    (
        "job: s3 signed v2",
        f"https://bkt.s3.amazonaws.com/k?AWSAccessKeyId=AKIAQX7VB3NM9KW5RT2Y&Signature={B[:27]}%3D&Expires=1764",
        (B[:27], "AKIAQX7VB3NM9KW5RT2Y"),
    ),
    (
        "job: gcs signed",
        f"https://storage.googleapis.com/b/k?X-Goog-Credential=robot%40hush-hush-77.iam.gserviceaccount.com%2F2026&X-Goog-Signature={H64}",
        (H64, "hush-hush"),
    ),
    (
        "job: gcs signed bare",
        f"X-Goog-Credential=robot%40hushproj77.iam.gserviceaccount.com&X-Goog-Signature={H64}",
        (H64, "hushproj77"),
    ),
    (
        "job: azure sas st",
        f"sp=racwl&st=2026-01-01T00:00:00Z&spr=https&sv=2022-11-02&sr=c&sig={quote(B, safe='')}%3D",
        (B,),
    ),
    ("job: azure sas var", f"AZURE_STORAGE_SAS_TOKEN='?sv=2022-11-02&sig={B}%3D'", (B,)),
    ("job: azure abfs", "abfss://hushbox@hushacct.dfs.core.windows.net/x", ("hushbox", "hushacct")),
    (
        "job: cloudfront",
        f"https://d7.cloudfront.net/x?Policy={B}&Signature={A}&Key-Pair-Id=KQX7VB3NM9KW5",
        (B, A, "KQX7VB3NM9KW5"),
    ),
    ("job: aws arn", "arn:aws:iam::117263548190:role/hush-robot", ("117263548190", "hush-robot")),
    ("job: aws account", "AWS_ACCOUNT_ID=117263548190", ("117263548190",)),
    ("job: ecr", "117263548190.dkr.ecr.eu-west-1.amazonaws.com/hushrepo:7", ("117263548190", "hushrepo")),
    ("job: oss", f"OSS_ACCESS_KEY_SECRET={A[:30]}", (A[:30],)),
    # Data bases.
    (
        "job: sqlalchemy",
        f"mysql+pymysql://alice17:{S}@dbkit7:3306/runs?charset=utf8",
        (S, "alice17", "dbkit7"),
    ),
    ("job: optuna", f"--storage postgresql+psycopg2://alice17:{S}@dbkit7/optuna", (S, "alice17", "dbkit7")),
    (
        "job: odbc",
        f"DRIVER={{PostgreSQL}};SERVER=dbkit7;UID=alicesmith;PWD={{{S};x}}",
        (S, "alicesmith", "dbkit7"),
    ),
    ("job: pg env", f"PGHOST=dbkit7 PGUSER=alicesmith PGPASSWORD={S}", (S, "alicesmith", "dbkit7")),
    ("job: pgpass", f"dbkit7:5432:runs:alicesmith:{S}", (S, "alicesmith", "dbkit7")),
    ("job: my.cnf", f"[client]\nuser=alicesmith\npassword={S}\nhost=dbkit7", (S, "alicesmith", "dbkit7")),
    ("job: snowflake", f"snowflake://alice17:{S}@hushacct.eu-west-1/db", (S, "alice17", "hushacct")),
    (
        "job: clickhouse",
        f"clickhouse-client --host dbkit7 --user alicesmith --password {S}",
        (S, "alicesmith", "dbkit7"),
    ),
    (
        "job: kafka",
        f'sasl.jaas.config=org.apache.kafka.PlainLoginModule required username="alicesmith" password="{S}";',
        (S, "alicesmith"),
    ),
    # Registries and sources.
    ("job: docker config", json.dumps({"auths": {"https://index.docker.io/v1/": {"auth": AUTH}}}), (AUTH,)),
    (
        "job: docker config in b64",
        b64(json.dumps({"auths": {"r7": {"auth": AUTH}}})),
        (b64(json.dumps({"auths": {"r7": {"auth": AUTH}}}))[20:44],),
    ),
    (
        "job: dockerconfigjson",
        f"data:\n  .dockerconfigjson: {PULL}",
        (b64(json.dumps({"auths": {"r7": {"username": "alice17", "password": S}}}))[20:44],),
    ),
    ("job: X-Registry-Auth", f"X-Registry-Auth: {AUTH}", (AUTH,)),
    ("job: pypirc", f"[pypi]\nusername = __token__\npassword = pypi-{A}{A}", (A,)),
    (
        "job: pip env",
        f"PIP_INDEX_URL=https://alice17:{S}@pypi.corp.example/simple",
        (S, "alice17", "pypi.corp"),
    ),
    ("job: uv index", f"UV_INDEX_CORP_USERNAME=alicesmith UV_INDEX_CORP_PASSWORD={S}", (S, "alicesmith")),
    ("job: npmrc", f"//npm.corp.example/:_auth={AUTH}\nemail=alicesmith@corp.example", (AUTH, "alicesmith")),
    ("job: conda", f"channels:\n  - https://conda.corp.example/t/{A}/main", (A, "conda.corp")),
    ("job: git user url", "https://alicesmith@bitbucket.org/hushgroup/x.git", ("alicesmith", "hushgroup")),
    ("job: git oauth2", f"https://oauth2:{A[:20]}@gitlab.corp.example/hushgroup/x", (A[:20], "hushgroup")),
    ("job: git x-access-token", f"https://x-access-token:{S}@github.com/hushgroup/hushrepo", (S, "hushrepo")),
    ("job: git askpass", f"GIT_ASKPASS=/vault9/hushgroup/ask GIT_PASSWORD={S}", (S, "hushgroup")),
    (
        "job: git ssh remote",
        "ssh://git@gitlab.corp.example:2222/hushgroup/hushrepo.git",
        ("hushgroup", "gitlab.corp"),
    ),
    ("job: git author", "Author: Alice Smithson <alicesmith@corp.example>", ("Alice Smithson", "alicesmith")),
    (
        "job: git config",
        "user.name=Alice Smithson\nuser.email=alicesmith@corp.example",
        ("Alice Smithson", "alicesmith"),
    ),
    (
        "job: hf header",
        json.dumps({"headers": {"authorization": f"Bearer hf_{A[:34]}", "user-agent": "x"}}),
        (A[:34],),
    ),
    ("job: hf cache token", f"/root/.cache/huggingface/token: hf_{A[:34]}", (A[:34],)),
    # Keys as files hold them.
    (
        "job: pgp key",
        (
            f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 7\n\n{B}\n{B[::-1]}\n"
            "=Zq7x\n-----END PGP PRIVATE KEY BLOCK-----"
        ),
        (B, B[::-1]),
    ),
    ("job: pgp message", f"-----BEGIN PGP MESSAGE-----\n\n{B}\n-----END PGP MESSAGE-----", (B,)),
    (
        "job: age file",
        f"# created: 2026\n# public key: age1{A.lower()}xyz\nAGE-SECRET-KEY-1{A.upper()}",
        (A.upper(), A.lower()),
    ),
    (
        "job: ssh2 key",
        (
            f"---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: alicesmith\n{B}\n"
            "---- END SSH2 ENCRYPTED PRIVATE KEY ----"
        ),
        (B,),
    ),
    ("job: certificate", f"-----BEGIN CERTIFICATE-----\n{B}\n-----END CERTIFICATE-----", (B,)),
    ("job: jwk", json.dumps({"kty": "RSA", "n": "xAb7", "d": A, "p": B[:30], "q": A[:30]}), (A, B[:30])),
    ("job: munge", f"MUNGE:AwQFAAC{B}{A}:", (B, A)),
    # Addresses.
    ("job: IPv4 in IPv6", "[::ffff:10.20.30.40]:29500", ("10.20.30.40",)),
    ("job: IPv4 in IPv6 long", "0:0:0:0:0:ffff:10.20.30.40", ("10.20.30.40",)),
    ("job: NAT64", "64:ff9b::10.20.30.40", ("10.20.30.40",)),
    ("job: nslookup", "40.30.20.10.in-addr.arpa", ("40.30.20.10",)),
    (
        "job: IPoIB MAC",
        "80:00:02:08:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:7b:be:ef",
        ("0c:42:a1", "7b:be:ef"),
    ),
    ("job: MAC bare", "HWaddr 0C42A17BBEEF", ("0C42A17BBEEF",)),
    ("job: EUI-64", "0c:42:a1:ff:fe:7b:be:ef", ("0c:42:a1",)),
    ("job: IPv4 percent", "tcp%3A%2F%2F10.20.30.40%3A29500", ("10.20.30.40",)),
    (
        "job: gloo",
        (
            "Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] "
            "no error, remote=[10.20.30.40]:51234, local=[rackbox77]:4"
        ),
        ("10.20.30.40", "rackbox77"),
    ),
    (
        "job: c10d",
        "[W socket.cpp:697] [c10d] The client socket has failed to connect to [rackbox77]:29500",
        ("rackbox77",),
    ),
    (
        "job: c10d ipv4",
        "The IPv4 network addresses of (rackbox77, 29500) cannot be retrieved",
        ("rackbox77",),
    ),
    (
        "job: nccl net",
        "rackbox77:4711:4712 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.20.30.40<0>",
        ("rackbox77", "10.20.30.40"),
    ),
    # People and folders.
    ("job: file url", "file:///home/alicesmith/run/x.py", ("alicesmith",)),
    ("job: file url host", "file://rackbox77/vault9/hushgroup/x.py", ("rackbox77", "hushgroup")),
    ("job: file url windows", "file:///C:/Users/alicesmith/run/x.py", ("alicesmith",)),
    ("job: windows slashes", "C:/Users/alicesmith/run/train.py", ("alicesmith",)),
    ("job: windows short", "C:\\Users\\ALICES~1\\AppData\\Local\\Temp\\x.py", ("ALICES~1",)),
    ("job: windows domain", "USERDOMAIN=HUSHCORP USERNAME=alicesmith", ("HUSHCORP", "alicesmith")),
    ("job: wsl", "/mnt/c/Users/alicesmith/x.py", ("alicesmith",)),
    ("job: percent path", "%2Fhome%2Falicesmith%2Frun%2Fx.py", ("alicesmith",)),
    (
        "job: passwd line",
        "alicesmith:x:1017:100:Alice Smithson:/home/alicesmith:/bin/bash",
        ("alicesmith", "Smithson"),
    ),
    ("job: ls -l", "-rw-r--r-- 1 alicesmith hushgroup 4096 Nov 26 10:00 x.py", ("alicesmith", "hushgroup")),
    ("job: sudo", "SUDO_USER=alicesmith SUDO_COMMAND=/vault9/hushgroup/x", ("alicesmith", "hushgroup")),
    ("job: mail name", "From: Alice Smithson <alicesmith@corp.example>", ("Alice Smithson", "alicesmith")),
    (
        "job: tmp of a user",
        "/tmp/pip-alicesmith/x.py TRITON_CACHE_DIR=/tmp/torchinductor_alicesmith/x",
        ("alicesmith",),
    ),
    ("job: inductor", "/tmp/torchinductor_alicesmith/ab/cab7.py", ("alicesmith",)),
    ("job: XDG", "XDG_RUNTIME_DIR=/run/user/1017 HOME=/root9/alicesmith", ("alicesmith",)),
    # Spellings.
    ("job: JSON in JSON", json.dumps({"env": json.dumps({"cfg": json.dumps({"password": S})})}), (S,)),
    ("job: JSON in YAML", 'env: \'{"DB_PASSWORD": "' + S + "\"}'", (S,)),
    (
        "job: query in JSON",
        json.dumps({"url": f"https://x.corp.example/?token={A}&next=%2Fx"}),
        (A, "x.corp"),
    ),
    ("job: form body", f"grant_type=client_credentials&client_id=hush77&client_secret={S}", (S,)),
    ("job: shell continued", f"export DB_PASSWORD=\\\n  {S}", (S,)),
    ("job: argv continued", f"--password \\\n  {S} \\\n  --lr 3", (S,)),
    ("job: value below", f"password:\n  {S}", (S,)),
    ("job: wrapped header", f"Authorization:\n Bearer {B}", (B,)),
    ("job: heredoc", f"cat > .netrc <<EOF\nmachine m7 login alice17 password {S}\nEOF", (S, "alice17")),
    ("job: xtrace", f"++ curl -sS -H 'X-Api-Key: {S}' -d token={A}", (S, A)),
    ("job: env null", f"PATH=/bin\\u0000DB_PASSWORD={S}\\u0000X=1", (S,)),
    ("job: arrow", f"DB_PASSWORD => {S}", (S,)),
    ("job: walrus", f"DB_PASSWORD := {S}", (S,)),
    ("job: default of shell", "${DB_PASSWORD:-" + S + "}", (S,)),
    ("job: hydra", f"+logger.api_key={A} hydra.job.name=hush-hush", (A, "hush-hush")),
    (
        "job: env dict repr",
        "environ({'DB_PASSWORD': '" + S + "', 'LOGNAME': 'alicesmith'})",
        (S, "alicesmith"),
    ),
    ("job: click", f"Error: Invalid value for '--api-key': {A}", (A,)),
    (
        "job: traceback",
        f"requests.exceptions.HTTPError: 401 for url: https://x.corp.example/?api_key={S}",
        (S, "x.corp"),
    ),
    ("job: hex of a key", f"encryption_key=0x{H}", (H,)),
    ("job: key id pair", f"aws configure set aws_secret_access_key {B}", (B,)),
)
