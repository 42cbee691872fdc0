// Every method with values that nobody should pass: PACKAGE CHECKPOINT.
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [folder, checkpoint] = process.argv.slice(2);
const { Model, ModelError, Phase } = await import(pathToFileURL(`${folder}/mnist.js`));
const VALUES = [
  undefined, null, -1, NaN, 2 ** 31, 1e300, "a\0b", "x".repeat(5000), {}, [], true, -1n, 2n ** 63n,
  new Uint8Array(1), new Float32Array(99999), [null, null], ["x"], Symbol.iterator, () => 1, 0, 1,
];

function callAll(model) {
  for (const name of Object.getOwnPropertyNames(Model.prototype)) {
    const ends = ["constructor", "destroy", "save"].includes(name);
    for (let turn = 0; turn < VALUES.length && !ends; turn++) {
      const given = [0, 1, 2].map((index) => VALUES[(turn + 4 * index) % VALUES.length]);
      try {
        model[name](...given);
      } catch (error) {
        if (!(error instanceof ModelError) || error.message === "") {
          console.log(name, given, error);
        }
      }
    }
  }
}

const model = await Model.create(await readFile(checkpoint));
const closed = await Model.create(await readFile(checkpoint));
closed.destroy();
callAll(model);
callAll(closed);
const x = new Float32Array(model.inputInfo(Phase.TRAIN, 0).bytes / 4);
const y = new BigInt64Array(model.inputInfo(Phase.TRAIN, 1).bytes / 8);
const names = [0, 1].map((index) => model.inputInfo(Phase.TRAIN, index).name);
const refuse = (call) => {
  try {
    call();
    console.log("was not refused");
  } catch (error) {
    console.log(error.message.replace(`'${names[0]}'`, "'x'").replace(`'${names[1]}'`, "'y'"));
  }
};
// Numbers that an array would turn into others.
for (const bad of [null, 1.5, 2n ** 64n]) refuse(() => model.trainStep([x, [bad, 1, 2, 3]]));
refuse(() => model.trainStep([Array.from(x, (each, index) => (index === 3 ? "x" : each)), y]));
refuse(() => model.savePart(2 ** 32, new Uint8Array(1), true));
refuse(() => model.parameterInfo(2 ** 32));
console.log(`loss ${Number.isFinite(model.trainStep([x, y])[0][0])}`);
