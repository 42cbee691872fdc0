/** @purpose@ in WebAssembly, in Node.js and in browsers. */

export type TypedArray =
  | Float32Array | Float64Array | Int8Array | Int16Array | Int32Array | BigInt64Array
  | Uint8Array | Uint16Array | Uint32Array | BigUint64Array;

/** An input: an array of its element type and size, or plain numbers, which are converted. */
export type Values = TypedArray | readonly (number | bigint | boolean)[];

/** Name, type and shape of an input, an output or a parameter. */
export interface Tensor {
  name: string;
  dtype: Dtype;
  dims: number[];
  bytes: number;
  trainable: boolean;
}

/*@enumTypes@*/

/** An error code of C, and the message that says what was wrong. */
export class ModelError extends Error {
  code: ErrorCode;
}

/**
 * A model with an instance of the module, and so a memory, of its own.
 *
 * Arrays that `input`, `output`, `parameter` and `gradient` return are that memory: they are valid
 * until it grows, as it does for the largest arguments yet, or the model ends.  Take them anew.
 * Calls that are refused throw a ModelError.
 */
export class Model {
  private constructor();

  /**
   * Compile the module, which the first model does otherwise.
   * source: the module, its bytes, or where it is; by default the best of this package that can run.
   */
  static load(source?: WebAssembly.Module | BufferSource | URL | string): Promise<WebAssembly.Module>;

  /** A model with the values of a checkpoint; null: `setParameters` gives them. */
  static create(checkpoint?: BufferSource | null): Promise<Model>;

  /** A model with the values of a checkpoint file; Node.js only. */
  static open(path: string): Promise<Model>;

  /** The threads of a step: several where the package has a module for them that can run. */
  threads(): number;

  /** End the model; its memory serves the next one. */
  destroy(): void;

/*@if checkpoint_size@*/
  /** Write a checkpoint file, under a temporary name that is renamed; Node.js only. */
  save(path: string, includeOptimizerState?: boolean): Promise<void>;

/*@end@*/
/*@memberTypes@*/
}
