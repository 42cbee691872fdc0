// onnxruntime-web/training, with the same artifacts.

import * as ort from "./peers/onnxruntime-web/dist/ort.training.wasm.min.mjs";

export async function open({ x, y }, threads) {
  ort.env.wasm.numThreads = threads;
  const session = await ort.TrainingSession.create({
    checkpointState: "artifacts/checkpoint",
    trainModel: "artifacts/training_model.onnx",
    optimizerModel: "artifacts/optimizer_model.onnx",
  });
  const [first, second] = session.trainingInputNames;
  const [output] = session.trainingOutputNames;
  return async () => {
    const feeds = {
      [first]: new ort.Tensor("float32", x.values, x.dims),
      [second]: new ort.Tensor("int64", y.values, y.dims),
    };
    const results = await session.runTrainStep(feeds);
    await session.runOptimizerStep();
    await session.lazyResetGrad();
    return results[output].data[0];
  };
}
