// @purpose@ in WebAssembly, in Node.js and in browsers; @name@.d.ts documents every function.
//
//     import { Model } from "@name@";
//     const model = await Model.create(checkpoint);
//@if train_step@
//     const [loss] = model.trainStep([samples, labels]);
//     model.optimizerStep();
//     model.lazyResetGrad();
//@end@
//@if infer !train_step@
//     const [scores] = model.infer([samples]);
//@end@
//@if append !train_step !infer@
//     model.append(Int32Array.of(1, 2, 3));
//     const scores = model.scores();
//@end@

/*@enums@*/

// The error of a refused call: the library's error code and its message.
export class ModelError extends Error {
  constructor(code, message) {
    super(message);
    this.name = "ModelError";
    this.code = code;
  }
}

const PAGE = 65536; // WebAssembly's unit of memory
const ARRAYS = {
  F32: Float32Array, F64: Float64Array, BOOL: Uint8Array,
  I8: Int8Array, I16: Int16Array, I32: Int32Array, I64: BigInt64Array,
  U8: Uint8Array, U16: Uint16Array, U32: Uint32Array, U64: BigUint64Array,
};
const TYPES = new Map(Object.entries(Dtype).map(([name, number]) => [number, ARRAYS[name]]));
const ENCODER = new TextEncoder();
const DECODER = new TextDecoder();
// A probe for each feature of WebAssembly: a module that is valid only if the engine has the feature.
// They make a vector, multiply and add vectors, and read shared memory.
const PROBES = {
  "SIMD": new Uint8Array([
    0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 8, 1, 6, 0, 65, 0, 253, 15,
    11,
  ]),
  "relaxed SIMD": new Uint8Array([
    0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 19, 1, 17, 0, 65, 0, 253, 15,
    65, 0, 253, 15, 65, 0, 253, 15, 253, 133, 2, 11,
  ]),
  "threads": new Uint8Array([
    0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 5, 4, 1, 3, 1, 1, 10, 11, 1, 9, 0, 65,
    0, 254, 16, 2, 0, 26, 11,
  ]),
};
const THREADS = @THREADS@; // threads of a step in modules with threads, including the caller's
const STACK = PAGE; // the stack of each thread except the caller's
// The modules of this package, the best first: the features that each needs, and its location.
const MODULES = [
/*@modules@*/
];

let compiled = null; // the promise of the compiled module, which all models share
let spare = null; // the team of a destroyed model, which the next model reuses

function refuse(message) {
  throw new ModelError(ErrorCode.BAD_INPUT, message);
}

function describe(value) {
  if (ArrayBuffer.isView(value) || Array.isArray(value)) {
    return `${value.constructor.name} of ${value.length ?? value.byteLength} elements`;
  }
  return typeof value === "object" ? (value?.constructor?.name ?? "null") : String(value);
}

function whole(name, value) {
  if (!Number.isSafeInteger(value) || Math.abs(value) >= 2 ** 31) {
    refuse(`${name}: expected a whole number of 32 bits, got ${describe(value)}`);
  }
  return value;
}

function size(name, value) {
  if (!Number.isSafeInteger(value) || value < 0 || value >= 2 ** 32) {
    refuse(`${name}: expected a size of less than 4 GiB, got ${describe(value)}`);
  }
  return value;
}

function long(name, value) {
  const integer = typeof value === "bigint" || Number.isSafeInteger(value) ? BigInt(value) : null;
  if (integer === null || BigInt.asIntN(64, integer) !== integer) {
    refuse(`${name}: expected a whole number of 64 bits, got ${describe(value)}`);
  }
  return integer;
}

function number(name, value) {
  if (typeof value !== "number") {
    refuse(`${name}: expected a number, got ${describe(value)}`);
  }
  return value;
}

async function read(url) {
  try {
    if (url.protocol === "file:") {
      const { readFile } = await import("node:fs/promises");
      return await readFile(url);
    }
    const answer = await fetch(url);
    if (!answer.ok) {
      throw new Error(`status ${answer.status}`);
    }
    return await answer.arrayBuffer();
  } catch (error) {
    throw new ModelError(ErrorCode.BAD_FILE, `cannot load ${url}: ${error.message}`);
  }
}

// Whether there are workers, several cores, and shared memory, which pages have only if they are
// isolated from other origins.
function canShare() {
  const { Worker, process, navigator, crossOriginIsolated } = globalThis;
  const isServed = typeof Worker === "function" || process?.versions?.node !== undefined;
  return isServed && crossOriginIsolated !== false && navigator?.hardwareConcurrency !== 1;
}

function has(feature) {
  return WebAssembly.validate(PROBES[feature]) && (feature !== "threads" || canShare());
}

