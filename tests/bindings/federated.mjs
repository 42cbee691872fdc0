// A device in JavaScript, for a server over HTTP: PACKAGE CHECKPOINT X LABELS ADDRESS.
// Or messages that must be refused: PACKAGE CHECKPOINT X LABELS FOLDER.
import { readdir, readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [folder, ...paths] = process.argv.slice(2);
const place = paths.pop();
const { Device } = await import(pathToFileURL(`${folder}/federated.js`));
const [checkpoint, x, labels] = await Promise.all(paths.map((path) => readFile(path)));
const copy = (bytes) => bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
const samples = [new Float32Array(copy(x)), new BigInt64Array(copy(labels))];
const device = new Device(checkpoint, samples);

if (place.startsWith("http:")) {
  for (;;) {
    const request = await fetch(place);
    if (request.status === 204) break; // no more rounds
    const answer = await device.answer(await request.arrayBuffer());
    await fetch(place, { method: "POST", body: answer });
  }
} else {
  for (const name of await readdir(place)) {
    try {
      await device.answer(await readFile(`${place}/${name}`));
      console.log(`${name}: taken`);
    } catch (error) {
      console.log(`${name}: ${error.name}`);
    }
  }
}
