import type { TypedArray } from "./@name@.js";

/** A device of a federation: it answers requests by training on its samples. */
export class Device {
  /**
   * @param checkpoint the checkpoint of the build; it is replaced where a request keeps the state
   *   of the optimizer
   * @param samples an array for each input of a training step, with the samples one after another
   */
  constructor(checkpoint: Uint8Array | ArrayBuffer, samples: TypedArray[]);
  checkpoint: Uint8Array | ArrayBuffer;
  samples: TypedArray[];

  /** Carry out a request; the answer says what was wrong if that is not possible. */
  answer(content: ArrayBuffer | Uint8Array): Promise<Uint8Array>;
}