// Return the location of the best module of this package that can run here; the last needs the least.
function choose() {
  if (typeof WebAssembly !== "object") {
    throw new ModelError(ErrorCode.BAD_STATE, "WebAssembly is not available here; browsers in lockdown mode disable it");
  }
  const [needs, find] = MODULES.find(([features]) => features.every(has)) ?? MODULES.at(-1);
  const missing = needs.find((feature) => !has(feature));
  if (missing) {
    const message = `WebAssembly lacks ${missing} here, which this module needs`;
    throw new ModelError(ErrorCode.BAD_STATE, message);
  }
  return find();
}

// Compile a source, or the best module of this package that can run here.
async function compile(source) {
  const best = choose();
  source ??= best;
  if (source instanceof WebAssembly.Module) {
    return source;
  }
  const isPlace = source instanceof URL || typeof source === "string";
  const bytes = isPlace ? await read(new URL(source, import.meta.url)) : source;
  try {
    return await WebAssembly.compile(bytes);
  } catch (error) { // the bytes are not a module, or the page's policy forbids it
    throw new ModelError(ErrorCode.BAD_FILE, `cannot compile ${isPlace ? source : "the module"}: ${error.message}`);
  }
}

// The start of a model's memory in an instance: after the stack and the constants.
const findModel = (instance) => Math.ceil(instance.exports.__heap_base.value / 64) * 64;
// The end of a model's memory, after the stacks of the threads 1 to `tid`.
const findEnd = (instance, tid) => findModel(instance) + Math.ceil(@MEMORY_BYTES@ / 64) * 64 + STACK * tid;

// The next message of a worker.
function hear(worker) {
  return new Promise((resolve, reject) => {
    const fail = ({ message }) => {
      reject(new ModelError(ErrorCode.BAD_STATE, `a thread cannot run: ${message ?? "its script is missing"}`));
    };
    if (worker.once) {
      const exit = () => fail({ message: "it has ended" });
      worker.once("error", fail);
      worker.once("exit", exit);
      worker.once("message", () => {
        worker.off("error", fail);
        worker.off("exit", exit);
        resolve();
      });
    } else {
      worker.onmessage = resolve;
      worker.onerror = fail;
    }
  });
}

async function startWorker() {
  if (globalThis.Worker) {
    return new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  }
  const { Worker: NodeWorker } = await import("node:worker_threads");
  return new NodeWorker(new URL("./worker.js", import.meta.url), { execArgv: [] });
}

// An instance of the module and, if the module has threads, a worker for each further thread with an
// instance that shares the memory.
class Team {
  #workers = [];
  #idle = null; // resolves when the workers have left the last model

  constructor(instance) {
    this.instance = instance;
  }

  get threads() {
    return 1 + this.#workers.length;
  }

  static async make(module) {
    const [section] = WebAssembly.Module.customSections(module, "pages");
    if (section === undefined) {
      return new Team(await WebAssembly.instantiate(module));
    }
    const initial = new DataView(section).getUint32(0, true);
    const most = initial + Math.ceil((8 * @MEMORY_BYTES@) / PAGE) + THREADS + 1024;
    const memory = new WebAssembly.Memory({ initial, maximum: Math.min(most, PAGE - 1), shared: true });
    const team = new Team(await WebAssembly.instantiate(module, { env: { memory } }));
    grow(memory, findEnd(team.instance, THREADS - 1));
    try {
      for (let tid = 1; tid < THREADS; tid++) {
        team.#workers.push(await startWorker());
      }
      await team.#tell((index) => {
        const tid = index + 1;
        const [floor, stack] = [tid - 1, tid].map((t) => findEnd(team.instance, t));
        return { module, memory, tid, floor, stack };
      });
    } catch (error) {
      team.stop();
      throw error;
    }
    team.#hold(false);
    return team;
  }

  #tell(write) {
    const heard = this.#workers.map(hear);
    this.#workers.forEach((worker, index) => worker.postMessage(write(index)));
    return Promise.all(heard);
  }

  // Let all threads work for a model until it ends.
  begin(m) {
    this.#idle = this.#tell(() => ({ m }));
    this.#idle.catch(() => {});
    this.#hold(false); // adding listeners has made Node.js wait
  }

  // Wait until no thread works for the last model.
  async finish() {
    this.#hold(true);
    await this.#idle;
    this.#hold(false);
  }

  // Let Node.js wait for the workers before it ends, or not.
  #hold(isHeld) {
    this.#workers.forEach((worker) => (isHeld ? worker.ref?.() : worker.unref?.()));
  }

  stop() {
    this.#workers.forEach((worker) => worker.terminate());
  }

  // Return the error of a trap in the caller's thread or in another one.
  explain(error) {
    const { ended, memory } = this.instance.exports;
    const tid = ended?.(0) ?? 0;
    let said = error.message;
    if (tid !== 0) {
      const text = new Uint8Array(memory.buffer).slice(findEnd(this.instance, tid - 1));
      said = `thread ${tid}: ${DECODER.decode(text.subarray(0, text.indexOf(0)))}`;
    }
    return new ModelError(ErrorCode.BAD_STATE, `the call trapped: ${said}; destroy the model`);
  }
}

