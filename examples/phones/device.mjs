// A device of a federation in JavaScript: node device.mjs CHECKPOINT IMAGES LABELS ADDRESS.
import { readFile } from "node:fs/promises";
import { Device } from "mnist/federated";

const [checkpoint, images, labels] = await Promise.all(
  process.argv.slice(2, 5).map(async (path) => new Uint8Array(await readFile(path)).buffer),
);
const address = process.argv[5];
const device = new Device(checkpoint, [new Float32Array(images), new BigInt64Array(labels)]);

// Answer requests until the server says that there are no more rounds.
for (;;) {
  const request = await fetch(address).catch(() => null);
  if (request?.status === 410) break;
  if (request?.status !== 200) { // no request yet, or no network
    await new Promise((done) => setTimeout(done, request?.status === 204 ? 0 : 1000));
    continue;
  }
  const answer = await device.answer(await request.arrayBuffer());
  const { status } = await fetch(address, { method: "POST", body: answer });
  console.log(`answered with ${answer.length} bytes: status ${status}`);
}
