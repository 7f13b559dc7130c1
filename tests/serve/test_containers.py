"""The container and compose files: no engine runs here, so at least they name nothing that is not there."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from spotlessnet.cli.serving import serve
from spotlessnet.serve import workflow

ROOT = Path(__file__).parents[2]
IMAGE = (ROOT / "Containerfile.desk").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def flags():
    """Every flag of `spotless serve`."""
    return {"--" + name.replace("_", "-") for name in serve.__annotations__}


def test_the_image_copies_what_is_there_and_starts_the_desk():
    for line in re.findall(r"^COPY (.+) \S+$", IMAGE, re.M):
        assert all((ROOT / name).exists() for name in line.split()), line
    [entry] = re.findall(r"^ENTRYPOINT (.+)$", IMAGE, re.M)
    command = json.loads(entry)
    assert command[:2] == ["spotless", "serve"]
    assert {word for word in command if word.startswith("--")} <= flags()
    [health] = re.findall(r"^HEALTHCHECK .*CMD (.+)$", IMAGE, re.M)
    compile(json.loads(health)[2], "health", "exec")
    shell, line = COMPOSE["services"]["desk"]["healthcheck"]["test"]
    assert (shell, shlex.split(line)) == ("CMD-SHELL", json.loads(health))
    assert "/readyz" in health
    assert IMAGE.index("USER person") < IMAGE.index("ENTRYPOINT")


def test_both_images_install_torch_and_the_package_alike():
    other = (ROOT / "Containerfile").read_text(encoding="utf-8")
    mine, theirs = (re.findall(r"pip install (.+)", text.replace("serve.lock", "run.lock")) for text in (IMAGE, other))
    assert [line.partition("&&")[0] for line in mine] == [line.partition("&&")[0] for line in theirs]


def test_compose_names_what_is_there():
    services = COMPOSE["services"]
    assert set(services) == {"database", "desk"}
    desk = services["desk"]
    assert (ROOT / desk["build"]["dockerfile"]).exists()
    assert {word for word in desk["command"] if word.startswith("--")} <= flags()
    assert set(desk["depends_on"]) <= set(services)
    assert "healthcheck" in services["database"], "service_healthy needs one"
    named = {one.split(":")[0] for service in services.values() for one in service["volumes"] if one[0] not in "./"}
    assert named == set(COMPOSE["volumes"])
    user, name = (services["database"]["environment"][key] for key in ("POSTGRES_USER", "POSTGRES_DB"))
    address = desk["environment"]["SPOTLESS_DATABASE"]
    assert re.fullmatch(rf"postgresql://{user}:\$\{{POSTGRES_PASSWORD:\?[^}}]+\}}@database/{name}", address)
    assert all(port.startswith("127.0.0.1:") for port in desk["ports"])


def test_the_runbook_speaks_of_metrics_and_endpoints_that_exist(client, app, tenant):
    text = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    metrics = client.get("/metrics", headers=tenant.headers("read")).text
    named = set(re.findall(r"spotless_\w+", text))
    assert len(named) >= 4
    assert [name for name in named if f"\n{name} " not in metrics] == []
    for place in re.findall(r"`GET (\S+)`", text):
        assert client.get(place, headers=tenant.headers("read")).status_code == 200


@pytest.mark.parametrize("version", ["0.2.0", "9.9.9"])
def test_a_newer_package_goes_on_with_the_jobs_of_an_older_one(desk, monkeypatch, version):
    """DBOS takes up only what bears the same version, so that must not be the package's."""
    told = []

    class Noted:
        def __init__(self, config) -> None:
            told.append(config)

        launch = register_queue = destroy = staticmethod(lambda *_, **__: None)

    monkeypatch.setattr(workflow, "DBOS", Noted)
    monkeypatch.setattr("spotlessnet.__version__", version)
    workflow.launch(desk)
    workflow.stop()
    assert told[0]["application_version"] == workflow.STEPS_VERSION
