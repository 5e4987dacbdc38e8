"""No secret of a user stands in what labkit writes, and a report names nobody and no item.

What has to go is a table: how secrets look in texts, what variables that hold one are called, what
is typed in commands. One script plants the rest, and every byte that it leaves is searched.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import script_in

import labkit as lk
from labkit.process.supervisor import Output
from labkit.results import privacy
from labkit.results.privacy import script_of
from labkit.stamps.keys import mask_secrets, secrets_in, without_literals

SECRET = "Zq7xPlm9"
TEXTS = """
connection to postgres://bob:{}@db.example.org/prod failed
mysql://root:p@ss{}@host
redis://:{}@host:6379/0
https://{}@github.com/x/y.git
remote: https://oauth2:{}@gitlab.com/x.git
mongodb+srv://u:{}@cluster.net/x
sftp bob:{}@host
--token {}
--password={}
--hf-token "{}"
token={}&page=1
{{"password": "{}"}}
{{'api_key': '{}'}}
api-key: {}
client_secret: {}
accessToken={}
passphrase = {}
Authorization: Bearer {}.x
authorization: Basic {}==
header 'bearer {}'
Cookie: session={}
machine api.wandb.ai login user password {}
  password {}
AccountName=x;AccountKey={}==;EndpointSuffix=core
Server=db;User Id=u;Password={};
https://bucket.s3.org/x?X-Amz-Signature={}&v=1
https://x.blob.net/y?sv=1&sig={}
user=bob password={} host=db
export AWS_SECRET_ACCESS_KEY={}
PGPASSWORD={} psql
GITHUB_PAT={}
https://hooks.slack.com/services/T0/B0/{}
sk-{}abcd
hf_{}
ghp_{}
glpat-{}
AKIA{}
xoxb-{}
eyJhbGciOi.eyJ{}.abc
wandb: 0123456789abcdef0123{}
mysql -u root -p{} db
['mysql', '-u', 'root', '-p', '{}']
['login', '--password', '{}']
curl -u bob:{} https://h/x
--pw {}
{{'credentials': ('bob', '{}')}}
('token', '{}')
password = SecretStr("{}")
password is {}
invalid token {}
token => {}
<password>{}</password>
<add key="token" value="{}"/>
password%3D{}
Incorrect API key provided: {}
Authorization: ApiKey {}
https://h/x?code={}
https://api.telegram.org/bot123456:{}AAH/sendMessage
https://discord.com/api/webhooks/1234/{}
-----BEGIN RSA PRIVATE+KEY----- {} -----END RSA PRIVATE+KEY-----
gsk_{}
dckr_pat_{}
new_service_4f1c0000000000000000000000{}
""".replace("PRIVATE+KEY", "PRIVATE KEY")  # which no file of the repository may show
PLAIN = """
cannot read '/data/x.jpg' of batch 3: max_tokens=4096
RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total)
mat1 and mat2 shapes cannot be multiplied (32x128 and 64x10)
undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESsPKv12345678901234567
key 'a.weight' of the state dict; token id 32000; a token 'x' or <pad>; the session is closed
('input_ids', 'token_type_ids') of ['tokens', 'label']; pin_memory=True; passed: 3; max_tokens > 512
KeyError: 'image'; the tokenizer: bert-base-uncased; see https://pytorch.org/docs/stable/x.html#a
"""
VARIABLES = """
DATABASE_URL APP_PWD MYSQL_PWD GITHUB_PAT STRIPE_KEY OPENAI_API_KEY SMTP_PASS DB_PASSWORD
PGPASSWORD REDISCLI_AUTH AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN HF_TOKEN SECRET_KEY_BASE
SENTRY_DSN MY_CREDENTIALS COOKIE SLACK_WEBHOOK JWT_SECRET SSH_PASSPHRASE
AZURE_CONNECTION_STRING TOKEN_2 OPENAI_KEY_PROD TOKEN_PROD PASSWORD_FOR_DB API_KEYS USERPASS
AWS_CREDS BEARER WEBHOOK_ADDRESS SQL_CONN OTP_SEED DB_PW
"""
COMMANDS = {
    "python train.py --token {0} {0}": "train.py",
    "/opt/py/bin/python3.12 -u /home/anna/run/train.py --password={0}": "train.py",
    "torchrun --nproc_per_node 2 -m pkg.train {0}": "pkg.train",
    "python -c print('{0}') train.py": "python",
    "env HF_TOKEN={0}.py python train.py": "train.py",
    "./run --login {0}": "run",
    "./run": "run",
    "mytool -m {0}": "mytool",
}


@pytest.mark.parametrize("text", TEXTS.strip("\n").split("\n"))
def test_a_secret_is_masked_however_a_text_shows_it(text):
    assert SECRET not in mask_secrets(f"it said:\n{text.format(SECRET)}\nand no more", [])


@pytest.mark.parametrize("text", PLAIN.strip().split("\n"))
def test_a_text_without_a_secret_stays_as_it_is(text):
    assert mask_secrets(text, secrets_in({"PWD": "/data", "TERM": "xterm-256color"})) == text


@pytest.mark.parametrize("name", VARIABLES.split())
def test_the_value_of_a_variable_that_is_called_like_a_secret_is_masked(name):
    value = f"postgres://u:{SECRET}@h/db" if name.endswith("URL") else SECRET
    assert SECRET not in mask_secrets(f"no {value}; nor {SECRET}", secrets_in({name: value}))


@pytest.mark.parametrize("command", COMMANDS)
def test_of_a_command_its_script_is_told(command):
    assert script_of(command.format(SECRET).split()) == COMMANDS[command]


def test_of_a_line_of_source_no_text_is_kept_but_the_name_of_an_index():
    line = f"batch['image'].to(connect('{SECRET}', \"{SECRET}\")) + b'{SECRET}'  # or {SECRET}"
    assert without_literals(line) == "batch['image'].to(connect('...', '...')) + b'...'"


def test_a_secret_is_masked_in_output_that_comes_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setenv("APP_PWD", SECRET)
    text = f"a {SECRET}\nb\n{SECRET} has no end"
    for size in (1, 3, 7, 1000):
        reads, writes = os.pipe()
        output = Output(reads, str(tmp_path / "out"))
        for at in range(0, len(text), size):
            os.write(writes, text[at : at + size].encode())
            output.read()
        os.close(writes)
        output.finish()
        told = (tmp_path / "out").read_text()
        assert told == "a ***\nb\n*** has no end", size


def test_of_a_traceback_no_line_of_source_is_kept():
    place = '  File "train.py", line 3, in load\n'
    shown = f"Traceback:\n{place}    login('x',\n    ^^^^\n  | {place}  |     y()\nOSError: no\n"
    assert mask_secrets(shown, []) == f"Traceback:\n{place}  | {place}OSError: no\n"


def test_a_long_text_without_an_end_is_masked_as_fast_as_another():
    for piece in ("a_", "=", "://", "-", "a:", "\n", "token ", '"', "--a-", "a+", 'File "'):
        mask_secrets(piece * 30_000, [])  # minutes where a pattern looks back


def test_a_page_for_others_names_nobody(monkeypatch):
    monkeypatch.setattr(privacy.platform, "node", lambda: "annas-laptop")
    text = "record: /home/Anna Maria/runs/r1 on annas-laptop, train.py:3, img / 255 / 2"
    assert privacy.for_others(text) == "record: r1 on <name>, train.py:3, img / 255 / 2"


PLANTED = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

def connect(dsn):
    time.sleep(0.003)

class Scans(Dataset):
    def __init__(self):
        self.paths = [f"/data/{i}/Meier_Zq7xPlm9.dcm" for i in range(160)]
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, path):
        connect("Zq7xPlm9") or print("postgres://u:Zq7xPlm9@h")
        return torch.randn(8)

class Keys(Sampler):
    def __init__(self, data):
        self.data = data
    def __iter__(self):
        return iter(self.data.paths)
    def __len__(self):
        return len(self.data)

def sums(bench, n, dsn="Zq7xPlm9"):
    if n > 2:
        raise RuntimeError("https://x:Zq7xPlm9@h said no")
    bench.time(torch.rand(n).sum)

def train():
    data = Scans()
    loader = DataLoader(data, 4, sampler=Keys(data), num_workers=1)
    net = torch.nn.Linear(8, 1)
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    for at, x in enumerate(loader):
        net(x).sum().backward()
        sgd.step()
        if at == 35 and "fail" in sys.argv:
            raise RuntimeError("remote: https://oauth2:Zq7xPlm9@gitlab.com/x.git, --token Zq7xPlm9")

if __name__ == "__main__":
    if "bench" in sys.argv:
        import labkit as lk
        lk.measure(sums, n=[1, 3])
        lk.tune(Scans(), step=len, seconds=0.5, max_workers=0)
    else:
        train()
"""


