// A thread of the models of a module: an instance of its own, which shares the memory.

let work = null;

async function take({ module, memory, stack, tid, m }, port) {
  if (module) {
    const { exports } = await WebAssembly.instantiate(module, { env: { memory } });
    exports.__stack_pointer.value = stack;
    work = (model) => exports.@name@_worker(model, tid);
  } else {
    work(m); // until the model ends
  }
  port.postMessage("done");
}

if (typeof WorkerGlobalScope === "undefined") {
  const { parentPort } = await import("node:worker_threads");
  parentPort.on("message", (message) => take(message, parentPort));
} else {
  globalThis.onmessage = ({ data }) => take(data, globalThis);
}
