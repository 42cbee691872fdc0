// A device of a federation: it reads a request, trains or evaluates on its samples, and makes the
// answer. Messages are files of safetensors; how they travel is up to you:
//
//     import { Device } from "@name@/federated";
//     const device = new Device(checkpoint, [images, labels]);
//     const request = await (await fetch("round")).arrayBuffer();
//     await fetch("round", { method: "POST", body: await device.answer(request) });

import { Dtype, ErrorCode, Model, ModelError, Phase } from "./@name@.js";

const MOST = 1 << 22; // bytes of a header
const SIZES = {
  BOOL: 1, U8: 1, I8: 1, U16: 2, I16: 2, F16: 2, BF16: 2, U32: 4, I32: 4, F32: 4, U64: 8, I64: 8,
  F64: 8,
};
const NAMES = new Map(Object.entries(Dtype).map(([name, number]) => [number, name]));
const KINDS = { train: "trained", evaluate: "evaluated" };
const FIELDS = new Set(["edgegrad.message", "kind", "model", "round"]);
const ENCODER = new TextEncoder();

function refuse(message) {
  throw new ModelError(ErrorCode.BAD_INPUT, message);
}

function isWhole(value) {
  return Number.isSafeInteger(value) && value >= 0;
}

// Refuse text of JSON in which an object has a name twice, of which JSON.parse takes the last one.
function checkNames(text) {
  const open = [];
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"(?:\s*:)?|[{}[\]]/g)) {
    if (token === "{" || token === "[") {
      open.push(new Set());
    } else if (token === "}" || token === "]") {
      open.pop();
    } else if (token.endsWith(":")) {
      const name = JSON.parse(token.slice(0, token.lastIndexOf('"') + 1));
      if (open.at(-1).has(name)) {
        refuse(`message: '${name}' twice`);
      }
      open.at(-1).add(name);
    }
  }
}

function readHeader(bytes) {
  if (bytes.length < 8) {
    refuse(`message: ${bytes.length} bytes, no message`);
  }
  const size = new DataView(bytes.buffer, bytes.byteOffset, 8).getBigUint64(0, true);
  if (size > MOST || size > bytes.length - 8) {
    refuse(`message: a header of ${size} bytes; it is truncated, or has more than ${MOST}`);
  }
  const part = bytes.subarray(8, 8 + Number(size));
  let header;
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(part);
    header = JSON.parse(text);
    checkNames(text);
  } catch (error) {
    if (error instanceof ModelError) {
      throw error;
    }
    refuse(`message: the header is not a JSON object: ${error.message}`);
  }
  if (header === null || typeof header !== "object" || Array.isArray(header)) {
    refuse("message: the header is not a JSON object");
  }
  return [header, bytes.subarray(8 + Number(size))];
}

// The tensors of a message by name; they must fill its data without overlap or gap.
function readTensors(header, data) {
  const tensors = new Map();
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") {
      continue;
    }
    const { dtype, shape, data_offsets: offsets } = entry ?? {};
    const isPlaced = Array.isArray(offsets) && offsets.length === 2 && offsets.every(isWhole);
    const isTyped = typeof dtype === "string" && Object.hasOwn(SIZES, dtype);
    const isShaped = Array.isArray(shape) && shape.length <= 32 && shape.every(isWhole);
    const size = isTyped && isShaped ? shape.reduce((all, dim) => all * dim, SIZES[dtype]) : NaN;
    if (!isPlaced || size !== offsets[1] - offsets[0] || offsets[1] > data.length) {
      refuse(`message: tensor '${name}' has a wrong type, shape or place`);
    }
    tensors.set(name, { dtype, shape, offsets });
  }
  let end = 0;
  const places = [...tensors.values()].map(({ offsets }) => offsets);
  for (const [begin, after] of places.sort((a, b) => a[0] - b[0] || a[1] - b[1])) {
    if (begin !== end) {
      refuse(`message: the tensors overlap or leave a gap at ${end}`);
    }
    end = after;
  }
  if (end !== data.length) {
    refuse(`message: ${data.length - end} bytes after the tensors`);
  }
  for (const tensor of tensors.values()) {
    tensor.bytes = data.slice(...tensor.offsets); // at an address of its own
  }
  return tensors;
}

function readOption(name, text) {
  try {
    const value = JSON.parse(text);
    if (["number", "boolean", "string"].includes(typeof value)) {
      return value;
    }
  } catch {
    // it is refused below
  }
  return refuse(`message: '${name}' is '${text}'; expected a JSON number, boolean or text`);
}

