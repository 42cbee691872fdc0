// The page of bench/browser.py: it opens one trainer, and runs the steps it is asked for.

const read = async (name) => (await fetch(name)).arrayBuffer();

// The batch of the workload: its inputs by name, as typed arrays with their dimensions.
async function readBatch() {
  const dims = await (await fetch("batch.json")).json();
  return {
    x: { dims: dims.x, values: new Float32Array(await read("x.bin")) },
    y: { dims: dims.y, values: new BigInt64Array(await read("y.bin")) },
  };
}

// Open the trainer of a module, such as ./ours.mjs: an async function that takes one step and
// returns its loss.
globalThis.openTrainer = async (module, setting) => {
  const { open } = await import(module);
  globalThis.step = await open(await readBatch(), setting);
};

// Take steps; return their losses and the milliseconds of all.
globalThis.train = async (steps) => {
  const losses = [];
  const begin = performance.now();
  for (let k = 0; k < steps; k++) {
    losses.push(await globalThis.step());
  }
  return [losses, performance.now() - begin];
};
