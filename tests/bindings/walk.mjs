// Every method with values that nobody should pass: walk PACKAGE CHECKPOINT CALLS ROUNDS.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, checkpoint, list, turns] = process.argv.slice(2);
const { Model, ModelError } = await import(pathToFileURL(`${folder}/mnist.js`));

const integer = (word) => (word === "null" ? null : Number(word));
const long = (word) => (word === "null" ? null : BigInt(word));
const text = (word) => (word === "null" ? null : Buffer.from(word.slice(1), "hex").toString());
const bytes = (word) => (word === "null" ? null : new Uint8Array(readFileSync(word)));
const buffer = (word, type) => (word === "null" ? null : new type(Number(word)));
const flag = (word) => word !== "0";

function float(word) {
  const view = new DataView(new ArrayBuffer(4));
  view.setUint32(0, Number(word));
  return view.getFloat32(0);
}

function numbers(word) {
  if (word === "null") {
    return null;
  }
  const [count, value] = word.slice(2).split("=");
  return word[0] === "l"
    ? new BigInt64Array(Number(count)).fill(BigInt(value))
    : new Float32Array(Number(count)).fill(value === "nan" ? NaN : Number(value));
}

function inputs(word) {
  return word === "null" ? null : word === "none" ? [] : word.split(",").map(numbers);
}

const calls = {
/*@rows@*/
};

function tell(answer) {
  if (answer === undefined) {
    return "ok";
  }
  const isNumber = ["number", "boolean", "bigint"].includes(typeof answer);
  return `ok ${isNumber ? BigInt(answer) : answer === null ? "none" : "some"}`;
}

function call([, name, ...words], m) {
  try {
    return tell(calls[name](m, words));
  } catch (error) {
    return error instanceof ModelError ? `${error.code} ${error.message}` : `other error: ${error}`;
  }
}

const content = readFileSync(checkpoint);
const live = await Model.create(content);
const ended = await Model.create(content);
const models = { live, bare: await Model.create(null), ended };
ended.destroy();
ended.destroy();
const rows = readFileSync(list, "utf-8").trim().split("\n").map((line) => line.split(" "));
rows.forEach((row, index) => {
  const before = live.checkpoint(true);
  const said = call(row, models[row[0]]);
  const isSame = said.startsWith("ok") || Buffer.compare(before, live.checkpoint(true)) === 0;
  console.log(`${index} ${said}${isSame ? "" : " changed"}`);
});
let first = 0;
for (let turn = 0; turn < Number(turns); turn++) {
  rows.forEach((row) => call(row, models[row[0]]));
  if (turn === Math.floor(turns / 2)) {
    globalThis.gc?.();
    first = process.memoryUsage().rss;
  }
}
globalThis.gc?.();
console.log(`grown ${Math.max(0, process.memoryUsage().rss - first) >> 20}`);
