// A device of a federation: takes a request, trains or evaluates on its samples, and returns the
// answer. Messages are safetensors files; your program transports them:
//
//     import { Device } from "@name@/federated";
//     const device = new Device(checkpoint, [images, labels]);
//     const request = await (await fetch("round")).arrayBuffer();
//     await fetch("round", { method: "POST", body: await device.answer(request) });

import { ErrorCode, Model, ModelError, Phase } from "./@name@.js";

function refuse(message) {
  throw new ModelError(ErrorCode.BAD_INPUT, message);
}

// A device. checkpoint: the build's; a request that keeps the optimizer's state replaces it.
// samples: an array for each input of a training step, with the samples one after another.
export class Device {
  constructor(checkpoint, samples) {
    this.checkpoint = checkpoint;
    this.samples = samples;
  }

  // Carry out a request, and return the answer, which gives the reason if that failed. Content that
  // is not a request throws a ModelError.
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

  // Run the steps of a phase over all samples; return the number of samples and the mean loss of
  // the last epoch.
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
          break; // the build has no plans for this smaller last batch
        }
        sum += batch * this.#step(model, phase, count, batch, samples);
      }
    }
    if (count === 0) {
      refuse(`${samples} samples are less than a batch`);
    }
    return [count, sum / count];
  }

  // Run a step on the samples from number `begin` on; return its loss.
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
