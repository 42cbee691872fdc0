"""Trackers of Weights & Biases, MLflow and Aim, whose packages are imported when a run starts."""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from engine.base import option_tables
from engine.base.errors import MissingPackageError
from engine.base.signatures import AT_LEAST_0, check_arguments
from engine.trainer.names import choose_named
from engine.trainer.reports.tensorboard import TensorBoard
from engine.trainer.reports.tracker import SECONDS, Tracker, list_facts

if TYPE_CHECKING:
    from engine.trainer.fit import Fit

_FOREIGN = re.compile(r"[^\w\-. /]", re.ASCII)  # characters that MLflow's names cannot have


class _Service(Tracker):
    """Base of trackers of a package's runs.

    A resumed training run continues its run, whose name every checkpoint contains.
    """

    package: ClassVar[str]

    def __init__(self, run: Any, seconds: float, **options: Any) -> None:
        super().__init__(seconds)
        self._given, self._options = run, _drop_none(options)
        self._run: Any = None
        self._known: str | None = None
        if run is None:
            self._import_package()

    @abstractmethod
    def begin(self, fit: Fit, known: str | None) -> str:
        """Set `_run` to a new run, or to the one of this name; return its name."""

    @abstractmethod
    def close(self, fit: Fit) -> None:
        """End a run that `begin` has set."""

    def start(self, fit: Fit) -> None:
        self._run = self._given
        if self._given is None:
            self._known = self.begin(fit, self._known if fit.resumed else None)

    def finish(self, fit: Fit) -> None:
        if self._given is None:
            self.close(fit)

    def _import_package(self) -> Any:
        """Return the package.

        Raises:
            MissingPackageError: it is not installed.
        """
        try:
            return import_module(self.package)
        except ImportError as error:
            raise MissingPackageError(
                f"runs of {self.package} need the package {self.package}: "
                f"pip install 'edgegrad[{self.package}]'"
            ) from error

    def state(self) -> dict[str, Any]:
        """Return the name of the run."""
        return {} if self._known is None else {"run": self._known}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue the run."""
        self._known = state.get("run")


@check_arguments(seconds=AT_LEAST_0)
class WandbLog(_Service):
    """A run of Weights & Biases; needs the extra `wandb`.

    Args:
        run: an open run, or another object with a method `log`; it stays open.  By default a new
            run begins and ends with the training.
        project, name: the project and the name of a new run; by default W&B chooses them.
        mode: the mode of a new run; "offline" writes it to files for `wandb sync`.  By default W&B
            decides, for example by WANDB_MODE.
        seconds: the time between values of steps; 0 logs every step.
        options: more options of `wandb.init`.

    Every call of `log` contains the step as "trainer/step", the axis of all values.

    Raises:
        MissingPackageError: wandb is not installed, and no run is given.
    """

    package = "wandb"

    def __init__(
        self,
        run: Any = None,
        project: str | None = None,
        name: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        seconds: float = SECONDS,
        **options: Any,
    ) -> None:
        super().__init__(run, seconds, project=project, name=name, mode=mode, **options)

    def begin(self, fit: Fit, known: str | None) -> str:
        options = {"config": list_facts(fit), **_drop_none({"dir": fit.folder}), **self._options}
        if known is not None:
            options |= {"id": known, "resume": "allow"}
        self._run = self._import_package().init(**options)
        return str(self._run.id)

    def start(self, fit: Fit) -> None:
        super().start(fit)
        if hasattr(self._run, "define_metric"):
            self._run.define_metric("*", step_metric="trainer/step")

    def log(self, fit: Fit, values: Mapping[str, float]) -> None:
        self._run.log({**values, "trainer/step": fit.step})

    def close(self, fit: Fit) -> None:
        self._run.finish(exit_code=int(fit.error is not None))


@check_arguments(seconds=AT_LEAST_0)
class MlflowLog(_Service):
    """A run of MLflow; needs the extra `mlflow`.

    Args:
        run: the identifier of an open run in the tracking store; it stays open.  By default a new
            run begins and ends with the training.
        experiment: the name of the experiment of a new run; it is created if it does not exist.
        name: the name of a new run; by default MLflow chooses one.
        uri: the tracking store, such as "http://localhost:5000"; by default MLflow decides, for
            example by MLFLOW_TRACKING_URI.
        seconds: the time between values of steps; 0 logs every step.

    Characters that MLflow does not allow in names become "_".

    Raises:
        MissingPackageError: mlflow is not installed.
    """

    package = "mlflow"

    def __init__(
        self,
        run: str | None = None,
        experiment: str = "edgegrad",
        name: str | None = None,
        uri: str | None = None,
        seconds: float = SECONDS,
    ) -> None:
        super().__init__(run, seconds)
        self._experiment, self._name, self._uri = experiment, name, uri
        self._import_package()

    def start(self, fit: Fit) -> None:
        self._client = self._import_package().MlflowClient(self._uri)
        super().start(fit)
        self._known = self._run

    def begin(self, fit: Fit, known: str | None) -> str:
        if known is not None:
            self._client.update_run(known, status="RUNNING")
            self._run = known
            return known
        there = self._client.get_experiment_by_name(self._experiment)
        home = (
            self._client.create_experiment(self._experiment)
            if there is None
            else there.experiment_id
        )
        name = str(self._client.create_run(home, run_name=self._name).info.run_id)
        for key, value in list_facts(fit).items():
            self._client.log_param(name, key, value)
        self._run = name
        return name

    def log(self, fit: Fit, values: Mapping[str, float]) -> None:
        metric, now = self._import_package().entities.Metric, int(1000 * time.time())
        named = {_FOREIGN.sub("_", name): float(value) for name, value in values.items()}
        self._client.log_batch(
            self._run, metrics=[metric(name, v, now, fit.step) for name, v in named.items()]
        )

    def close(self, fit: Fit) -> None:
        self._client.set_terminated(self._run, "FAILED" if fit.error else "FINISHED")


@check_arguments(seconds=AT_LEAST_0)
class AimLog(_Service):
    """A run of Aim; needs the extra `aim`.

    Args:
        run: an open `aim.Run`, or another object with a method `track`; it stays open.  By default
            a new run begins and ends with the training.
        repo: the folder of a new run; by default Aim decides.
        experiment: the experiment of a new run; by default Aim's.
        seconds: the time between values of steps; 0 logs every step.
        options: more options of `aim.Run`.

    Raises:
        MissingPackageError: aim is not installed, and no run is given.
    """

    package = "aim"

    def __init__(
        self,
        run: Any = None,
        repo: str | None = None,
        experiment: str | None = None,
        seconds: float = SECONDS,
        **options: Any,
    ) -> None:
        super().__init__(run, seconds, repo=repo, experiment=experiment, **options)

    def begin(self, fit: Fit, known: str | None) -> str:
        self._run = self._import_package().Run(known, **self._options)
        self._run["edgegrad"] = list_facts(fit)
        return str(self._run.hash)

    def log(self, fit: Fit, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._run.track(float(value), name=name, step=fit.step, epoch=fit.epoch)

    def close(self, fit: Fit) -> None:
        self._run.close()


def list_known() -> dict[str, type[Tracker]]:
    """Return the trackers by name."""
    kinds = (AimLog, MlflowLog, TensorBoard, WandbLog)
    return {kind.__name__.removesuffix("Log").lower(): kind for kind in kinds}


def _drop_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def make_tracker(name: str, options: Mapping[str, Any], place: str, folder: Path) -> Tracker:
    """Return the tracker of a name, with its options.

    folder: the folder of the run; trackers that write files get a folder in it.
    place: the beginning of messages.

    Raises:
        InputError, DTypeError: there is nothing of that name, or an option does not fit.
        MissingPackageError: the package that it needs is not installed.
    """
    kind = choose_named(list_known(), name, "log", place)
    known = option_tables.list_options(kind)
    given: dict[str, Any] = {"folder": folder / name.lower(), "run": None}
    given = {key: value for key, value in given.items() if key in known}
    return option_tables.make(kind, options, f"{place} {name}", **given)
