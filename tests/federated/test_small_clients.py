"""Devices with trimmed builds in federations: what they learn is what the engine learns."""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Trainer, lora
from engine.artifacts import SGD, MSELoss
from engine.errors import EngineError, InputError, ModelWarning
from engine.federated import parameters
from engine.federated.device import Device
from engine.federated.folder import ANSWER, Folder, serve
from engine.federated.learner import Kept
from engine.federated.learners import learner_of
from engine.federated.local import Learner
from engine.federated.local_options import LocalOptions
from engine.federated.message import Message, fingerprint
from engine.federated.trimmed import TrimmedLearner
from engine.tools.trimmed.build import build
from engine.tools.trimmed.options import Options, PlanRequest
from engine.tools.trimmed.targets import resolve
from tests.support.builds import compile_c, load, make_build, make_samples, needs_cc
from tests.support.lora_models import FORMS, write
from tests.support.places import GOLDENS

pytestmark = needs_cc
SIZES = (4, 3)


@pytest.fixture
def mine() -> Any:
    return load(make_build("mlp", batches=SIZES)).Trainer(GOLDENS / "mlp/checkpoint")


@pytest.fixture
def engines() -> Trainer:
    return Trainer(GOLDENS / "mlp", threads=1)


def trained(trainer: Any) -> dict[str, Any]:
    return parameters.get(trainer, parameters.trainable(trainer))


def same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name, strict=True)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_build_learns_what_the_engine_learns(keeps: bool, mine: Any, engines: Trainer) -> None:
    """Rounds of two clients in turn, to the last bit: parameters, losses, metrics, what is kept."""
    learners = learner_of(mine), learner_of(engines)
    assert [type(learner) for learner in learners] == [TrimmedLearner, Learner]
    start, sets = trained(engines), [make_samples(11), make_samples(8)]
    sent = start
    kept: list[list[Kept]] = [[Kept(), Kept()], [Kept(), Kept()]]
    for number in range(3):
        results = list[dict[str, Any]]()
        for client, data in enumerate(sets):
            seed = 10 * number + client
            options = LocalOptions(
                epochs=2, batch_size=4, learning_rate=0.05, keep_optimizer=keeps, seed=seed,
                metrics=("accuracy",),
            )  # fmt: skip
            learned = []
            for who, learner in enumerate(learners):
                learner.begin(sent, options, kept[who][client])
                learned.append(learner.train(data, options))
                kept[who][client] = learner.kept(options)
                learner.begin(sent, options, kept[who][client])
                results.append({"evaluation": learner.evaluate(data, options)})
            same(learned[0].arrays, learned[1].arrays)
            assert learned[0].examples == learned[1].examples == len(data[0])
            assert learned[0].loss == learned[1].loss
            assert results[-1] == results[-2]
        sent = learned[0].arrays
    assert bool(kept[0][0].arrays) is keeps
    name = sorted(start)[0]
    assert np.abs(sent[name] - start[name]).max() > 0.01


def test_what_a_build_cannot_do_is_told(mine: Any) -> None:
    learner, start, options = TrimmedLearner(mine), trained(mine), LocalOptions()
    x, labels = make_samples(8)
    first = sorted(start)[0]
    with pytest.raises(EngineError, match="begin"):
        learner.train((x, labels), options)
    learner.begin(start, options)
    refused: list[tuple[Any, LocalOptions, str]] = [
        ((x, labels), LocalOptions(batch_size=8), "plans for 4 or 3 samples; edgegrad build --b"),
        ((x[:2], labels[:2]), options, "2 samples are fewer than a batch of 4"),
        ((x[:0], labels[:0]), options, "0 samples"),
        ((x, labels[:5]), options, r"\[8, 5\] samples"),
        ((x,), options, "an array for each of input, labels"),
        (([1], [2]), options, "an array for each"),
        ((x, labels + 90), options, "label 9"),
        ((x[:, 1:], labels), options, "float32"),
    ]
    for data, asked, said in refused:
        with pytest.raises(EngineError, match=said):
            learner.train(data, asked)
    for arrays in ({first: start[first]}, {**start, "x": x}, {**start, first: x}):
        with pytest.raises(EngineError, match=r"parameter"):
            learner.begin(arrays, options)
    with pytest.raises(EngineError, match="not a checkpoint"):
        learner.begin(start, LocalOptions(keep_optimizer=True), Kept({"checkpoint": x}))
    with pytest.raises(EngineError, match="proximal"):
        learner.begin(start, LocalOptions(proximal_mu=0.1))
    learner.begin(start, options)
    with pytest.warns(ModelWarning, match="2 of 6 samples are left out"):
        assert learner.train((x[:6], labels[:6]), options).examples == 4
    actual = list[Mapping[str, Any]]()
    for data in ((x, labels), {"labels": labels, "input": x}):
        learner.begin(start, options)
        actual.append(learner.train(data, options).arrays)
    same(*actual)


