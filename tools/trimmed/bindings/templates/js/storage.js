// Checkpoints in a page's IndexedDB, stored by name, each with data of your own:
//
//     import { load, save } from "@name@/storage";
//     const kept = await load("last");
//     const model = await Model.create(kept?.checkpoint ?? first);
//     await save("last", model.checkpoint());

import { ErrorCode, ModelError } from "./@name@.js";

const DATABASE = "edgegrad-@name@";
const STORE = "checkpoints";

const hear = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another page has an older version of the database open"));
  });

// Do work in a transaction of its own, and return its result once the transaction is complete.
async function transact(what, mode, work) {
  let database;
  try {
    if (typeof indexedDB === "undefined") {
      throw new Error("IndexedDB is not available here");
    }
    const opening = indexedDB.open(DATABASE, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
    database = await hear(opening);
    // `strict` waits until the data are on the disk: a crash leaves the old record or the new one.
    const transaction = database.transaction(STORE, mode, { durability: "strict" });
    const complete = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
    const [result] = await Promise.all([hear(work(transaction.objectStore(STORE))), complete]);
    return result;
  } catch (error) {
    throw new ModelError(ErrorCode.BAD_FILE, `cannot ${what}: ${error.message}`);
  } finally {
    database?.close();
  }
}

function check(name) {
  if (typeof name !== "string") {
    throw new ModelError(ErrorCode.BAD_INPUT, `name: expected text, got ${typeof name}`);
  }
  return `checkpoint '${name}'`;
}

// Store a checkpoint, and data that IndexedDB can store, under a name, replacing the previous ones.
export async function save(name, checkpoint, data = null) {
  const what = check(name);
  if (!(checkpoint instanceof ArrayBuffer) && !ArrayBuffer.isView(checkpoint)) {
    throw new ModelError(ErrorCode.BAD_INPUT, `${what}: expected bytes, as of model.checkpoint()`);
  }
  const record = { checkpoint, data };
  await transact(`keep ${what}`, "readwrite", (store) => store.put(record, name));
}

// Return the checkpoint with a name, and its data; null if there is none.
export async function load(name) {
  return (await transact(`read ${check(name)}`, "readonly", (store) => store.get(name))) ?? null;
}

// Delete the checkpoint with a name, if there is one.
export async function remove(name) {
  await transact(`remove ${check(name)}`, "readwrite", (store) => store.delete(name));
}

// Return the names of all checkpoints.
export function list() {
  return transact("list checkpoints", "readonly", (store) => store.getAllKeys());
}
