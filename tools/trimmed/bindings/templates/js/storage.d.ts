/**
 * Checkpoints in a page's IndexedDB, in a separate database for this model.  A call that fails, for
 * example because the disk is full, throws a ModelError with the code BAD_FILE and changes nothing.
 */

/** A stored record. */
export interface Kept<Data = unknown> {
  checkpoint: Uint8Array | ArrayBuffer;
  data: Data;
}

/**
 * Store a checkpoint under a name, replacing the previous one.
 * @param checkpoint the bytes, as `model.checkpoint()` returns them
 * @param data data to store with the checkpoint: anything that IndexedDB can store
 */
export function save(name: string, checkpoint: BufferSource, data?: unknown): Promise<void>;

/** Return the checkpoint with a name, and its data; null if there is none. */
export function load<Data = unknown>(name: string): Promise<Kept<Data> | null>;

/** Delete the checkpoint with a name, if there is one. */
export function remove(name: string): Promise<void>;

/** Return the names of all checkpoints. */
export function list(): Promise<string[]>;