// Read a request: what is asked for, which model, in which round, the options, the parameters.
export function readRequest(content) {
  const [header, data] = readHeader(new Uint8Array(content));
  const texts = header.__metadata__ ?? {};
  if (typeof texts !== "object" || Object.values(texts).some((text) => typeof text !== "string")) {
    refuse("message: its metadata are not an object of texts");
  }
  const tensors = readTensors(header, data);
  if (texts["edgegrad.message"] !== "1") {
    refuse("message: not a message of a federation, or of another version");
  }
  const { kind, model, round } = texts;
  if (!Object.hasOwn(KINDS, kind) || tensors.size === 0) {
    refuse(`message: kind '${kind}' with ${tensors.size} tensors; expected a request`);
  }
  if (!/^[0-9a-f]{16}$/.test(model) || !/^(0|[1-9][0-9]{0,17})$/.test(round)) {
    refuse(`message: model '${model}', round '${round}'; expected hexadecimal digits, and a number`);
  }
  const config = {};
  for (const [name, text] of Object.entries(texts)) {
    if (name.startsWith("config.")) {
      config[name.slice(7)] = readOption(name, text);
    } else if (!FIELDS.has(name)) {
      refuse(`message: unknown '${name}' in its metadata`);
    }
  }
  return { kind, model, round, config, tensors };
}

function compareBytes(a, b) {
  const at = a.findIndex((byte, index) => byte !== b[index]);
  return at < 0 ? a.length - b.length : a[at] - (b[at] ?? -1);
}

// The fingerprint of parameters: 64-bit FNV-1a over a line for each, in the order of the names.
function computeFingerprint(parameters) {
  const lines = parameters
    .map(({ name, dtype, dims }) => [ENCODER.encode(`${name}\0`), NAMES.get(dtype), dims])
    .sort(([a], [b]) => compareBytes(a, b));
  let hash = 0xcbf29ce484222325n;
  for (const [name, dtype, dims] of lines) {
    const rest = ENCODER.encode(`${dtype}${dims.map((dim) => `,${dim}`).join("")}\n`);
    for (const byte of [...name, ...rest]) {
      hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * 0x100000001b3n);
    }
  }
  return hash.toString(16).padStart(16, "0");
}

function writeMessage(texts, tensors) {
  const header = { __metadata__: { "edgegrad.message": "1", ...texts } };
  let end = 0;
  for (const { name, dtype, dims, values } of tensors) {
    const data_offsets = [end, (end += values.byteLength)];
    header[name] = { dtype: NAMES.get(dtype), shape: dims, data_offsets };
  }
  const text = ENCODER.encode(JSON.stringify(header));
  const bytes = new Uint8Array(8 + text.length + end);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true);
  bytes.set(text, 8);
  let at = 8 + text.length;
  for (const { values } of tensors) {
    bytes.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength), at);
    at += values.byteLength;
  }
  return bytes;
}

function listParameters(model) {
  const count = model.parameterCount();
  return Array.from({ length: count }, (_, index) => ({ index, ...model.parameterInfo(index) }));
}

// Put the parameters of a request into the model; nothing changes unless all of them fit.
function takeParameters(model, { tensors, model: asked }) {
  const known = listParameters(model).filter(({ name }) => tensors.has(name));
  const mine = computeFingerprint(known);
  if (mine !== asked) {
    refuse(`asked for another model; of these parameters it has ${mine}`);
  }
  const missing = listParameters(model).find((p) => p.trainable && !tensors.has(p.name));
  if (missing || known.length !== tensors.size) {
    refuse(missing ? `parameter '${missing.name}' is missing`
      : `${tensors.size} parameters; this model knows ${known.length} of them`);
  }
  const values = known.map(({ index, name, dtype, dims }) => {
    const tensor = tensors.get(name);
    if (tensor.dtype !== NAMES.get(dtype) || String(tensor.shape) !== String(dims)) {
      refuse(`parameter '${name}' has another shape or type`);
    }
    const { constructor: type } = model.parameter(index);
    const array = new type(tensor.bytes.buffer);
    if (typeof array[0] === "number" && !array.every(Number.isFinite)) {
      refuse(`parameter '${name}' has values that are not finite`);
    }
    return array;
  });
  known.forEach(({ index }, k) => model.parameter(index).set(values[k]));
  return known;
}

