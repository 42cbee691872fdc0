// Training from Node.js: node example.mjs ../checkpoint out

import { Dtype, Model, Phase } from "./@name@.js";

// A batch for one input; a program would read its own here.
function makeBatch({ dtype, dims }) {
  const count = dims.reduce((product, dim) => product * dim, 1);
  const draw = dtype === Dtype.F32 ? Math.random : () => Math.floor(2 * Math.random());
  return Array.from({ length: count }, draw);
}

const [from, to] = process.argv.slice(2);
const model = await Model.open(from);
model.setLearningRate(0.01);
for (let step = 1; step <= 20; step++) {
  const inputs = Array.from({ length: model.inputCount(Phase.TRAIN) }, (_, index) =>
    makeBatch(model.inputInfo(Phase.TRAIN, index)),
  );
  const [loss] = model.trainStep(inputs);
  if (!model.isJoined()) {
    model.optimizerStep();
  }
  model.lazyResetGrad();
  console.log(`step ${step}: loss ${loss[0]}`);
}
await model.save(to);
model.destroy();
