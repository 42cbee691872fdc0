// TensorFlow.js: the forward graph of the workload, node by node, with the same values.  It keeps
// pictures as [batch, height, width, channels], and differentiates by its own tape.

const script = (address) =>
  new Promise((resolve, reject) => {
    const made = Object.assign(document.createElement("script"), { src: address });
    Object.assign(made, { onload: resolve, onerror: () => reject(new Error(address)) });
    document.head.append(made);
  });

const sides = ([top, left, bottom, right]) => [[0, 0], [top, bottom], [left, right], [0, 0]];

// Operators of the workloads, of the node's inputs and attributes; weights of convolutions are
// [height, width, inputs, outputs], or [height, width, channels, 1] where each channel is alone.
const OPS = {
  Add: ([a, b]) => tf.add(a, b),
  BatchNormalization: ([x, scale, shift, mean, variance], { epsilon = 1e-5 }) =>
    tf.batchNorm(x, mean, variance, shift, scale, epsilon),
  Clip: ([x, low, high]) => tf.clipByValue(x, low, high),
  Conv: ([x, weight, bias], { group = 1, pads, strides }) => {
    const y = (group > 1 ? tf.depthwiseConv2d : tf.conv2d)(x, weight, strides, sides(pads));
    return bias ? tf.add(y, bias) : y;
  },
  Flatten: ([x]) => tf.reshape(tf.transpose(x, [0, 3, 1, 2]), [x.shape[0], -1]),
  Gemm: ([x, weight, bias]) => tf.add(tf.matMul(x, weight, false, true), bias),
  MaxPool: ([x], { kernel_shape, strides }) => tf.maxPool(x, kernel_shape, strides, "valid"),
  ReduceMean: ([x]) => tf.mean(x, [1, 2]),
  Relu: ([x]) => tf.relu(x),
};

export async function open({ x, y }, backend) {
  await script("peers/@tensorflow/tfjs/dist/tf.min.js");
  if (backend === "wasm") {
    await script("peers/@tensorflow/tfjs-backend-wasm/dist/tf-backend-wasm.min.js");
    tf.wasm.setWasmPaths("peers/@tensorflow/tfjs-backend-wasm/dist/");
    tf.wasm.setThreadsCount(1);
  }
  if (!(await tf.setBackend(backend))) {
    throw new Error(`no backend ${backend} here`);
  }
  await tf.ready();
  const { nodes, initializers } = await (await fetch("graph.json")).json();
  const weights = new Float32Array(await (await fetch("weights.bin")).arrayBuffer());
  const convolutions = nodes.filter((node) => node.op === "Conv");
  const constants = {};
  for (const { name, dims, at, size, trained } of initializers) {
    const reader = convolutions.find((node) => node.inputs[1] === name);
    let value = tf.tensor(weights.subarray(at, at + size), dims);
    if (reader) {
      value = tf.transpose(value, reader.attrs.group > 1 ? [2, 3, 0, 1] : [2, 3, 1, 0]);
    }
    constants[name] = trained ? tf.variable(value) : dims.length ? value : weights[at];
  }
  const variables = initializers.filter((i) => i.trained).map((i) => constants[i.name]);
  const raw = tf.tensor(x.values, x.dims);
  const input = x.dims.length === 4 ? tf.transpose(raw, [0, 2, 3, 1]) : raw;
  const labels = tf.oneHot(tf.tensor(Array.from(y.values, Number), y.dims, "int32"), 10);
  const optimizer = tf.train.adam(1e-3, 0.9, 0.999);
  let taken = 0;
  const forward = () => {
    const values = { ...constants, x: input };
    for (const { op, inputs, outputs, attrs } of nodes) {
      values[outputs[0]] = OPS[op](inputs.map((name) => values[name]), attrs);
    }
    return tf.losses.softmaxCrossEntropy(labels, values.scores);
  };
  return async () => {
    // Its epsilon is added to the corrected moment; the one of the artifacts to the moment itself.
    optimizer.epsilon = 1e-6 / Math.sqrt(1 - 0.999 ** ++taken);
    const loss = optimizer.minimize(forward, true, variables);
    const [value] = await loss.data();
    loss.dispose();
    return value;
  };
}
