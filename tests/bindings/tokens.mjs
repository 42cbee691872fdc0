// What the decoder of every binding is put through, in Node.js: node tokens.mjs PACKAGE CHECKPOINT SCORES

import { writeFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [folder, checkpoint, out] = process.argv.slice(2);
const { ErrorCode, Model, ModelError } = await import(pathToFileURL(`${folder}/mnist.js`));

const model = await Model.open(checkpoint);
const scores = [];

function append(...tokens) {
  model.append(Int32Array.from(tokens));
  scores.push(Buffer.from(model.scores().slice().buffer));
}

function refuse(call) {
  try {
    call();
  } catch (error) {
    if (!(error instanceof ModelError)) throw error;
    const name = Object.keys(ErrorCode).find((key) => ErrorCode[key] === error.code);
    console.log(`refused ${name}: ${error.message}`);
    return;
  }
  console.log("not refused");
}

append(5, 7, 9, 11, 13);
for (let token = 3; token < 13; token++) append(token);
refuse(() => model.append(Int32Array.of(100)));
refuse(() => model.append(new Int32Array(26)));
refuse(() => model.append(new Int32Array(0)));
refuse(() => model.truncate(16));
console.log(`length ${model.getLength()} of ${model.getCapacity()}`);
model.truncate(7);
console.log(`forgotten ${model.scores() === null}`);
append(8);
await writeFile(out, Buffer.concat(scores));
model.destroy();