def test_a_device_answers(mine: Any, engines: Trainer, tmp_path: Path) -> None:
    """By messages: a build and the engine; a device with data of another kind says so."""
    x, labels = make_samples(7)
    devices = [Device(learner_of(each), (x, labels), (x, labels)) for each in (mine, engines)]
    arrays = trained(engines)
    config: dict[str, Any] = {
        "batch-size": 4,
        "learning-rate": 0.1,
        "metrics": "accuracy",
        "strategy": "FedAvg",
    }
    for kind in ("train", "evaluate", "train"):
        request = Message(kind, fingerprint(arrays), 3, arrays, config)
        answers = [each.answer(Message.from_bytes(request.to_bytes())) for each in devices]
        for answer in answers:
            answer.check_answer(request)
        same(answers[0].arrays, answers[1].arrays)
        assert answers[0].metrics == answers[1].metrics
    asked = Message("train", request.model, 3, arrays, {**config, "send": "difference"})
    learned = devices[0].answer(asked).arrays
    same(learned, parameters.subtract(answers[0].arrays, arrays))
    assert (
        "no data to evaluate on"
        in Device(devices[0].learner, (x, labels))
        .answer(Message("evaluate", request.model, 3, arrays))
        .reason
    )
    other = {**arrays, "x": x}
    refused = [
        (Message("train", "0" * 16, 0, arrays), "this device has model"),
        (Message("train", fingerprint(other), 0, other), "this device has model"),
        (Message("train", request.model, 0, arrays, {"local-epochs": -1}), "local-epochs=-1"),
        (Message("train", request.model, 0, arrays, {"learning-rate": 1e30}), "loss"),
    ]
    for asked, said in refused:
        answer = devices[0].answer(asked)
        assert answer.kind == "failed"
        assert said in answer.reason
    with pytest.raises(InputError, match="a message 'failed'"):
        devices[0].answer(answer)

    folder = Folder(tmp_path / "device")
    folder.ask(request)
    (tmp_path / "device/000009-train.safetensors").write_bytes(b"half of a")
    assert folder.answer_to(request) is None
    assert serve(folder, devices[0], seconds=0) == 1
    assert serve(folder, devices[0], seconds=0) == 0
    actual = folder.answer_to(request)
    assert actual is not None
    same(actual.arrays, answers[0].arrays)
    folder.clear(request)
    assert [path.name for path in folder.place.iterdir()] == ["000009-train.safetensors"]


# --- with Flower


class Devices:
    """Three folders of devices: a build from Python, a build in C, and the engine."""

    def __init__(self, folder: Path, engines: Trainer, mine: Any) -> None:
        self.sets = [make_samples(n) for n in (8, 11, 7)]
        self.folders = [folder / name for name in ("python", "c", "engine")]
        self.learners = {0: learner_of(mine), 2: learner_of(engines)}
        at = make_build("mlp", batches=SIZES, federated=True)
        self.program = compile_c(
            folder / "device", "-std=c99", f"-I{at}", at / "src/device.c", at / "src/mnist.c",
            at / "src/kernels.o", "-pthread",
        )  # fmt: skip
        for place, (x, labels) in zip(self.folders, self.sets, strict=True):
            place.mkdir()
            x.tofile(place / "x.bin")
            labels.tofile(place / "labels.bin")
        shutil.copy(GOLDENS / "mlp/checkpoint", self.folders[1] / "checkpoint")
        self.end = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(3)]

    def run(self, index: int) -> None:
        folder = Folder(self.folders[index])
        device = None
        if index in self.learners:
            data = self.sets[index]
            device = Device(self.learners[index], data, data, number=index)
        while not self.end.wait(0.01):
            if device is not None:
                serve(folder, device, 0)
                continue
            for path in folder.requests():
                answer = path.name.removesuffix(".safetensors") + ANSWER
                words = ["checkpoint", path.name, answer, "x.bin", "labels.bin"]
                subprocess.run([self.program, *words], cwd=folder.place, check=True, timeout=60)

    def __enter__(self) -> Devices:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end.set()
        for thread in self.threads:
            thread.join()


CONFIG: dict[str, Any] = {
    "num-server-rounds": 2, "local-epochs": 1, "batch-size": 4, "learning-rate": 0.05,
    "fraction-evaluate": 1.0, "min-train-nodes": 1, "min-evaluate-nodes": 1,
    "min-available-nodes": 1, "seed": 3,
}  # fmt: skip


def federate(client: Any, clients: int) -> dict[str, Any]:
    """The parameters of a federation in this process after its rounds."""
    pytest.importorskip("flwr", reason="needs flwr")
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    from engine.federated.flower.records import from_record, to_record
    from engine.federated.flower.simulation import LocalGrid

    start = trained(Trainer(GOLDENS / "mlp", threads=1))
    random.seed(0)  # by which FedAvg orders its clients, and so the sums
    result = FedAvg(
        fraction_evaluate=1.0, min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1
    ).start(
        LocalGrid(client, clients, CONFIG), to_record(start), num_rounds=2,
        train_config=ConfigRecord(), evaluate_config=ConfigRecord(),
    )  # fmt: skip
    arrays = result.arrays
    assert isinstance(arrays, ArrayRecord)
    told = result.evaluate_metrics_clientapp.values()
    losses: list[Any] = [metrics["eval_loss"] for metrics in told]
    assert losses[1] < losses[0]
    return from_record(arrays)


