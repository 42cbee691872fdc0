// A device of a federation: it takes a request, trains or evaluates on its samples, and writes the
// answer. Messages are files of safetensors; how they travel is up to you:
//
//     import { Device } from "@name@/federated";
//     const device = new Device(checkpoint, [images, labels]);
//     const request = await (await fetch("round")).arrayBuffer();
//     await fetch("round", { method: "POST", body: await device.answer(request) });

import { ErrorCode, Model, ModelError, Phase } from "./@name@.js";

function refuse(message) {
  throw new ModelError(ErrorCode.BAD_INPUT, message);
}

// A device: a checkpoint, which the state of the optimizer goes into if a request keeps it, and
// samples: an array for each input of a training step, with the samples one after another.
export class Device {
  constructor(checkpoint, samples) {
    this.checkpoint = checkpoint;
    this.samples = samples;
  }

  // Carry out a request; the answer says what was wrong if that is not possible. Content that is
  // not a request gets no answer: it throws.
  async answer(content) {
    const model = await Model.create(this.checkpoint);
    try {
      let count = 0, loss = 0, reason = "";
      try {
        const { phase, epochs, keepsState } = model.takeRequest(content);
        [count, loss] = this.#work(model, phase, epochs);
        if (keepsState) {
          this.checkpoint = model.checkpoint(true);
        }
      } catch (error) {
        if (!(error instanceof ModelError)) {
          throw error;
        }
        reason = error.message;
      }
      return model.answer(content, count, loss, reason);
    } finally {
      model.destroy();
    }
  }

  // Make the steps of a phase over all samples; returns how many the last epoch had, and their
  // mean loss.
  #work(model, phase, epochs) {
    const usual = model.getBatch();
    const counts = this.samples.map((values, index) => {
      const info = model.inputInfo(phase, index);
      return info === null ? NaN : (values.byteLength / info.bytes) * usual;
    });
    const samples = counts[0];
    if (counts.length !== model.inputCount(phase) || !counts.every((n) => n > 0 && n === samples)) {
      refuse(`samples: expected the same number for each of ${model.inputCount(phase)} inputs`);
    }
    const sizes = Array.from({ length: model.batchCount() }, (_, k) => model.batchSize(k));
    let sum = 0, count = 0;
    for (let epoch = 0; epoch < epochs; epoch++) {
      sum = count = 0;
      for (let batch = usual; count < samples; count += batch) {
        batch = Math.min(usual, samples - count);
        if (!sizes.includes(batch)) {
          break; // a last batch whose size has no plans
        }
        sum += batch * this.#step(model, phase, count, batch, samples);
      }
    }
    if (count === 0) {
      refuse(`${samples} samples are less than a batch`);
    }
    return [count, sum / count];
  }

  // Make a step on samples from the one with number `begin` on; returns its loss.
  #step(model, phase, begin, batch, samples) {
    const inputs = this.samples.map((values) => {
      const each = values.length / samples;
      return values.subarray(begin * each, (begin + batch) * each);
    });
    model.setBatch(batch);
    const [[loss]] = phase === Phase.TRAIN ? model.trainStep(inputs) : model.evalStep(inputs);
    if (phase === Phase.TRAIN && !model.isJoined()) {
      model.optimizerStep();
    }
    model.lazyResetGrad();
    if (!Number.isFinite(loss)) {
      refuse("the loss is not finite");
    }
    return loss;
  }
}
