// A thread of a model: its own instance of the module, which shares the memory.

let work = null;

async function take({ module, memory, stack, floor, tid, m }, port) {
  if (module) {
    const { exports } = await WebAssembly.instantiate(module, { env: { memory } });
    exports.__stack_pointer.value = stack;
    work = (model) => {
      try {
        exports.@name@_worker(model, tid);
      } catch (error) {
        // The caller waits and cannot receive messages, so the text is written over this thread's stack.
        const text = new TextEncoder().encode(`${error.message}\0`);
        new Uint8Array(memory.buffer, floor, text.length).set(text);
        exports.ended(tid);
        throw error;
      }
    };
  } else {
    work(m); // until the model is destroyed
  }
  port.postMessage("done");
}

if (typeof WorkerGlobalScope === "undefined") {
  const { parentPort } = await import("node:worker_threads");
  parentPort.on("message", (message) => take(message, parentPort));
} else {
  globalThis.onmessage = ({ data }) => take(data, globalThis);
}
