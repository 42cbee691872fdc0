// @purpose@ from Node.js: node example.mjs@arguments@

//@if train_step or infer@
import { Dtype, Model, Phase } from "./@name@.js";

// Make up a batch for one input; a real program reads its data here.
function makeBatch({ dtype, dims }) {
  const count = dims.reduce((product, dim) => product * dim, 1);
  const isFloat = dtype === Dtype.F32 || dtype === Dtype.F64;
  const draw = isFloat ? Math.random : () => Math.floor(2 * Math.random());
  return Array.from({ length: count }, draw);
}

const makeBatches = (model, phase) =>
  Array.from({ length: model.inputCount(phase) }, (_, index) => makeBatch(model.inputInfo(phase, index)));
//@end@
//@if append !train_step !infer@
import { Model } from "./@name@.js";
//@end@

//@if train_step@
const [from, to] = process.argv.slice(2);
if (to === undefined) {
  console.error("usage: node example.mjs CHECKPOINT NEW_CHECKPOINT");
  process.exit(2);
}
//@end@
//@if !train_step@
const [from] = process.argv.slice(2);
//@end@
const model = await (from ? Model.open(from) : Model.create());
//@if train_step@
model.setLearningRate(0.01);
for (let step = 1; step <= 20; step++) {
  const [loss] = model.trainStep(makeBatches(model, Phase.TRAIN));
  if (!model.isJoined()) {
    model.optimizerStep();
  }
  model.lazyResetGrad();
  console.log(`step ${step}: loss ${loss[0]}`);
}
await model.save(to);
//@end@
//@if infer !train_step@
model.infer(makeBatches(model, Phase.INFER)).forEach((values, index) => {
  console.log(`${model.outputInfo(Phase.INFER, index).name}: ${values.slice(0, 3)} ...`);
});
//@end@
//@if append@
// Continue a text: append the token with the largest score, again and again.
const text = [];
for (let token = 0; model.getLength() < Math.min(10, model.getCapacity()); ) {
  text.push(token);
  model.append(Int32Array.of(token));
  const scores = model.scores();
  token = scores.indexOf(scores.reduce((best, score) => Math.max(best, score)));
}
console.log(`text: ${text.join(" ")}`);
//@end@
model.destroy();
