// The least nanoseconds of a step, over blocks of steps: FOLDER CHECKPOINT BLOCKS STEPS.
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [folder, checkpoint, blocks, steps] = process.argv.slice(2);
const { Model, Phase } = await import(pathToFileURL(`${folder}/mlp.js`));
const model = await Model.create(await readFile(checkpoint));
const x = new Float32Array(model.inputInfo(Phase.TRAIN, 0).bytes / 4);
const y = new BigInt64Array(model.inputInfo(Phase.TRAIN, 1).bytes / 8);
let least = Infinity;
for (let block = 0; block < blocks; block++) {
  const begin = process.hrtime.bigint();
  for (let k = 0; k < steps; k++) {
    model.trainStep([x, y]);
    model.optimizerStep();
    model.lazyResetGrad();
  }
  least = Math.min(least, Number(process.hrtime.bigint() - begin) / steps);
}
console.log(Math.round(least));
