"""MLflow's model registry as a second place to publish: weights are logged first, then the alias is set to them.

MLflow is imported only where a desk was told to publish there.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from spotlessnet.core.errors import NeedError
from spotlessnet.serve.engine import ENVIRONMENT, WorkError

ALIAS = "published"
NETWORK_TAG = "spotless.network"
EXPERIMENT = "spotlessnet desk"


@runtime_checkable
class Registry(Protocol):
    """A place outside the desk that is told which version counts."""

    def publish(self, tenant: str, model: str, network: str, files: list[Path], told: dict[str, str]) -> None:
        """Log the files, then let the alias lead to them; a second time changes nothing."""

    def retire(self, tenant: str, model: str, network: str) -> None:
        """Delete every version that the desk logged but this one."""


class Mlflow:
    """The registry of an MLflow server, over its own client.

    **Arguments:**

    - `client`: an `mlflow.MlflowClient`, or something of the same shape.
    """

    def __init__(self, client: Any) -> None:
        self.client = client

    @staticmethod
    def at(uri: str) -> "Mlflow":
        """The registry at a tracking address."""
        try:
            from mlflow import MlflowClient  # type: ignore[import-not-found]  # an extra that is not installed here
        except ImportError as e:
            raise NeedError("--mlflow needs mlflow, which is not installed: `pip install spotlessnet[mlflow]`.") from e
        return Mlflow(MlflowClient(tracking_uri=uri, registry_uri=uri))

    def publish(self, tenant: str, model: str, network: str, files: list[Path], told: dict[str, str]) -> None:
        """Log the files, then let the alias lead to them; a second time changes nothing."""
        _calling(lambda: self._publish(_name(tenant, model), network, files, told))

    def _publish(self, name: str, network: str, files: list[Path], told: dict[str, str]) -> None:
        if not self.client.search_registered_models(f"name='{name}'"):
            self.client.create_registered_model(name)
        logged = [one for one in self._versions(name) if one.tags[NETWORK_TAG] == network]
        version = logged[0] if logged else self._logged(name, network, files, told)
        self.client.set_registered_model_alias(name, ALIAS, version.version)

    def _logged(self, name: str, network: str, files: list[Path], told: dict[str, str]) -> Any:
        """A new version, with its tag from the first: what was interrupted before that counts for nothing."""
        found = self.client.get_experiment_by_name(EXPERIMENT)
        experiment = self.client.create_experiment(EXPERIMENT) if found is None else found.experiment_id
        run = self.client.create_run(experiment, run_name=name).info
        for file in files:
            self.client.log_artifact(run.run_id, str(file), "model")
        self.client.set_terminated(run.run_id)
        tags = {NETWORK_TAG: network, **{f"spotless.{key}": value for key, value in told.items()}}
        return self.client.create_model_version(name, f"{run.artifact_uri}/model", run.run_id, tags=tags)

    def retire(self, tenant: str, model: str, network: str) -> None:
        """Delete every version that the desk logged but this one, with its run; `mlflow gc` then removes the files."""
        _calling(lambda: self._retire(_name(tenant, model), network))

    def _retire(self, name: str, network: str) -> None:
        for one in self._versions(name):
            if one.tags[NETWORK_TAG] != network:
                self.client.delete_run(one.run_id)
                self.client.delete_model_version(name, one.version)

    def _versions(self, name: str) -> list[Any]:
        """The versions that the desk logged; those of others are left alone."""
        return [one for one in self.client.search_model_versions(f"name='{name}'") if NETWORK_TAG in one.tags]


def _name(tenant: str, model: str) -> str:
    """Names of models are unlike within a tenant alone."""
    return f"{model}-{tenant}"


def _calling(call: Callable[[], None]) -> None:
    """Whatever a registry raises may pass: the step is tried again, and then left to a person."""
    try:
        call()
    except Exception as e:
        raise WorkError(f"MLflow's registry did not do what it was asked for ({type(e).__name__}).", ENVIRONMENT) from e


LOGGED = ("scrubbed.safetensors", "model.safetensors", "network.safetensors", "receipt.json")
"""Names of weights and receipts, written out here: importing the library into the desk would take it seconds."""


def files_to_log(folder: Path) -> list[Path]:
    """What others may have of a version: its weights and its receipt; never `private` or digests of rows."""
    return [folder / name for name in LOGGED if (folder / name).is_file()]
