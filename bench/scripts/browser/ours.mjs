// The package that `edgegrad build --bindings js` has made of the artifacts, with two modules.

import { Model } from "./ours/trainer.js";

// module: the WebAssembly to load; "" for what the package chooses.
export async function open({ x, y }, module) {
  await Model.load(module || null);
  const checkpoint = await (await fetch("artifacts/checkpoint")).arrayBuffer();
  const model = await Model.create(checkpoint);
  return async () => {
    const [loss] = model.trainStep([x.values, y.values]);
    model.optimizerStep();
    model.lazyResetGrad();
    return loss[0];
  };
}
