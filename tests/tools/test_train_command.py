"""`edgegrad train`, `eval`, `predict` and `export`: from a model and pictures to predictions."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from engine import Trainer, artifacts
from engine.errors import ModelWarning
from engine.tools import cli
from engine.tools.actions import run_config, run_data, runs
from tests.support.commands import run_cli
from tests.support.places import ROOT
from tests.support.run_models import COLORS, write_classifier, write_pictures

pytest.importorskip("PIL", reason="needs Pillow")
FAST = ("--batch", "8", "--lr", "0.05", "--threads", "1")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos/, test/, model.onnx of 10 classes and the run `run`."""
    folder = tmp_path_factory.mktemp("home")
    write_pictures(folder / "photos")
    write_pictures(folder / "test", 4, seed=3)
    write_classifier(folder / "model.onnx")
    words = ("--model", folder / "model.onnx", "--data", folder / "photos", "-o", folder / "run")
    assert cli.main(["train", *map(str, words), "--epochs", "8", *FAST]) == 0
    return folder


@pytest.fixture
def run(home: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(home / "run", tmp_path / "run"))


def test_a_run_leaves_what_is_needed(home: Path) -> None:
    run = home / "run"
    names = {path.name for path in run.iterdir()}
    assert names >= {
        "run.toml", "run.json", "history.csv", "inference.onnx", "classes.txt", "forward.onnx",
        "artifacts", "checkpoints", "best", "last",
    }  # fmt: skip
    assert (run / "classes.txt").read_text().split() == sorted(COLORS)
    config = runs.read_config(run)
    assert config.data.kind == "images"
    assert config.data.options == {"layout": "NCHW", "size": [8, 8]}
    assert config.fit.epochs == 8
    session = ReferenceEvaluator(str(run / "inference.onnx"))
    (scores,) = session.run(None, {"x": np.zeros((2, 3, 8, 8), np.float32)})
    assert np.shape(scores) == (2, 3)


