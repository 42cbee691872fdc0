"""JavaScript: the package of a wasm32 build, in Node.js."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.bindings import drills
from tests.bindings.packages import make_package
from tests.support.builds import run
from tests.support.needs import needs_node
from tests.support.places import BINDINGS
from tests.support.shown import shows


def list_packed(folder: Path) -> set[str]:
    """Return the files that npm would publish, where it is installed, and the package has."""
    if not shutil.which("npm"):
        return {p.name for p in folder.iterdir() if p.name != "example.mjs"}
    words = ("npm", "pack", folder, "--dry-run", "--json", "--offline", "--ignore-scripts")
    (package,) = json.loads(run(*words, **os.environ))
    return {file["path"] for file in package["files"]}


@needs_node
@pytest.mark.parametrize("case", ["mlp", pytest.param("cnn", marks=pytest.mark.whole)])
@shows("JavaScript", "WebAssembly, Node.js", "run")
def test_node_trains_resumes_and_refuses(case: str, tmp_path: Path, sessions: str) -> None:
    folder = make_package(case, "js", "wasm32")
    drills.write_steps(case, tmp_path / "steps")
    words = (folder / "js", folder / "checkpoint", tmp_path / "steps", tmp_path / "out", sessions)
    own = {f"{name}.{end}" for name in ("mnist", "storage", "federated") for end in ("js", "d.ts")}
    assert list_packed(folder / "js") == {*own, "mnist.wasm", "package.json", "README.md"}
    printed = run("node", BINDINGS / "drill.mjs", *words)
    drills.check(printed, tmp_path / "out", case, exact=False, turns=False)


SHARED = "wasm32,wasm32-threads"


@needs_node
def test_threads_train_resume_and_refuse(tmp_path: Path) -> None:
    """And give the same bytes each time, whichever thread took which share."""
    folder = make_package("mlp", "js", SHARED, 2)
    assert {"threads/mnist.wasm", "worker.js"} <= list_packed(folder / "js")
    drills.write_steps("mlp", tmp_path / "steps")
    printed = []
    for out, sessions in (("one", "200"), ("two", "1")):
        words = (folder / "js", folder / "checkpoint", tmp_path / "steps", tmp_path / out, sessions)
        printed.append(run("node", BINDINGS / "drill.mjs", *words))
        drills.check(printed[-1], tmp_path / out, "mlp", exact=False, turns=False)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


BREAKING = """
import { readFile } from "node:fs/promises";
import { Worker } from "node:worker_threads";
const [folder, checkpoint] = process.argv.slice(1);
const { Model, Phase } = await import(`${folder}/mnist.js`);
const bytes = new Uint8Array(await readFile(`${folder}/threads/mnist.wasm`));
let at = 8;
function read() { // a number of LEB128
    let value = 0;
    for (let shift = 0; ; shift += 7) {
        value |= (bytes[at] & 127) << shift;
        if (bytes[at++] < 128) return value;
    }
}
let body = [0, 0]; // the largest function's: where it begins and ends
while (at < bytes.length) {
    const id = bytes[at++], size = read(), end = at + size;
    for (let count = id === 10 ? read() : 0; count > 0; count--) {
        const length = read(), begin = at;
        if (length > body[1] - body[0]) body = [begin, begin + length];
        at = begin + length;
    }
    at = end;
}
at = body[0];
for (let count = read(); count > 0; count--) { read(); at++; } // its local variables
bytes[at] = 0; // unreachable
bytes.fill(1, at + 1, body[1] - 1);
const module = await WebAssembly.compile(bytes);
const { postMessage } = Worker.prototype;
Worker.prototype.postMessage = function (message) {
    return postMessage.call(this, message.module ? { ...message, module } : message);
};
const model = await Model.create(await readFile(checkpoint));
const x = new Float32Array(model.inputInfo(Phase.TRAIN, 0).bytes / 4);
const y = new BigInt64Array(model.inputInfo(Phase.TRAIN, 1).bytes / 8);
const tell = (error) => console.log(`${error.name} ${error.code} ${error.message}`);
try {
    for (let k = 0; k < 2000; k++) model.trainStep([x, y]); // until the thread has a share
} catch (error) { tell(error); }
try { model.checkpoint(); } catch (error) { tell(error); }
model.destroy();
Worker.prototype.postMessage = postMessage;
const next = await Model.create(await readFile(checkpoint));
console.log(next.threads(), Number.isFinite(next.trainStep([x, y])[0][0]));
"""


@needs_node
def test_a_trap_of_a_thread_ends_the_step(tmp_path: Path) -> None:
    """And the next model has threads that work: a convolution, whose steps threads share."""
    folder = make_package("cnn", "js", SHARED, 2)
    words = ("node", "--input-type=module", "-e", BREAKING, folder / "js", folder / "checkpoint")
    said = "ModelError 5 the call trapped: thread 1: unreachable; destroy the model\n"
    assert run(*words) == said * 2 + "2 true\n"


COUNTING = """
const { Model } = await import(process.argv[1]);
if (process.argv[3]) await Model.load(process.argv[3]);
console.log((await Model.open(process.argv[2])).threads());
"""


@needs_node
def test_a_model_tells_its_threads() -> None:
    folder = make_package("mlp", "js", SHARED, 2)
    words = ("node", "--input-type=module", "-e", COUNTING, folder / "js/mnist.js")
    assert run(*words, folder / "checkpoint") == "2\n"
    assert run(*words, folder / "checkpoint", "mnist.wasm") == "1\n"


CHOOSING = """
const { Model } = await import(process.argv[1]);
const probes = process.argv.slice(2).map(Number);
const { validate, compile } = WebAssembly;
WebAssembly.validate = (bytes) => probes.includes(bytes.length);
WebAssembly.compile = async (bytes) => bytes.length;
console.log(await Model.load().catch((e) => `${e.name} ${e.code} ${e.message}`));
"""
SIMD, RELAXED = "29", "40"  # bytes of the functions that show whether an engine has them


@needs_node
def test_the_best_module_that_can_run_is_chosen() -> None:
    folder = make_package("mlp", "js", "wasm32,wasm32-relaxed")
    words = ("node", "--input-type=module", "-e", CHOOSING, folder / "js/mnist.js")
    sizes = [(folder / "js" / name).stat().st_size for name in ("mnist.wasm", "relaxed/mnist.wasm")]
    assert run(*words, SIMD) == f"{sizes[0]}\n"
    assert run(*words, SIMD, RELAXED) == f"{sizes[1]}\n"
    assert run(*words) == "ModelError 5 WebAssembly lacks SIMD here, which this module needs\n"
    assert "relaxed/mnist.wasm" in list_packed(folder / "js")


@needs_node
@pytest.mark.parametrize(
    ("setting", "threads"),
    [
        ("navigator = { hardwareConcurrency: 2 }", 2),
        ("navigator = { hardwareConcurrency: 1 }", 1),
        ("crossOriginIsolated = false", 1),
    ],
)
def test_threads_are_taken_where_they_help(setting: str, threads: int) -> None:
    folder = make_package("mlp", "js", SHARED, 2)
    script = f"globalThis.{setting};\n{COUNTING}"
    words = ("node", "--input-type=module", "-e", script, folder / "js/mnist.js")
    assert run(*words, folder / "checkpoint") == f"{threads}\n"


LOADING = """
const { Model } = await import(process.argv[1]);
const source = process.argv[2] === "bytes" ? new Uint8Array(9) : process.argv[2];
console.log(await Model.load(source).catch((e) => `${e.name} ${e.code} ${e.message}`));
"""


@needs_node
@pytest.mark.parametrize(
    ("flag", "setting", "source", "said"),
    [
        ("--no-enable-sse4-1", "", "", "5 WebAssembly lacks SIMD here, which this module needs"),
        ("", "delete globalThis.WebAssembly;", "", "5 WebAssembly is not available here; "),
        ("", "", "nothing.wasm", "4 cannot load file:.*/js/nothing.wasm: ENOENT"),
        ("", "", "https://127.0.0.1:9/a.wasm", "4 cannot load https://127.0.0.1:9/a.wasm: "),
        ("", "", "bytes", "4 cannot compile the module: "),
    ],
)
def test_a_module_that_cannot_run_is_refused(
    flag: str, setting: str, source: str, said: str
) -> None:
    """As on processors without vectors, and in browsers that are locked down."""
    folder = make_package("mlp", "js", "wasm32,wasm32-relaxed")
    words = ("--input-type=module", "-e", setting + LOADING, folder / "js/mnist.js")
    printed = run("node", *filter(None, [flag]), *words, *filter(None, [source]))
    assert re.match(f"ModelError {said}", printed), printed


CROWDED = """
const { Model } = await import(process.argv[1]);
const { readFile } = await import("node:fs/promises");
const checkpoint = await readFile(process.argv[2]);
const error = await Model.create(checkpoint).catch((e) => `${e.name} ${e.code} ${e.message}`);
console.log(error);
"""


@needs_node
def test_a_model_that_memory_has_no_room_for_is_refused() -> None:
    folder = make_package("mlp", "js", "wasm32")
    words = ("--wasm-max-mem-pages=2", "--input-type=module", "-e", CROWDED)
    said = run("node", *words, folder / "js/mnist.js", folder / "checkpoint")
    said_of = r"ModelError 6 the system cannot provide \d+ more bytes of memory\n"
    assert re.fullmatch(said_of, said), said


ALONE = """
import { readFileSync } from "node:fs";
const module = new WebAssembly.Module(readFileSync(process.argv[1]));
const { memory } = new WebAssembly.Instance(module).exports;
console.log(WebAssembly.Module.imports(module).length, memory.buffer.byteLength);
"""
PAGE = STACK = 1 << 16  # bytes


@needs_node
def test_a_module_needs_no_system_and_little_memory() -> None:
    """Before a model is created: its own data, which its file holds, and a stack of 64 KiB."""
    module = make_package("mlp", "js", "wasm32") / "js/mnist.wasm"
    imports, memory = map(int, run("node", "--input-type=module", "-e", ALONE, module).split())
    assert imports == 0
    assert memory <= STACK + module.stat().st_size + PAGE
