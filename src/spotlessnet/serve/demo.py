"""`spotless serve --demo`: a model of digits, three requests, and pages to click, in a folder that is thrown away."""

import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fastapi import FastAPI, Response

from spotlessnet.serve.access import SCOPES, Caller, caller_of, policy_of, session_cookie, set_policy
from spotlessnet.serve.app import make_app
from spotlessnet.serve.database import reading
from spotlessnet.serve.desk import Desk
from spotlessnet.serve.intake import submit
from spotlessnet.serve.pages import COOKIE, back
from spotlessnet.serve.policy import Policy
from spotlessnet.serve.running import Run, serve_app, tenant_named
from spotlessnet.serve.watching import LOG

TRAINING = '''"""A classifier of digits, recorded: sixty people drew them."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import spotlessnet as sn

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
recipe = sn.Recipe(epochs=10, lr=0.1, momentum=0.9, batch_size=64)


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def examples():
    return x[:1200], y[:1200], [f"person-{i % 60:02}" for i in range(1200)]


def test():
    return x[1200:], y[1200:]


if __name__ == "__main__":
    model = build()
    with sn.record("run", model, examples, build=build, recipe=recipe) as run:
        run.model = sn.fit(sn.Trained.of(model, recipe=recipe), sn.Data.of(examples()[:2]), recipe).module()
'''

REQUESTS = {"letter of 3 March": ["person-07"], "web form 118": ["person-08", "person-09"], "mail": ["somebody-else"]}


def run_demo(wanted: Run, say: Callable[[str], None]) -> int:
    """Serve the demo until interrupted; its folder goes with it."""
    with tempfile.TemporaryDirectory(prefix="spotless-demo-") as name:
        folder = Path(name)
        desk = replace(wanted, folder=folder / "desk", database=None, desk_key=None, signing_key=None).desk()
        app, code = demo_app(desk)
        threading.Thread(target=fill, args=(desk, folder, app), daemon=True).start()
        say(f"desk    http://{wanted.host}:{wanted.port}/demo/{code}")
        say("        open it once: it lets you in. The model is being trained; three requests follow.")
        serve_app(app, wanted)
        desk.close()
    return 0


def demo_app(desk: Desk) -> tuple[FastAPI, str]:
    """The service with a door that opens once, and the code of that door."""
    tenant, token = tenant_named(desk, "demo")
    with desk.database.begin() as connection:
        set_policy(connection, tenant, Policy(audit_seeds=5), "demo")
        found = caller_of(connection, token or "")
    caller = found or Caller("demo", tenant, "demo", frozenset(SCOPES))
    app = make_app(desk)
    app.state.tenant = tenant
    codes = [secrets.token_urlsafe(16)]

    @app.get("/demo/{code}", include_in_schema=False)
    def enter(code: str) -> Response:
        answer = back("/")
        if codes and secrets.compare_digest(code, codes[0]):
            codes.clear()
            answer.set_cookie(COOKIE, session_cookie(desk.keys, caller), httponly=True, samesite="lax")
        return answer

    return app, codes[0]


def fill(desk: Desk, folder: Path, app: FastAPI) -> None:
    """Train, register, and send three requests, once pages are answered: a person is there first."""
    tenant = app.state.tenant
    app.state.up.wait()
    try:
        (folder / "digits.py").write_text(TRAINING, encoding="utf-8")
        subprocess.run([sys.executable, "digits.py"], cwd=folder, check=True, capture_output=True)
        settings = {"test": f"{folder / 'digits.py'}:test"}
        desk.add_model(tenant, "digits", "recorded", settings, folder / "run", "demo")
        with reading(desk.database) as connection:
            policy = policy_of(connection, tenant)
        with desk.database.begin() as connection:
            for key, ids in REQUESTS.items():
                submit(connection, desk.keys, tenant, policy, key=key, ids=ids, submitter="demo")
    except Exception:
        LOG.exception("the demo could not be filled")
