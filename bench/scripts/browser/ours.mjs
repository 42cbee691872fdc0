// The package that `edgegrad build --target wasm32 --bindings js` has made of the artifacts.

import { Model } from "./ours/net.js";

export async function open({ x, y }) {
  const checkpoint = await (await fetch("artifacts/checkpoint")).arrayBuffer();
  const model = await Model.create(checkpoint);
  return async () => {
    const [loss] = model.trainStep([x.values, y.values]);
    model.optimizerStep();
    model.lazyResetGrad();
    return loss[0];
  };
}
