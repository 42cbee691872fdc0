"""Train ONNX models on CPUs, from laptops to small boards, and export them as ONNX.

    import edgegrad as eg

    trainer = eg.Trainer.from_onnx("forward.onnx", "cross_entropy", eg.AdamW(lr=1e-3))
    trainer.fit(eg.Images("photos"), validation=0.1, callbacks=[eg.EarlyStopping()])
    trainer.export("trained.onnx")

Start with `help(edgegrad.Trainer)`, which trains a model, and `help(edgegrad.Session)`, which runs
one.  The top level offers the modules below and their main names; each is imported at its first
use.  `edgegrad` and `engine` are two names of one package, so `edgegrad.Trainer` and
`engine.trainer.Trainer` are the same class.
"""

from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from engine.base.package import VERSION
from engine.base.public_names import HOMES

if TYPE_CHECKING:
    from engine import api as api
    from engine import artifacts as artifacts
    from engine import backend as backend
    from engine import custom as custom
    from engine import data as data
    from engine import distributed as distributed
    from engine import errors as errors
    from engine import inference as inference
    from engine import lora as lora
    from engine import onnxblock as onnxblock
    from engine import profiling as profiling
    from engine import quantization as quantization
    from engine import reports as reports
    from engine import trainer as trainer
    from engine.api import *
    from engine.artifacts import *
    from engine.backend import supported as supported
    from engine.data import *
    from engine.errors import EngineError as EngineError
    from engine.inference import Session as Session
    from engine.lora import Lora as Lora
    from engine.quantization import Qat as Qat
    from engine.quantization import Quantization as Quantization
    from engine.quantization import Quantized as Quantized
    from engine.quantization import prepare_qat as prepare_qat
    from engine.quantization import quantize as quantize
    from engine.reports import AimLog as AimLog
    from engine.reports import Comparison as Comparison
    from engine.reports import CsvLog as CsvLog
    from engine.reports import HtmlReport as HtmlReport
    from engine.reports import JsonLog as JsonLog
    from engine.reports import LiveCurve as LiveCurve
    from engine.reports import MlflowLog as MlflowLog
    from engine.reports import Progress as Progress
    from engine.reports import TensorBoard as TensorBoard
    from engine.reports import WandbLog as WandbLog
    from engine.reports import compare as compare
    from engine.trainer import *

__version__ = VERSION


def _offer(name: str) -> Any:
    """Return a name of the top level or a module, imported at its first use.

    Raises:
        AttributeError: no such name exists; the message suggests the nearest names.
    """
    if name in HOMES:
        home = HOMES[name]
        if home == __name__:
            return import_module(f"{home}.{name}")
        return getattr(import_module(home), name)
    unknown = f"module 'edgegrad' has no attribute {name!r}"
    if name.startswith("__"):
        raise AttributeError(unknown)
    if PathFinder.find_spec(f"{__name__}.{name}", __path__):
        raise AttributeError(f"{unknown} until `import edgegrad.{name}`")
    from engine.base.errors import suggest_nearest

    raise AttributeError(unknown + suggest_nearest(name, HOMES))


def __dir__() -> list[str]:
    return sorted({*HOMES, *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # type checkers take the names from the imports above and refuse others
    __all__ = list(HOMES)
    __getattr__ = _offer
