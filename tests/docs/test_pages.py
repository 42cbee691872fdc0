"""The documentation is true: what its pages show runs, and prints what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support import pages
from tests.support.pages import Block
from tests.support.places import DOCS, PATHS, ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
# How many blocks of a page are not run, or only with a package that is not installed for all tests,
# each for the reason that stands before it.
NOT_RUN = {
    "README.md": 2,
    "docs/benchmarks.md": 6,
    "docs/browsers.md": 1,
    "docs/cluster.md": 3,
    "docs/compatibility.md": 1,
    "docs/csharp.md": 2,
    "docs/everywhere.md": 4,
    "docs/federated.md": 5,
    "docs/federation-results.md": 1,
    "docs/from-pytorch.md": 11,
    "docs/go.md": 2,
    "docs/index.md": 1,
    "docs/install.md": 4,
    "docs/java.md": 3,
    "docs/javascript.md": 3,
    "docs/keras.md": 4,
    "docs/kotlin.md": 4,
    "docs/microcontrollers.md": 4,
    "docs/models.md": 1,
    "docs/performance.md": 2,
    "docs/precision.md": 1,
    "docs/quickstart.md": 2,
    "docs/raspberry-pi.md": 8,
    "docs/reports.md": 1,
    "docs/rust.md": 2,
    "docs/small-clients.md": 8,
    "docs/starting.md": 2,
    "docs/swift.md": 3,
    "docs/trimmed-builds.md": 7,
    "docs/what-leaves-a-device.md": 2,
    "docs/wheels.md": 2,
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def of(path: Path) -> list[Block]:
    return list(pages.list_blocks(path.read_text("utf-8")))


@pytest.mark.parametrize(
    "path", [p for p in PAGES if any(b.language in pages.RUN for b in of(p))], ids=name_of
)
def test_what_a_page_shows_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.pages", path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_block_has_a_language(path: Path) -> None:
    """A block that is indented, or has no language, would be shown and never run."""
    known = {*pages.RUN, *pages.SHOWN}
    assert not [(b.line, b.language) for b in of(path) if b.language not in known]


def test_what_is_not_run_is_counted() -> None:
    counter = Counter(
        name_of(path) for path in PAGES for block in of(path) if block.why or block.needs
    )
    assert dict(counter) == NOT_RUN


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", "docs/quickstart.md"])
def test_a_first_page_runs_as_it_is_pasted(name: str) -> None:
    """From top to bottom in an empty folder: nothing that readers do not see prepares it."""
    for block in of(ROOT / name):
        assert block.language != "hidden", block.line
        assert not block.file, block.line
        assert not block.why or block.why == "installs packages", block.line


def write(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


@pytest.mark.parametrize(
    "wrong",
    [
        "```python\nraise ValueError('python')\n```\n",
        "```python\na = 1\n```\n\n```pycon\n>>> a\n2\n\n```\n",
        "```sh\nfalse\ntrue\n```\n",
        "```sh\nedgegrad nothing\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "<!-- hidden\nassert False\n-->\n",
        "```python\nprint('one 1')\n```\n\n<!-- output: above -->\n```text\ntwo 1\n```\n",
        "```sh\necho one\n```\n\n<!-- output: above -->\n```text\none 1\n```\n",
    ],
)
def test_a_page_that_is_wrong_fails(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    with pytest.raises((pages.Failure, ValueError, AssertionError)):
        pages.run(write(tmp_path, wrong))


def test_blocks_of_a_page_go_on_from_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    text = """
<!-- hidden
word = "set up"
-->
```python
from pathlib import Path

Path("made").write_text(word)
```

```console
$ cat made; echo
set up
$ cat given.toml
a = ...
```

<!-- needs: a_package_that_nobody_has -->
```python
raise AssertionError
```

```sh
echo 12.5 MB
```

<!-- output: of the block above -->
```text
3 MB
```

<!-- not run: there is no such command -->
```sh
nonsense
```
""".replace("```console", "<!-- file: given.toml -->\n```toml\na = 1\n```\n\n```console", 1)
    pages.run(write(tmp_path, text))
    assert (tmp_path / "made").read_text() == "set up"


def test_a_comment_without_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="belongs to no block"):
        list(pages.list_blocks("<!-- not run: why -->\n\ntext\n"))