def test_the_output_tells_what_was_found_and_what_is_next(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", home / "model.onnx", "--data", home / "photos", "-o", tmp_path / "run")
    lines = run_cli(capsys, "train", *words, *FAST, "--epochs", 1, "--augment", "flip").splitlines()
    assert lines[0].endswith(
        "photos (images): 24 samples to train, 6 to validate; 3 classes: blue, green, red"
    )
    assert lines[1] == "model: its last layer 'fc' is replaced, for 3 classes"
    assert lines[2].endswith("model.onnx: 127 values are trained, 0 are frozen")
    assert lines[3].startswith("best: epoch 1: loss ")
    assert lines[4].startswith(f"wrote: {tmp_path / 'run' / 'inference.onnx'}, ")
    assert lines[-1] == f"next: edgegrad predict {tmp_path / 'run'} FILE..."


def test_a_learning_rate_is_searched_for_and_nothing_trained(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", home / "model.onnx", "--data", home / "photos", "-o", tmp_path / "run")
    picture = tmp_path / "rates.svg"
    lines = run_cli(capsys, "train", *words, *FAST, "--find-lr", picture).splitlines()
    assert "steps from 1e-07 to" in lines[-2]
    assert lines[-1] == f"wrote: {picture}"
    assert picture.read_text("utf-8").startswith("<svg")
    assert not (tmp_path / "run").exists()
    told = json.loads(run_cli(capsys, "train", *words, *FAST, "--find-lr", picture, "--json"))
    assert len(told["rates"]) == len(told["losses"]) > 20


def test_averages_and_the_best_parameters_are_options(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", home / "model.onnx", "--data", home / "photos", "-o", tmp_path / "run")
    run_cli(capsys, "train", *words, *FAST, "--epochs", 2, "--ema", 0.9, "--keep-best", 2,
         "--restore", "best")  # fmt: skip
    assert list((tmp_path / "run").glob("checkpoints/*/average"))
    trainer = Trainer.from_run(tmp_path / "run", threads=1)
    rows = (tmp_path / "run" / "history.csv").read_text().splitlines()
    best = min(float(row.split(",")[rows[0].split(",").index("val_loss")]) for row in rows[1:])
    config = runs.read_config(tmp_path / "run")
    _, held_out = run_data.open_rest(config.data, run_data.open_training(config.data), 0)
    assert held_out is not None
    assert trainer.evaluate(held_out)["loss"] == pytest.approx(best, rel=1e-6)


def test_json_is_all_that_is_printed(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", home / "model.onnx", "--data", home / "photos", "-o", tmp_path / "run")
    actual_data = json.loads(run_cli(capsys, "train", *words, *FAST, "--epochs", 2, "--json"))
    assert [row["epoch"] for row in actual_data["epochs"]] == [0, 1]
    assert actual_data["best"] in actual_data["epochs"]
    assert actual_data["classes"] == sorted(COLORS)
    assert actual_data["stop_reason"] is None
    assert str(tmp_path / "run" / "inference.onnx") in actual_data["wrote"]


def test_a_configuration_says_all_and_options_go_before_it(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(f"""
[model]
path = "{home / "model.onnx"}"
train = "classifier.*"
[data]
path = "{home / "photos"}"
validation = "{home / "test"}"
batch_size = 8
augment = ["flip", "color", "crop"]
[optimizer]
name = "sgd"
lr = 0.1
[schedule]
name = "cosine"
warmup = 2
[fit]
epochs = 5
threads = 1
accumulate = 2
metrics = ["accuracy", "f1"]
[output]
folder = "{tmp_path / "made"}"
""")
    words = ("--config", config, "--epochs", 2, "--set", "fit.seed=3", "--json")
    actual_data = json.loads(run_cli(capsys, "train", *words))
    assert len(actual_data["epochs"]) == 2
    assert {"val_accuracy", "val_f1"} <= actual_data["best"].keys()
    made = runs.read_config(tmp_path / "made")
    assert made.fit.seed == 3
    assert made.optimizer == run_config.ChosenClass("sgd", {"lr": 0.1})
    assert made.model.train == ("classifier.*",)


# --- resuming


def test_a_run_goes_on_as_if_it_had_not_ended(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", home / "model.onnx", "--data", home / "photos", *FAST, "--augment", "flip")
    run_cli(capsys, "train", *words, "--epochs", 4, "-o", tmp_path / "whole")
    run_cli(capsys, "train", *words, "--epochs", 2, "-o", tmp_path / "parts")
    run_cli(capsys, "train", "--resume", "--epochs", 3, "-o", tmp_path / "parts")
    run_cli(capsys, "train", *words, "--epochs", 4, "-o", tmp_path / "parts", "--resume")
    assert runs.read_config(tmp_path / "parts").fit.epochs == 4
    models = [(tmp_path / name / "inference.onnx").read_bytes() for name in ("whole", "parts")]
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lr", "0.5"], r"[optimizer] options was {'lr': 0.05} and is {'lr': 0.5} now"),
        (["--train", "conv.*"], "[model] train was ('*',) and is ('conv.*',) now"),
        (["--batch", "4"], "[data] batch_size was 8 and is 4 now"),
        (["--seed", "4"], "seed"),
    ],
)
def test_a_run_goes_on_with_what_it_began_with(
    words: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in run_cli(capsys, "train", "--resume", "-o", run, *words, status=1)


def test_there_must_be_a_run_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = run_cli(capsys, "train", "--resume", "-o", tmp_path / "none", status=1)
    assert "none holds no run to resume: leave out --resume" in told
    assert not (tmp_path / "none").exists()


def test_a_folder_has_one_run(home: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", home / "model.onnx", "--data", home / "photos", "-o", run)
    before = (run / "inference.onnx").read_bytes()
    told = run_cli(capsys, "train", *words, status=1)
    assert f"{run} holds a run already: continue it with --resume, or choose another" in told
    assert (run / "inference.onnx").read_bytes() == before


def test_a_run_is_no_part_of_its_data(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = home / "photos"
    before = sorted(photos.iterdir())
    for out in (photos, photos / "run"):
        words = ("--model", home / "model.onnx", "--data", photos, "-o", out)
        assert "lies in the data" in run_cli(capsys, "train", *words, status=1)
    assert sorted(photos.iterdir()) == before


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ("--model", home / "model.onnx", "--data", home / "photos", "-o", out, *FAST)
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.tools.cli", "train", *map(str, words), "--epochs", "100000"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while not (out / "last").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
    finally:
        process.kill()  # one that does not end would train for days
    assert process.returncode == 130, told
    assert told.splitlines()[-1] == f"interrupted; to continue: edgegrad train --resume -o {out}"
    assert "Traceback" not in told
    assert (out / "inference.onnx").exists()


# --- classes and heads


def test_parameters_are_unfrozen_by_epochs(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def changed(epochs: int, *more: object) -> set[str]:
        """The parameters that a run leaves with other values than the model has."""
        out = tmp_path / "run"
        words = ("--config", tmp_path / "run.toml", "--set", f"fit.epochs={epochs}", *more)
        run_cli(capsys, "train", *words)
        models = [onnx.load(path) for path in (out / "forward.onnx", out / "inference.onnx")]
        first, last = ({i.name: i.raw_data for i in m.graph.initializer} for m in models)
        return {name for name, data in first.items() if last[name] != data}

    (tmp_path / "run.toml").write_text(
        f"model = {{ path = '{home / 'model.onnx'}' }}\n"
        f"data = {{ path = '{home / 'photos'}', batch_size = 8 }}\n"
        f"output = {{ folder = '{tmp_path / 'run'}' }}\n"
        "optimizer = { lr = 0.01 }\n"
        "[fit]\nthreads = 1\nmonitor = 'loss'\n[fit.unfreeze]\n'classifier.*' = 0\n'*' = 2\n"
    )
    assert changed(2) == {"classifier.weight", "classifier.bias"}
    assert len(changed(6, "--resume")) == 4


@pytest.mark.parametrize(
    ("setting", "trained"),
    [
        ("model.update={last=1}", {"classifier.weight", "classifier.bias"}),
        (
            "model.lora={match='classifier', rank=2}",
            {"classifier.lora_A.weight", "classifier.lora_B.weight"},
        ),
    ],
    ids=["sparse update", "adapters"],
)
def test_a_part_of_a_model_is_trained_in_parts_of_batches(
    setting: str, trained: set[str], home: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out, model = tmp_path / "run", write_classifier(tmp_path / "model.onnx", classes=3)
    words: tuple[object, ...] = ("--model", model, "--data", home / "photos", "-o", out, *FAST)
    words += ("--set", setting, "--set", "fit.micro_batches=2", "--epochs")
    run_cli(capsys, "train", *words, 1)
    run_cli(capsys, "train", *words, 2, "--resume")
    actual_config = runs.read_config(out)
    assert actual_config.fit.micro_batches == 2
    assert set(Trainer(out / "artifacts").state.trainable_names()) == trained


def test_a_model_that_fits_is_trained_as_it_is(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_classifier(tmp_path / "model.onnx", classes=3)
    words = ("--model", model, "--data", home / "photos", "-o", tmp_path / "run", *FAST)
    assert "is replaced" not in run_cli(capsys, "train", *words, "--epochs", 1)
    assert not (tmp_path / "run" / "forward.onnx").exists()


def test_a_softmax_at_the_end_goes(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_classifier(tmp_path / "model.onnx", classes=3, last="Softmax")
    words = ("--model", model, "--data", home / "photos", "-o", tmp_path / "run", *FAST)
    told = run_cli(capsys, "train", *words, "--epochs", 1)
    assert "model: its last op, Softmax, is left out: the loss takes scores" in told
    assert "is replaced" not in told


def test_a_model_that_fixes_its_batch_is_trained_in_batches_of_that_size(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An incomplete batch is left out with a message; predictions leave out nothing."""
    model = onnx.load(write_classifier(tmp_path / "model.onnx"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 5
    onnx.save(model, tmp_path / "model.onnx")
    words = ("--model", tmp_path / "model.onnx", "--data", home / "photos", "--epochs", 1)
    with pytest.warns(ModelWarning, match="not a whole number of batches of 5"):
        run_cli(capsys, "train", *words, "-o", tmp_path / "run")
    rows = run_cli(capsys, "predict", tmp_path / "run", home / "test").splitlines()
    assert len(rows) == 12
    again = [str(word) for word in ("train", *words, "-o", tmp_path / "other")]
    assert cli.main([*again, "--batch", "8"]) == 1
    assert "batches of 8 samples, but the file of the model fixes" in capsys.readouterr().err
    with pytest.warns(ModelWarning, match="not a whole number of batches of 5"):
        assert cli.main([*again, "--batch", "5"]) == 0, "a run that failed at once does not count"


def test_grey_pictures_for_a_model_of_one_channel(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_classifier(tmp_path / "model.onnx", channels=1, size=6)
    words = ("--model", model, "--data", home / "photos", "-o", tmp_path / "run", *FAST)
    run_cli(capsys, "train", *words, "--epochs", 1)
    options = runs.read_config(tmp_path / "run").data.options
    assert options["color_mode"] == "grayscale"
    assert list(options["size"]) == [6, 6]


def test_classes_that_do_not_fit_are_refused_with_the_fix(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_classifier(tmp_path / "model.onnx", last="Hardmax")
    words = ("--data", home / "photos", "-o", tmp_path / "run", *FAST)
    told = run_cli(capsys, "train", "--model", model, *words, status=1)
    assert "made by Hardmax" in told
    assert "export the model with as many outputs as there are classes" in told
    keep = ("--set", "model.head=keep")
    told = run_cli(capsys, "train", "--model", home / "model.onnx", *words, *keep, status=1)
    assert "the model has scores of 10 classes and the data have 3: leave out" in told
    assert not (tmp_path / "run").exists()


# --- what is refused


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--data", "photos"], 1, "no model: give --model PATH, or `path` in [model] of --config"),
        (["--model", "model.onnx"], 1, "no data: give --data PATH"),
        (["--model", "modle.onnx", "--data", "photos"], 1, "modle.onnx: no such file"),
        (
            ["--model", "model.onnx", "--data", "photo"],
            1,
            "photo: no such file or folder; nearest: 'photos'",
        ),
        (
            ["--model", "model.onnx", "--data", "run/artifacts"],
            1,
            "names of files decide it (images:",
        ),
        (["--model", "photos", "--data", "photos"], 1, "photos: no such file"),
        (["--model", "resnet", "--data", "photos"], 1, "no model 'resnet'; nearest: 'resnet18'"),
        (["--model", "run/run.toml", "--data", "photos"], 1, "run.toml"),
        (["--config", "rn.toml"], 1, "rn.toml: no such file or folder"),
        (
            ["--model", "model.onnx", "--data", "photos", "--augment", "flop"],
            1,
            "augment: no 'flop' for pictures; nearest: 'flip'",
        ),
        (
            ["--model", "model.onnx", "--data", "photos", "--set", "data.options.sise=3"],
            1,
            "[data.options]: unknown key 'sise'; nearest: 'size'",
        ),
        (
            ["--model", "model.onnx", "--data", "photos", "--set", "epochs=3"],
            1,
            "expected TABLE.KEY=VALUE, such as fit.epochs=3; did you mean fit.epochs?",
        ),
        (["--model", "model.onnx", "--data", "photos", "--epochs", "0"], 1, "epochs=0: expected"),
        (["--model", "model.onnx", "--data", "photos", "--epochs", "x"], 2, "--epochs"),
        (
            ["--model", "model.onnx", "--data", "photos", "--batch", "8,4"],
            2,
            "'8,4' is not a valid",
        ),
        (["--model", "model.onnx", "--data", "photos", "--kind", "image"], 2, "'images'"),
        (
            ["--model", "model.onnx", "--data", "photos", "--metric", "acuracy"],
            1,
            "no metric 'acuracy'",
        ),
        (["--model", "model.onnx", "--data", "photos", "--train", "head.*"], 1, "matches none"),
    ],
)
def test_wrong_words(
    words: list[str],
    status: int,
    message: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(home)
    told = run_cli(capsys, "train", "-o", tmp_path / "out", *words, "--json", status=status)
    assert message in " ".join(told.split())
    if status == 1:
        assert told.startswith("edgegrad train: ")
        assert told.count("\n") == 1
    assert not (tmp_path / "out" / "run.json").exists()


# --- what is done with a run


def test_eval(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = home / "run"
    actual_data = json.loads(run_cli(capsys, "eval", run, "--data", home / "test", "--json"))
    assert actual_data["samples"] == 12
    assert actual_data["accuracy"] > 0.9
    text = run_cli(capsys, "eval", run, "--data", home / "test", "--metric", "f1", "--batch", 5)
    assert "12 samples of" in text
    assert "\nf1 " in text


def test_data_of_other_classes_are_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = shutil.copytree(home / "test", tmp_path / "test")
    (data / "red").rename(data / "rde")
    told = run_cli(capsys, "eval", home / "run", "--data", data, status=1)
    assert "the sub-folder 'rde' is not one of the classes; nearest: 'red'" in told


def test_predictions_are_those_of_the_exported_model(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = home / "test" / "red" / "000.png"
    (row,) = json.loads(run_cli(capsys, "predict", home / "run", file, "--json"))
    assert row["file"] == str(file)
    assert row["class"] == "red"
    assert sum(row["probabilities"].values()) == pytest.approx(1)
    text = run_cli(capsys, "predict", home / "run", file, home / "test" / "blue")
    assert text.splitlines()[0] == f"{file}  red  {100 * row['probability']:.1f} %"
    assert len(text.splitlines()) == 5
    table = tmp_path / "p.csv"
    assert run_cli(capsys, "predict", home / "run", home / "test", "-o", table) == (
        f"{table}: 12 predictions\n"
    )
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [r["class"] for r in rows] == [Path(r["file"]).parent.name for r in rows]
    same = [float(r["p(red)"]) for r in rows if r["file"] == str(file)]
    assert same == pytest.approx([row["probability"]], rel=1e-4)
    run_cli(capsys, "export", home / "run", "-o", tmp_path / "model.onnx")
    scores = ReferenceEvaluator(str(tmp_path / "model.onnx"))
    from engine.data.images import Images

    picture = Images(home / "test", 8).read(file)
    (outcome,) = scores.run(None, {"x": picture[np.newaxis]})
    shares = np.exp(np.asarray(outcome[0])) / np.exp(np.asarray(outcome[0])).sum()
    assert shares.max() == pytest.approx(row["probability"], rel=1e-4)


def test_export_of_a_run_and_of_artifacts(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cli(capsys, "export", home / "run", "-o", tmp_path / "best.onnx")
    assert (tmp_path / "best.onnx").read_bytes() == (home / "run/inference.onnx").read_bytes()
    run_cli(capsys, "export", home / "run", "--checkpoint", "last", "-o", tmp_path / "last.onnx")
    folder = tmp_path / "artifacts"
    artifacts.generate_artifacts(
        home / "model.onnx", ["conv.weight"], loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW, artifact_directory=folder,
    )  # fmt: skip
    actual_data = json.loads(run_cli(capsys, "export", folder, "-o", tmp_path / "m.onnx", "--json"))
    assert actual_data["outputs"] == ["y"]
    assert actual_data["files"] == {str(tmp_path / "m.onnx"): (tmp_path / "m.onnx").stat().st_size}
    onnx.checker.check_model(str(tmp_path / "m.onnx"))


def test_a_device_goes_on_from_what_a_run_has_learned(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "device"
    told = run_cli(capsys, "export", home / "run", "--artifacts", "-o", out)
    names = {"training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"}
    assert {path.name for path in out.iterdir()} == names
    assert told.count(" bytes\n") == 4
    trainer = Trainer(out)
    trainer.export(tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == (home / "run" / "inference.onnx").read_bytes()
    assert trainer.steps == 0
    assert trainer.learning_rate == pytest.approx(0.05)
    trainer.step(np.zeros((2, 3, 8, 8), np.float32), np.zeros(2, np.int64))
    again = ("export", home / "run", "--artifacts", "-o", out)
    assert "has artifacts already" in run_cli(capsys, *again, status=1)
    told = run_cli(capsys, "export", out, "--artifacts", "-o", tmp_path / "other", status=1)
    assert "no run of `edgegrad train`" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "photos", "--data", "test"], "photos: no run of `edgegrad train`"),
        (["eval", "run", "--data", "tests"], "tests: no such file or folder; nearest: 'test'"),
        (["eval", "run", "--data", "test", "--metric", "f2"], "no metric 'f2'"),
        (["predict", "run", "photo.jpg"], "photo.jpg: no such file or folder"),
        (["predict", "run", "run/run.toml"], "cannot read"),
        (["predict", "run", "run/artifacts"], "no pictures"),
        (["export", "photos", "-o", "m.onnx"], "photos: no run of `edgegrad train`"),
        (["export", "run", "-o", "none/m.onnx"], "none"),
        (["export", "run", "-o", "m.onnx", "--output", "scores"], "scores"),
    ],
)
def test_wrong_words_for_a_run(
    words: list[str],
    message: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(home)
    told = run_cli(capsys, *words, "--json", status=1)
    assert message in told
    assert told.count("\n") == 1
    assert not (home / "m.onnx").exists()


def test_a_table_has_a_known_form(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words: list[Any] = ["predict", home / "run", home / "test", "-o", "p.xlsx"]
    assert "expected a name that ends with .csv or .json" in " ".join(
        run_cli(capsys, *words, status=2).split()
    )


def test_a_damaged_checkpoint_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = run / "checkpoints" / (run / "best").read_text().strip() / "checkpoint"
    place.write_bytes(place.read_bytes()[:100])
    assert "checkpoint" in run_cli(capsys, "export", run, "-o", run / "m.onnx", status=1)
    (run / "best").write_text("00000009\n")
    assert "names no checkpoint" in run_cli(capsys, "export", run, "-o", run / "m.onnx", status=1)