def search(folder):
    """Return the files in a folder in which some byte is of the secret, packed ones unpacked."""
    for path in filter(Path.is_file, folder.rglob("*")):
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        if SECRET.encode() in data or b"Meier" in data:
            yield path


@pytest.mark.slow
def test_nothing_that_a_run_leaves_holds_a_secret_that_was_planted(tmp_path):
    home, reports = tmp_path / "home", tmp_path / "reports"
    reports.mkdir()
    script = script_in(tmp_path, PLANTED)
    names = dict.fromkeys(VARIABLES.split(), SECRET)
    env = os.environ | names | {"LABKIT_HOME": str(home), "LABKIT_QUICK": "1", "LABKIT_WARM": "0"}
    watch = ["-m", "labkit", "watch", "--json", "--html"]
    script_words = ["--", sys.executable, script, "--token", SECRET, SECRET]

    def ran(*words):
        return subprocess.run(
            [sys.executable, *map(str, words)], env=env, capture_output=True, text=True, timeout=240
        )

    done = ran(*watch, reports / "w.html", *script_words)
    found = json.loads(done.stdout)
    assert found["record"] and SECRET not in done.stdout, done.stderr
    assert str(home) not in "".join(page.read_text() for page in reports.iterdir())
    run = lk.load(found["record"])
    run.export(reports / "run.html")
    run.save(reports / "run.jsonl.gz")
    done = ran(*watch, reports / "f.html", *script_words, "fail")
    assert done.returncode == 1 and SECRET not in done.stdout
    assert ran(script, "bench", SECRET).returncode == 0
    assert len(list(home.glob("runs/*"))) >= 4
    assert not list(search(home)) and not list(search(reports))