@pytest.fixture
def devices(tmp_path: Path, mine: Any, engines: Trainer) -> Iterator[Devices]:
    pytest.importorskip("flwr", reason="needs flwr")
    with Devices(tmp_path, engines, mine) as actual_devices:
        yield actual_devices


def test_flower_takes_either_trainer(mine: Any, engines: Trainer) -> None:
    """The same ClientApp, to the last bit."""
    pytest.importorskip("flwr", reason="needs flwr")
    from engine.federated.flower import client_app

    def data(context: Any) -> tuple[Any, Any]:
        samples = make_samples((8, 11, 7)[int(context.node_config["partition-id"])])
        return samples, samples

    trainers = iter((mine, engines))
    same(*(federate(client_app(lambda config: next(trainers), data), 3) for _ in range(2)))


def test_a_gateway_speaks_for_devices_of_all_kinds(devices: Devices) -> None:
    """One client of three devices is what the three are as clients of their own, to rounding."""
    from engine.federated.flower.gateway import gateway_app

    one = federate(gateway_app(lambda context: devices.folders, seconds=60), 1)
    each = federate(
        gateway_app(lambda c: [devices.folders[int(c.node_config["partition-id"])]], seconds=60), 3
    )
    for name, array in each.items():
        np.testing.assert_allclose(one[name], array, atol=1e-5)


def test_a_device_that_is_silent_is_left_out(devices: Devices, tmp_path: Path, caplog: Any) -> None:
    from flwr.app import ConfigRecord, Context, Message, RecordDict

    from engine.federated.flower.gateway import gateway_app
    from engine.federated.flower.records import arrays_of, to_record

    caplog.set_level("WARNING", logger="flwr")
    start = trained(Trainer(GOLDENS / "mlp", threads=1))
    content = RecordDict({"arrays": to_record(start), "config": ConfigRecord({"server-round": 1})})
    message = Message(content, dst_node_id=1, message_type="train")
    message.metadata.__dict__["_message_id"] = "1"
    context = Context(1, 1, {}, RecordDict(), {"batch-size": 4})
    nobody = tmp_path / "nobody"
    reply = gateway_app(lambda _: [devices.folders[0], nobody], seconds=1.5)(message, context)
    assert reply.content["metrics"]["num-examples"] == 8
    assert set(arrays_of(reply.content)) == set(start)
    assert not list(nobody.iterdir())
    reply = gateway_app(lambda _: [nobody], seconds=0.1)(message, context)
    reason = str(reply.error.reason)
    assert "none of 1 devices has answered" in reason
    assert "no answer within 0.1 seconds" in reason
    assert f"device {nobody}, round 1: no answer within 1.5 seconds" in caplog.text


# --- adapters


def test_adapters_alone_travel(tmp_path: Path) -> None:
    """LoRA over weights of 4 bits, with dropout: a build learns what the engine learns."""
    nodes, values, shape = FORMS["4 bits, zeros, bias"]
    plain = write(tmp_path / "plain.onnx", nodes, values, shape)
    adapted = lora.adapt(plain, lora.Lora("^fc", rank=2, dropout=0.1))
    adapted.save(tmp_path / "m.onnx")
    folder = tmp_path / "a"
    engines = Trainer.from_onnx(
        tmp_path / "m.onnx", MSELoss(), SGD(0.001), folder=folder, threads=1
    )
    build(folder, tmp_path / "b", Options("mnist", resolve("native"), PlanRequest((4,))))
    mine = load(tmp_path / "b").Trainer()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((12, 40)).astype(np.float32)
    y = rng.standard_normal((12, *engines.predict_batch(x)["y"].shape[1:])).astype(np.float32)
    learners, sent = (learner_of(mine), learner_of(engines)), trained(engines)
    message = Message("train", fingerprint(sent), 0, sent)
    assert sorted(message.arrays) == ["fc.lora_A.weight", "fc.lora_B.weight"]
    assert sum(a.size for a in message.arrays.values()) == adapted.summary.added
    losses = list[float]()
    for seed in range(3):
        options = LocalOptions(batch_size=4, seed=seed)
        learned = []
        for learner in learners:
            learner.begin(sent, options)
            learned.append(learner.train((x, y), options))
        same(learned[0].arrays, learned[1].arrays)
        losses.append(learned[0].loss)
        sent = learned[0].arrays
    assert losses[0] > losses[2]
    mine.module.export_model_for_inferencing(tmp_path / "trained.onnx")
    same(lora.Adapter.of_model(tmp_path / "trained.onnx").tensors, sent)