// Grow a memory to at least so many bytes.
function grow(memory, size) {
  const missing = size - memory.buffer.byteLength;
  if (missing > 0) {
    try {
      memory.grow(Math.ceil(missing / PAGE));
    } catch {
      throw new ModelError(ErrorCode.NO_MEMORY, `the system cannot provide ${missing} more bytes of memory`);
    }
  }
}

// Keep a team for the next model.
function spareTeam(team) {
  spare?.stop();
  spare = team;
}

// Return the kept team once it is idle; null if there is none, or one of its threads has ended.
async function takeSpare() {
  const team = spare;
  spare = null;
  try {
    await team?.finish();
    return team;
  } catch {
    team.stop();
    return null;
  }
}

// Each model has its own instance of the module, with its own memory: first the stack, then the
// constants, the model, the stacks of other threads, and the arguments of the current call.
export class Model {
  #team;
  #instance;
  #m = 0;
  #arguments; // the address of the first argument
  #top; // the address of the next argument
  #trap = null; // the error of a trap: the instance is unusable

  // Compile the module now; otherwise the first model does.
  // source: the module, its bytes or its address; by default the best in this package that can run.
  static async load(source = null) {
    compiled ??= compile(source);
    try {
      return await compiled;
    } catch (error) {
      compiled = null; // the next call tries again
      throw error;
    }
  }

  // Make a model with the values of a checkpoint, or null: without values, for `setParameters`.
  static async create(checkpoint = null) {
    const module = await Model.load();
    return new Model((await takeSpare()) ?? (await Team.make(module)), checkpoint);
  }

  // Make a model with the values of a checkpoint file; Node.js only.
  static async open(path) {
    const { readFile } = await import("node:fs/promises");
    let content;
    try {
      content = await readFile(path);
    } catch (error) {
      throw new ModelError(ErrorCode.BAD_FILE, `cannot read '${path}': ${error.message}`);
    }
    return Model.create(content);
  }

  constructor(team, checkpoint) {
    if (!(team instanceof Team)) {
      refuse("create models with `await Model.create(checkpoint)`");
    }
    this.#team = team;
    this.#instance = team.instance;
    const memory = findModel(team.instance);
    this.#arguments = this.#top = findEnd(team.instance, team.threads - 1);
    const out = this.#take(4);
    const why = this.#take(@MESSAGE_BYTES@);
    const given = checkpoint === null ? [0, 0] : this.#bytes("checkpoint", checkpoint);
    const code = this.#run("create_in", out, memory, @MEMORY_BYTES@, ...given, why);
    if (code !== ErrorCode.OK) {
      spareTeam(team);
      throw new ModelError(code, this.#string(why));
    }
    this.#m = this.#data.getUint32(out, true);
    team.begin(this.#m);
  }

  // Return the number of threads of a step.
  threads() {
    return this.#team.threads;
  }

  // Free the model; the next model reuses its memory.
  destroy() {
    if (this.#instance !== null) {
      if (this.#trap === null) {
        this.#call("destroy");
        spareTeam(this.#team);
      }
      this.#instance = null;
    }
  }

//@if checkpoint_size@
  // Write a checkpoint file, first under a temporary name; Node.js only.
  async save(path, includeOptimizerState = true) {
    const bytes = this.checkpoint(includeOptimizerState);
    const { open, rename, rm } = await import("node:fs/promises");
    const temporary = `${path}.${process.pid}-${Math.random().toString(36).slice(2)}.tmp`;
    try {
      const file = await open(temporary, "wx");
      try {
        await file.writeFile(bytes);
        await file.sync();
      } finally {
        await file.close();
      }
      await rename(temporary, path);
    } catch (error) {
      await rm(temporary, { force: true });
      throw new ModelError(ErrorCode.BAD_FILE, `cannot write checkpoint '${path}': ${error.message}`);
    }
  }

//@end@
/*@members@*/

  // --- calls

  get #exports() {
    if (this.#instance === null) {
      throw new ModelError(ErrorCode.BAD_STATE, "the model was destroyed");
    }
    if (this.#trap !== null) {
      throw this.#trap;
    }
    return this.#instance.exports;
  }

  get #data() {
    return new DataView(this.#exports.memory.buffer);
  }

  #call(name, ...given) {
    return this.#run(name, this.#m, ...given);
  }

  #run(name, ...given) {
    const call = this.#exports[`@name@_${name}`];
    try {
      return call(...given);
    } catch (error) {
      this.#trap = this.#team.explain(error);
      this.#team.stop();
      throw this.#trap;
    } finally {
      this.#top = this.#arguments;
    }
  }

