// What every binding is put through, in Node.js: node drill.mjs PACKAGE CHECKPOINT STEPS OUT SESSIONS
// It prints what tests/bindings/drills.py expects.

import { readFile, writeFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [folder, checkpoint, steps, out, sessions] = process.argv.slice(2);
const { ErrorCode, Model, ModelError, Phase } = await import(pathToFileURL(`${folder}/mnist.js`));

const bits = ([value]) => new Int32Array(Float32Array.of(value).buffer)[0];
const codeName = (code) => Object.keys(ErrorCode).find((name) => ErrorCode[name] === code);
const equal = (a, b) => a.length === b.length && a.every((value, index) => value === b[index]);

async function refuse(call) {
  try {
    await call();
  } catch (error) {
    if (!(error instanceof ModelError)) throw error;
    console.log(`refused ${codeName(error.code)}: ${error.message}`);
    return;
  }
  console.log("not refused");
}

const content = new Uint8Array(await readFile(steps)).buffer;
const model = await Model.open(checkpoint);
const count = (index) => model.inputInfo(Phase.TRAIN, index).dims.reduce((a, b) => a * b, 1);
const size = 4 + 4 * count(0) + 8 * count(1);
function read(k) {
  const step = content.slice(k * size, (k + 1) * size);
  const x = new Float32Array(step.slice(4, 4 + 4 * count(0)));
  return [new Float32Array(step, 0, 1)[0], x, new BigInt64Array(step.slice(4 + 4 * count(0)))];
}

function train(trained, k) {
  const [rate, x, y] = read(k);
  trained.setLearningRate(rate);
  const [loss] = trained.trainStep([x, y]);
  if (trained.isJoined()) return bits(loss);
  if (k === 3) return bits(loss); // the next step adds to these gradients
  trained.optimizerStep();
  trained.lazyResetGrad();
  return bits(loss);
}

for (let k = 0; k < 9; k++) console.log(`loss ${train(model, k)}`);
const [, x, y] = read(9);
console.log(`eval ${bits(model.evalStep([x, y])[0])}`);
console.log(`predicted ${model.infer([x])[0].length}`);

model.setPropertyString("note", "gr\u00fc\u00df");
model.setPropertyInt("count", 9007199254740993n);
console.log(`property ${model.getProperty(1).text} ${model.getProperty(0).integer}`);

// Errors change nothing.
const before = model.checkpoint();
await refuse(() => model.trainStep([x.subarray(1), y]));
await refuse(() => model.trainStep([x, y.map(() => 10n)]));
await refuse(() => model.setLearningRate(NaN));
await refuse(() => model.setParameters(new Float32Array(1), true));
await refuse(() => Model.create(before.subarray(1)));
await refuse(() => Model.open("missing"));
console.log(`unchanged ${equal(before, model.checkpoint())}`);

// A checkpoint from bytes, and one from a file, resume alike.
const resumed = await Model.create(before);
await refuse(() => resumed.optimizerStep());
console.log(`round trip ${equal(before, resumed.checkpoint())}`);
await model.save(out);
const opened = await Model.open(out);
const last = train(model, 9);
console.log(`loss ${last}`);
console.log(`alike ${train(resumed, 9) === last && train(opened, 9) === last}`);
await writeFile(out, model.checkpoint());

const values = model.parameters();
resumed.setParameters(values, true);
console.log(`parameters ${values.length} ${equal(values, resumed.parameters())}`);
await refuse(() => model.parametersF64());
await writeFile(`${out}.onnx`, model.exportModel());

model.setStep(10n);
model.setLinearRate(0.5, 20, 40);
console.log(`rate ${model.getLearningRate()}`);

for (const each of [model, resumed, opened]) each.destroy();
await refuse(() => model.trainStep([x, y]));

let first = 0;
for (let k = 0; k < Number(sessions); k++) {
  (await Model.create(before)).destroy();
  if (k === Math.floor(sessions / 2)) first = process.memoryUsage.rss();
}
console.log(`grown ${Math.max(0, process.memoryUsage.rss() - first) >> 20}`);
