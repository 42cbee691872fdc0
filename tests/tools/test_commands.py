"""The `edgegrad` command: what it prints, what it imports, how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import click
import pytest

import engine
from engine.errors import FileError, InternalError, ModelWarning
from engine.system.config import SWITCHES
from engine.tools import cli
from engine.tools.commands import version
from engine.tools.commands.root import root
from engine.tools.commands.table import COMMANDS, STATUSES
from engine.tools.trimmed.plans import list_artifacts
from tests.support.places import GOLDENS, ROOT

MLP = GOLDENS / "mlp"
HEAVY = {"numpy", "numba", "llvmlite", "onnx", "tqdm", "PIL"}


def python(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program of its own, which finds this checkout."""
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def command(*words: str | Path) -> list[str]:
    """The words that run the command as a process."""
    return [sys.executable, "-m", "engine.tools.cli", *map(str, words)]


# --- help, and the table


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`show` has the help of what it became."""
    assert cli.main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"edgegrad {name if COMMANDS[name].section else 'plan'}" in said
    assert "Examples:\n  " in said
    assert COMMANDS[name].load().get_short_help_str(200) == COMMANDS[name].summary


def test_every_option_is_explained_and_has_one_spelling() -> None:
    """The same name is the same thing everywhere: its short form, its metavar and its kind."""
    actual: dict[str, set[tuple[object, ...]]] = {}
    for name, row in COMMANDS.items():
        for option in row.load().params:
            if not isinstance(option, click.Option) or option.hidden:
                continue
            assert option.help, (name, option.name)
            kind = (tuple(option.opts), option.metavar, option.is_flag)
            actual.setdefault(max(option.opts, key=len), set()).add(kind)
    for several in ("--threads", "--batch"):  # some commands take several
        actual[several] = {(opts, flag) for opts, _, flag in actual[several]}
    assert [name for name, kinds in actual.items() if len(kinds) > 1] == []
    assert {"--batch", "--shape", "--target", "--out", "--json"} <= actual.keys()


def test_every_required_option_is_missed() -> None:
    """Help calls it required, and the command says so before it does anything."""
    missed = set()
    for name, row in COMMANDS.items():
        loaded = row.load()
        for option in loaded.params:
            if isinstance(option, click.Option) and option.required:
                with click.Context(loaded) as context, pytest.raises(click.MissingParameter):
                    option.handle_parse_result(context, {}, [])
                missed.add((name, option.name))
    assert {("build", "out"), ("artifacts", "out"), ("lora", "out")} <= missed


def test_a_build_without_a_folder_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["build", str(MLP), "--batch", "4", "--output", "scores"]) == 2
    assert "Missing option '-o' / '--out'" in capsys.readouterr().err


def test_the_help_lists_the_commands_and_the_exit_statuses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert all(
        name in said and row.summary in said for name, row in COMMANDS.items() if row.section
    )
    assert all(f"{status} {meaning}" in said for status, meaning in STATUSES.items())
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"edgegrad {engine.__version__}\n"


def test_a_wrong_word_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["prepar"], "no command 'prepar'; nearest: 'prepare'"),
        (["version", "--jsn"], "--json"),
        (["vers", "--help"], "nearest: 'version'"),
    ):
        assert cli.main(words) == 2
        assert said in capsys.readouterr().err
    assert cli.main([]) == 2
    assert "Commands" in capsys.readouterr().err or root.no_args_is_help


# --- what is imported


@pytest.mark.parametrize(
    "words",
    [["version"], ["--help"], ["version", "--json"], ["completion", "bash"], ["nothing"], ["new"]],
)
def test_what_needs_nothing_imports_nothing(words: list[str]) -> None:
    code = (
        "import sys; from engine.tools import cli; cli.main(sys.argv[1:]);"
        f"print(*{HEAVY} & set(sys.modules), file=sys.stderr, sep=',', end='|');"
        "print(*sorted(m for m in sys.modules if m.startswith('engine')), file=sys.stderr)"
    )
    heavy, _, engines = python(code, *words).stderr.splitlines()[-1].partition("|")
    assert heavy in (("", "numpy") if words == ["new"] else ("",))  # it writes files
    commands = {m for m in engines.split() if m.startswith("engine.tools.commands.")}
    common = {f"engine.tools.commands.{name}" for name in ("table", "root", "options", words[0])}
    assert commands <= common
    assert len(engines.split()) < 28


def test_completion_imports_no_command() -> None:
    code = (
        "import sys; from engine.tools import cli; cli.main([]);"
        "print(*sorted(m for m in sys.modules if m.startswith('engine.tools.commands.')))"
    )
    words = {"COMP_WORDS": "edgegrad pre", "COMP_CWORD": "1"}
    done = python(code, _EDGEGRAD_COMPLETE="bash_complete", **words)
    *actual, last = done.stdout.splitlines()
    assert actual == ["plain,predict", "plain,prepare"]
    assert last.split() == ["engine.tools.commands.root", "engine.tools.commands.table"]


def test_without_click_one_line_says_what_to_install() -> None:
    """A device with numpy alone trains; only the command is missing."""
    code = (
        "import sys; sys.modules['click'] = None;"
        "import engine, engine.api; from engine.tools import cli; sys.exit(cli.main(['version']))"
    )
    done = python(code)
    assert done.returncode == 1
    assert done.stderr == "edgegrad: the command needs the package click: pip install click\n"
    assert not done.stdout


@pytest.mark.parametrize("module", ["onnx", "google.protobuf", "llvmlite"])
def test_a_command_that_needs_more_than_a_device_has_says_what(module: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    code = (
        f"import sys; sys.modules[{module!r}] = None; from engine.tools import cli;"
        "sys.exit(cli.main(['plan', sys.argv[1], '--batch', '1']))"
    )
    done = python(code, str(tmp_path / "m.onnx"))
    package = module.replace("google.protobuf", "onnx")
    assert (done.returncode, done.stderr) == (
        1,
        f"edgegrad plan: needs the package {package}, which is not installed: pip install "
        "edgegrad, without --no-deps\n",
    )


# --- how it ends


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(version.command, "callback", fail)


def test_an_error_is_one_line_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(FileError("no such model: x.onnx"), monkeypatch)
    for words in (["version"], ["version", "--json"]):
        assert cli.main(words) == 1
        assert capsys.readouterr() == ("", "edgegrad version: no such model: x.onnx\n")


def test_a_lack_of_memory_is_one_line_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, reason in (
        (MemoryError("Unable to allocate 238. GiB"), "Unable to allocate 238. GiB"),
        (MemoryError(), "Python cannot allocate an object"),
    ):
        fail_with(error, monkeypatch)
        assert cli.main(["version"]) == 1
        assert capsys.readouterr() == ("", f"edgegrad version: not enough memory: {reason}\n")


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (InternalError("a defect"), ZeroDivisionError("another")):
        fail_with(error, monkeypatch)
        with pytest.raises(type(error)):
            cli.main(["version"])


def test_ctrl_c_is_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(KeyboardInterrupt(), monkeypatch)
    assert cli.main(["version"]) == 130
    assert capsys.readouterr() == ("", "\nedgegrad version: interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_ends_a_process_without_a_traceback() -> None:
    code = (
        "import os; from engine.tools import cli; from engine.tools.commands import version;"
        f"version.command.callback = lambda **_: os.kill(os.getpid(), {int(signal.SIGINT)});"
        "raise SystemExit(cli.main(['version']))"
    )
    done = python(code)
    assert (done.returncode, done.stderr) == (130, "\nedgegrad version: interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
@pytest.mark.parametrize("words", [["switches"], ["switches", "--json"], ["--help"]])
def test_a_closed_pipe_is_no_error(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command(*words), cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_warnings_are_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def warn(**_: object) -> None:
        said.append(warnings.formatwarning(ModelWarning("odd"), ModelWarning, "file.py", 3))

    monkeypatch.setattr(version.command, "callback", warn)
    before = warnings.formatwarning
    assert cli.main(["version"]) == 0
    assert said == ["edgegrad version: warning: odd\n"]
    assert warnings.formatwarning is before


@pytest.mark.parametrize("name", ["ops", "plan", "prepare", "build"])
def test_a_path_that_is_not_there_is_told_with_the_nearest(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mobilenet.onnx").touch()
    extra = ["-o", str(tmp_path / "out")] if name == "build" else []
    assert cli.main([name, str(tmp_path / "mobilnet.onnx"), *extra]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error == (
        f"edgegrad {name}: {tmp_path / 'mobilnet.onnx'}: no such file or folder; "
        "nearest: 'mobilenet.onnx'\n"
    )


@pytest.mark.parametrize("words", [["ops"], ["ops", "--json"], ["plan", "--batch", "1"]])
def test_a_file_that_is_no_model_is_told(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    path.write_text("no model")
    assert cli.main([words[0], str(path), *words[1:]]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf"edgegrad {words[0]}: .*m\.onnx.*\n", error)


# --- reports as JSON


def report(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> object:
    assert cli.main([*words, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_version_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    actual = report(capsys, "version")
    assert isinstance(actual, dict)
    assert actual["edgegrad"] == engine.__version__
    assert actual["packages"]["click"]


def test_switches_shows_the_table_and_what_is_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEGRAD_THREADS", "3")
    monkeypatch.setenv("EDGEGRAD_TREADS", "4")  # refused by all other commands, which name this one
    assert cli.main(["switches"]) == 0
    out = capsys.readouterr().out
    assert "EDGEGRAD_THREADS=3\n" in out
    assert "EDGEGRAD_TREADS=4\n    unknown" in out
    assert all(f"EDGEGRAD_{name}" in out and meaning in out for name, meaning in SWITCHES.items())
    actual = report(capsys, "switches")
    assert isinstance(actual, dict)
    assert actual["EDGEGRAD_THREADS"] == {"value": "3", "meaning": SWITCHES["THREADS"]}
    assert actual["EDGEGRAD_TREADS"] == {"value": "4", "meaning": None}


def test_targets_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    actual = report(capsys, "targets")
    assert isinstance(actual, dict)
    assert "raspberrypi4" in actual["other_names"] | {row["name"]: 0 for row in actual["targets"]}


def test_targets_stand_in_columns_with_their_other_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["targets"]) == 0
    table, others = capsys.readouterr().out.split("\nother names\n")
    lines = table.splitlines()
    assert len({len(line) for line in lines}) == 1  # the last column ends at the margin
    for name in ("rk3588", "jetson-orin", "graviton3", "mac", "n100", "snapdragon"):
        (line,) = [line for line in others.splitlines() if name in line.split()]
        assert line.split()[0] in table


@pytest.mark.parametrize("command", ["bench", "build", "check", "plan", "prepare", "profile"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--batch", "2147483648"), ("--batch", "9" * 5000), ("--shape", "x=2147483648"),
        ("--shape", "x=" + "9" * 5000), ("--shape", "x=2147483647,2147483647"),
    ],
)  # fmt: skip
def test_sizes_that_no_array_has_are_wrong_usage(
    command: str, option: str, value: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main([command, str(tmp_path), option, value]) == 2
    assert f"Invalid value for '{option}'" in capsys.readouterr().err


# --- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_completes(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    assert f"_EDGEGRAD_COMPLETE={shell}_complete" in capsys.readouterr().out
    words = {"COMP_WORDS": "edgegrad plan --ar", "COMP_CWORD": "2" if shell != "fish" else "--ar"}
    code = "import sys; from engine.tools import cli; sys.exit(cli.main([]))"
    done = python(code, _EDGEGRAD_COMPLETE=f"{shell}_complete", **words)
    assert "--arena" in done.stdout
    assert not done.returncode


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes_by_the_script(tmp_path: Path) -> None:
    program = tmp_path / "edgegrad"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m engine.tools.cli "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(edgegrad completion bash)"; COMP_WORDS=(edgegrad switc); COMP_CWORD=1;'
        "_edgegrad_completion edgegrad; echo ${COMPREPLY[@]}"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env={**os.environ, "PATH": path},
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("switches\n", "")


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "tcsh"]) == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err


LONG = "x" * 300  # a name that no file system takes: a text pasted where a path belongs
WITH_PATHS = {
    "ops": [LONG], "check": [LONG], "plan": [LONG], "profile": [LONG], "export": [LONG],
    "predict": [LONG, "x"], "build": [LONG], "artifacts": [LONG], "prepare": [LONG],
    "compare": [LONG, LONG], "new": ["image-classifier", LONG],
    "specialize": [LONG, "--value", "x=1", "-o", "y"],
    "quantize": [LONG, "--calibrate", LONG], "train": ["--model", "mlp", "--data", LONG],
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_PATHS)
def test_a_path_that_is_too_long_is_an_error_of_one_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, *WITH_PATHS[name]]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"edgegrad {name}: {LONG}: File name too long"), said
    assert said.count("\n") == 1


def test_the_folder_of_a_run_stands_for_its_artifacts(tmp_path: Path) -> None:
    shutil.copytree(MLP, tmp_path / "run/artifacts")
    assert list_artifacts(tmp_path / "run") == list_artifacts(tmp_path / "run/artifacts")


def test_a_folder_with_two_sets_of_artifacts_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run/artifacts").mkdir(parents=True)
    shutil.copy(MLP / "training_model.onnx", tmp_path / "run/artifacts")
    shutil.copy(MLP / "checkpoint", tmp_path / "run")
    assert cli.main(["build", str(tmp_path / "run"), "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert said == (
        f"edgegrad build: {tmp_path / 'run'}: no file 'training_model.onnx'; "
        f"nearest: {str(tmp_path / 'run/artifacts')!r}\n"
    )
