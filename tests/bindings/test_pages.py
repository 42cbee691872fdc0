"""The pages of languages: their programs run as they are pasted, with the commands beside them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.tools.dev.browser import browser, serve
from tests.bindings.packages import make_package
from tests.support import pages
from tests.support.builds import needs_cc
from tests.support.needs import needs_browser, needs_cargo, needs_go, needs_java, needs_mono
from tests.support.places import DOCS

needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
OFFLINE = {
    "CARGO_NET_OFFLINE": "true",
    "GOPROXY": "off",
    "GOTOOLCHAIN": "local",
    "GOFLAGS": "-mod=mod",
    "npm_config_offline": "true",
}


def lay_out(page: str, languages: str, folder: Path) -> list[str]:
    """Write the files of a page into a folder that has the build; returns its other commands.

    The build's own command is compared with the options of the build that the tests share.
    """
    blocks = list(pages.list_blocks((DOCS / f"{page}.md").read_text("utf-8")))
    lines = [line for block in blocks if block.language == "sh" for line in block.text.splitlines()]
    build = next(line for line in lines if line.startswith("edgegrad build"))
    target = re.search(r"--target (\S+)", build)
    assert "artifacts/ " in build
    assert build.endswith("--batch 4 --name mnist -o build/")
    made = make_package("mlp", languages, target[1] if target else "native")
    (folder / "build").symlink_to(made)
    for block in blocks:
        if block.file:
            (folder / block.file).parent.mkdir(exist_ok=True)
            (folder / block.file).write_text(block.text, "utf-8")
    return [line for line in lines if not line.startswith("edgegrad ")]


@needs_cc
@pytest.mark.parametrize(
    ("page", "language"),
    [
        pytest.param("rust", "rust", marks=needs_cargo),
        pytest.param("go", "go", marks=needs_go),
        pytest.param("java", "java", marks=needs_java),
        pytest.param("csharp", "csharp", marks=needs_mono),
        pytest.param("javascript", "js", marks=needs_npm),
        ("everywhere", "go"),
    ],
)
def test_a_page_trains_as_it_is_pasted(page: str, language: str, tmp_path: Path) -> None:
    commands = lay_out(page, language, tmp_path)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
        cwd=tmp_path,
        env={**os.environ, **OFFLINE, "LD_LIBRARY_PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(x) for x in re.findall(r"^step \d+: loss (\S+)", done.stdout, re.MULTILINE)]
    assert len(losses) % 20 == 0
    assert losses[19] < losses[0], done.stdout
    assert (tmp_path / "trained").stat().st_size > 10_000


@needs_browser
def test_the_page_for_browsers_trains_as_it_is_pasted(tmp_path: Path) -> None:
    lay_out("javascript", "js", tmp_path)
    with serve(tmp_path) as address, browser() as running:
        page = running.open_address(f"{address}/train.html")
        said = page.ask(
            "new Promise((done) => setInterval(() => { const { textContent } = log;"
            " if (textContent.includes('step 20')) done(textContent); }, 20))"
        )
    losses = [float(x) for x in re.findall(r"loss (\S+)", said)]
    assert len(losses) == 20
    assert losses[-1] < losses[0]