  #check(code) {
    if (code !== ErrorCode.OK) {
      throw new ModelError(code, this.message());
    }
  }

  // Reserve memory for an argument; the memory grows if necessary.
  #take(size) {
    const at = Math.ceil(this.#top / 16) * 16;
    grow(this.#exports.memory, at + size);
    this.#top = at + size;
    return at;
  }

  // Copy an array into the memory; return its address and the number of elements.
  #copy(name, value, type) {
    if (!(value instanceof type)) {
      refuse(`${name}: expected ${type.name}, got ${describe(value)}`);
    }
    const at = this.#take(value.byteLength);
    new type(this.#exports.memory.buffer, at, value.length).set(value);
    return [at, value.length];
  }

  #bytes(name, value) {
    if (value instanceof ArrayBuffer) {
      return this.#copy(name, new Uint8Array(value), Uint8Array);
    }
    if (!ArrayBuffer.isView(value)) {
      refuse(`${name}: expected bytes, got ${describe(value)}`);
    }
    const bytes = new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
    return this.#copy(name, bytes, Uint8Array);
  }

  #fetch([at], value) {
    value.set(new value.constructor(this.#exports.memory.buffer, at, value.length));
  }

  #text(name, value) {
    if (typeof value !== "string" || value.includes("\0")) {
      refuse(`${name}: expected text without null characters, got ${describe(value)}`);
    }
    return this.#copy(name, ENCODER.encode(`${value}\0`), Uint8Array)[0];
  }

  #string(at) {
    const bytes = new Uint8Array(this.#exports.memory.buffer);
    return at === 0 ? "" : DECODER.decode(bytes.slice(at, bytes.indexOf(0, at)));
  }

  #tensor(at) {
    if (at === 0) {
      return null;
    }
    const data = this.#data;
    const field = (index) => data.getUint32(at + 4 * index, true);
    const dim = (_, axis) => Number(data.getBigInt64(field(3) + 8 * axis, true));
    return {
      name: this.#string(field(0)),
      dtype: field(1),
      dims: Array.from({ length: field(2) }, dim),
      bytes: field(4),
      trainable: field(5) !== 0,
    };
  }

  #view(at, tensor) {
    if (at === 0) {
      return null;
    }
    const type = TYPES.get(tensor.dtype);
    return new type(this.#exports.memory.buffer, at, tensor.bytes / type.BYTES_PER_ELEMENT);
  }

  // Check all inputs of a step, then write them to where it reads them.
  #place(phase, inputs) {
    if (inputs === null || !this.hasPhase(phase)) {
      return; // the inputs are in place, or the step itself reports the error
    }
    const count = this.inputCount(phase);
    if (!Array.isArray(inputs) || inputs.length !== count) {
      const names = Array.from({ length: count }, (_, index) => this.inputInfo(phase, index).name);
      refuse(`inputs: expected an array of ${count} inputs [${names.join(", ")}], got ${describe(inputs)}`);
    }
    const values = inputs.map((value, index) => {
      const tensor = this.inputInfo(phase, index);
      const type = TYPES.get(tensor.dtype);
      const elements = tensor.bytes / type.BYTES_PER_ELEMENT;
      const made = Array.isArray(value) ? this.#convert(tensor, type, value) : value;
      if (!(made instanceof type) || made.length !== elements) {
        const wanted = `${type.name} of ${elements} elements, [${tensor.dims.join(", ")}]`;
        refuse(`input '${tensor.name}': expected ${wanted}, got ${describe(value)}`);
      }
      return made;
    });
    values.forEach((value, index) => this.input(phase, index).set(value));
  }

  // Return numbers as an array of a type; integers must fit the type.
  #convert(tensor, type, value) {
    const isBig = type.name.startsWith("Big"), isFloat = type.name.startsWith("Float");
    const bad = (each) => {
      if (!["number", "bigint", "boolean"].includes(typeof each)) {
        return true;
      }
      return !isFloat && (!Number.isInteger(Number(each)) || type.of(isBig ? BigInt(each) : Number(each))[0] != each);
    };
    const at = Array.from(value).findIndex(bad);
    if (at >= 0) {
      refuse(`input '${tensor.name}': expected numbers for ${type.name}, got ${describe(value[at])} at ${at}`);
    }
    return isBig ? type.from(value, BigInt) : type.from(value, Number);
  }

  #outputs(phase) {
    const copy = (_, index) => this.output(phase, index).slice();
    return Array.from({ length: this.outputCount(phase) }, copy);
  }
}
