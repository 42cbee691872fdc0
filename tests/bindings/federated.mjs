// A device in JavaScript, for a server over HTTP: PACKAGE CHECKPOINT X LABELS ADDRESS.
// Or, without an address, messages that must be refused: PACKAGE FOLDER.
import { readdir, readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [folder, ...rest] = process.argv.slice(2);
const { Device, readRequest } = await import(pathToFileURL(`${folder}/federated.js`));

if (rest.length === 1) {
  for (const name of await readdir(rest[0])) {
    try {
      readRequest(await readFile(`${rest[0]}/${name}`));
      console.log(`${name}: taken`);
    } catch (error) {
      console.log(`${name}: ${error.name}`);
    }
  }
} else {
  const [checkpoint, x, labels] = await Promise.all(rest.slice(0, 3).map((path) => readFile(path)));
  const copy = (bytes) => bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  const samples = [new Float32Array(copy(x)), new BigInt64Array(copy(labels))];
  const device = new Device(checkpoint, samples);
  for (;;) {
    const request = await fetch(rest[3]);
    if (request.status === 204) break; // no more rounds
    const answer = await device.answer(await request.arrayBuffer());
    await fetch(rest[3], { method: "POST", body: answer });
  }
}
