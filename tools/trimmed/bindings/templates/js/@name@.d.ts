/** @purpose@ in WebAssembly, in Node.js and in browsers. */

export type TypedArray =
  | Float32Array | Float64Array | Int8Array | Int16Array | Int32Array | BigInt64Array
  | Uint8Array | Uint16Array | Uint32Array | BigUint64Array;

/** An input: an array of the input's element type and size, or plain numbers, which are converted. */
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

/** The error of a refused call: the library's error code and its message. */
export class ModelError extends Error {
  code: ErrorCode;
}

/**
 * A model.  Each one has its own instance of the module, with its own memory.
 *
 * The arrays that `input`, `output`, `parameter` and `gradient` return are views of that memory.
 * They become empty when it grows, as a call with larger arguments makes it do: request them again.
 * Refused calls throw a ModelError.
 */
export class Model {
  private constructor();

  /**
   * Compile the module now; otherwise the first model does.
   * source: the module, its bytes or its address; by default the best in this package that can run.
   */
  static load(source?: WebAssembly.Module | BufferSource | URL | string): Promise<WebAssembly.Module>;

  /** Make a model with the values of a checkpoint, or null: without values, for `setParameters`. */
  static create(checkpoint?: BufferSource | null): Promise<Model>;

  /** Make a model with the values of a checkpoint file; Node.js only. */
  static open(path: string): Promise<Model>;

  /** Return the number of threads of a step; above 1 only if a module with threads could be loaded. */
  threads(): number;

  /** Free the model; the next model reuses its memory. */
  destroy(): void;

/*@if checkpoint_size@*/
  /** Write a checkpoint file, first under a temporary name; Node.js only. */
  save(path: string, includeOptimizerState?: boolean): Promise<void>;

/*@end@*/
/*@memberTypes@*/
}
