import type { TypedArray } from "./@name@.js";

/** A device of a federation: it answers requests by training on its samples. */
export class Device {
  /**
   * @param checkpoint the build's checkpoint; a request that keeps the optimizer's state replaces it
   * @param samples an array for each input of a training step, with the samples one after another
   */
  constructor(checkpoint: Uint8Array | ArrayBuffer, samples: TypedArray[]);
  checkpoint: Uint8Array | ArrayBuffer;
  samples: TypedArray[];

  /** Carry out a request, and return the answer, which gives the reason if that failed. */
  answer(content: ArrayBuffer | Uint8Array): Promise<Uint8Array>;
}
