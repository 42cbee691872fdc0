/**
 * Checkpoints in a page's IndexedDB, in a database of this model's own.  What fails, as for want of
 * room or of IndexedDB, throws a ModelError with the code BAD_FILE, and changes nothing.
 */

/** What is kept under a name. */
export interface Kept<Data = unknown> {
  checkpoint: Uint8Array | ArrayBuffer;
  data: Data;
}

/**
 * Keep a checkpoint under a name, in place of the one that was there.
 * @param checkpoint the bytes, as `model.checkpoint()` returns them
 * @param data what belongs to them: numbers, texts, arrays, whatever IndexedDB can keep
 */
export function save(name: string, checkpoint: BufferSource, data?: unknown): Promise<void>;

/** The checkpoint of a name, and the data beside it; null if there is none. */
export function load<Data = unknown>(name: string): Promise<Kept<Data> | null>;

/** Forget the checkpoint of a name, if there is one. */
export function remove(name: string): Promise<void>;

/** The names of all checkpoints. */
export function list(): Promise<string[]>;
