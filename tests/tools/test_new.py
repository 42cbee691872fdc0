"""`edgegrad new`: templates are copied whole, into new folders only."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from engine.tools import cli
from engine.tools.actions import run_config, templates


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of templates that has one, and what its programs have written."""
    folder = tmp_path / "examples"
    files = {
        "sorter/README.md": "# Sort things\n\n```sh\npython data.py\nedgegrad train\n```\n",
        "sorter/train.py": "print('trained')\n",
        "sorter/run.toml": "[fit]\n",
        "sorter/tests/test_it.py": "def test(): ...\n",
        "sorter/photos/a/1.jpg": "made",
        "sorter/run/model.onnx": "made",
        "sorter/.hidden": "no",
        "quick_start.py": "no template\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(templates, "FOLDER", folder)
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: object, status: int = 0) -> str:
    assert cli.main(["new", *map(str, words)]) == status
    printed = capsys.readouterr()
    return printed.err if status else printed.out


@pytest.mark.usefixtures("known")
def test_a_template_is_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "my-app"
    told = said(capsys, "sorter", out)
    made = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    assert made == ["README.md", "run.toml", "tests/test_it.py", "train.py"]
    assert (out / "train.py").read_text() == "print('trained')\n"
    assert told.startswith("wrote:\n")
    assert told.endswith(f"next:\n  cd {out}\n  python data.py\n  edgegrad train\n")
    (tmp_path / "empty").mkdir()
    data = json.loads(said(capsys, "sorter", tmp_path / "empty", "--json"))
    assert data["next"][0] == f"cd {tmp_path / 'empty'}"
    assert len(data["wrote"]) == 4


@pytest.mark.usefixtures("known")
def test_templates_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys) == f"{'sorter':20s} Sort things\n"
    assert json.loads(said(capsys, "--json")) == {"sorter": "Sort things"}


@pytest.mark.usefixtures("known")
def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "my-app"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    told = said(capsys, "sorter", out, status=1)
    assert f"{out} is not empty: give another name, nothing was overwritten" in told
    assert [p.name for p in out.iterdir()] == ["notes.txt"]
    assert "is a file" in said(capsys, "sorter", out / "notes.txt", status=1)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["sortre", "app"], 1, "no template 'sortre'; nearest: 'sorter'"),
        (["sorter"], 2, "give the folder of the project"),
        (["sorter", "my app"], 1, "'my app' is not a name for a project"),
        (["sorter", "-app"], 2, "-a"),
        (["sorter", ".app"], 1, "'.app' is not a name for a project"),
    ],
)
def test_wrong_words(
    words: list[str],
    status: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in said(capsys, *words, status=status)
    assert [p.name for p in tmp_path.iterdir()] == ["examples"]


def test_every_template_can_be_copied_and_says_what_to_do(tmp_path: Path) -> None:
    for name in templates.list_templates():
        made = {path.name for path in templates.copy(name, tmp_path / name)}
        assert "README.md" in made, name
        assert "train.py" in made or name == "federated"
        assert templates.list_first_commands(name), name


def test_an_app_of_flower_gets_its_name_and_the_path_of_its_runs(tmp_path: Path) -> None:
    for title, name in {"my-app": "my-app", "1st.app_v2": "app-1st-app-v2"}.items():
        templates.copy("federated", tmp_path / title)
        data = tomllib.loads((tmp_path / title / "pyproject.toml").read_text("utf-8"))
        assert data["project"]["name"] == name
        assert data["tool"]["flwr"]["app"]["config"]["output"] == str(tmp_path / title / "runs")


def test_the_configurations_of_templates_can_be_read() -> None:
    for name in templates.list_templates():
        path = templates.FOLDER / name / "run.toml"
        if path.exists():
            config = run_config.make_config(run_config.read(path), str(path))
            assert config.model.path, name
            assert config.data.path, name