// Set the anchors of FedProx's proximal term, and its weight.
function setAnchors(model, mu) {
  const weight = model.findParameter("proximal_mu");
  if (!(mu >= 0 && mu <= 1e30) || (weight < 0 && mu > 0)) {
    refuse(`proximal-mu is ${mu}; ${weight < 0 ? "this build has no such term" : "expected 0 or more"}`);
  }
  if (weight < 0) {
    return;
  }
  for (const { index, name, trainable } of listParameters(model)) {
    if (trainable) {
      const anchor = model.findParameter(`${name}.anchor`);
      if (anchor < 0) {
        refuse(`parameter '${name}' has no anchor`);
      }
      model.parameter(anchor).set(model.parameter(index));
    }
  }
  model.parameter(weight)[0] = mu;
}

// A device: a checkpoint, which the state of the optimizer goes into if a request keeps it, and
// samples: an array for each input of a training step, with the samples one after another.
export class Device {
  constructor(checkpoint, samples) {
    this.checkpoint = checkpoint;
    this.samples = samples;
  }

  // Carry out a request; the answer says what was wrong if that is not possible. Content that is no
  // request gets no answer: it throws.
  async answer(content) {
    const request = readRequest(content);
    const { kind, model: fingerprint, round } = request;
    const texts = { kind: KINDS[kind], model: fingerprint, round };
    const model = await Model.create(this.checkpoint);
    try {
      const known = takeParameters(model, request);
      const [count, loss] = this.#work(model, request);
      texts["metric.num-examples"] = String(count);
      texts[kind === "train" ? "metric.train_loss" : "metric.eval_loss"] = String(loss);
      if (kind === "train" && request.config["optimizer-state"] === "keep") {
        this.checkpoint = model.checkpoint(true);
      }
      const trained = known.map((each) => ({ ...each, values: model.parameter(each.index) }));
      return writeMessage(texts, kind === "train" ? trained : []);
    } catch (error) {
      if (!(error instanceof ModelError)) {
        throw error;
      }
      return writeMessage({ kind: "failed", model: fingerprint, round, reason: error.message }, []);
    } finally {
      model.destroy();
    }
  }

  // Train or evaluate on all samples; returns how many there were, and the mean loss.
  #work(model, { kind, config }) {
    const { send = "parameters", "local-epochs": epochs = 1, "batch-size": usual = 0 } = config;
    if (send !== "parameters") {
      refuse(`send is ${send}; this device sends parameters`);
    }
    setAnchors(model, config["proximal-mu"] ?? 0);
    if (!isWhole(epochs) || epochs < 1 || !isWhole(usual)) {
      refuse(`local-epochs is ${epochs}, batch-size ${usual}; expected whole numbers`);
    }
    const batch = usual || model.batchSize(0);
    model.setBatch(batch);
    if (config["learning-rate"] > 0) {
      model.setLearningRate(config["learning-rate"]);
    }
    const phase = kind === "train" ? Phase.TRAIN : Phase.EVAL;
    const counts = this.samples.map((values, index) => {
      const info = model.inputInfo(phase, index);
      return info === null ? NaN : (values.byteLength / info.bytes) * batch;
    });
    if (counts.length !== model.inputCount(phase) || !counts.every((n) => n > 0 && n === counts[0])) {
      refuse(`samples: expected the same number for each of ${model.inputCount(phase)} inputs`);
    }
    let result;
    for (let epoch = 0; epoch < (kind === "train" ? epochs : 1); epoch++) {
      result = this.#walk(model, phase, batch, counts[0]);
    }
    return result;
  }

  #walk(model, phase, usual, samples) {
    let sum = 0, count = 0;
    while (count < samples) {
      const batch = Math.min(usual, samples - count);
      if (!Array.from({ length: model.batchCount() }, (_, k) => model.batchSize(k)).includes(batch)) {
        break; // a last batch whose size has no plans
      }
      model.setBatch(batch);
      const begin = count;
      const inputs = this.samples.map((values) => {
        const each = values.length / samples;
        return values.subarray(begin * each, (begin + batch) * each);
      });
      const [[loss]] = phase === Phase.TRAIN ? model.trainStep(inputs) : model.evalStep(inputs);
      if (phase === Phase.TRAIN && !model.isJoined()) {
        model.optimizerStep();
      }
      model.lazyResetGrad();
      if (!Number.isFinite(loss)) {
        refuse("the loss is not finite");
      }
      sum += loss * batch;
      count += batch;
    }
    if (count === 0) {
      refuse(`${samples} samples are less than a batch`);
    }
    return [count, sum / count];
  }
}
