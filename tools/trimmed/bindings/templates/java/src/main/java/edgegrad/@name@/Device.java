package edgegrad.@name@;

import java.io.ByteArrayOutputStream;
import java.lang.reflect.Array;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A device of a federation: it reads a request, trains or evaluates on its samples, and makes the
 * answer. Messages are files of safetensors; how they travel is up to you.
 *
 * <pre>{@code
 * Device device = new Device(checkpoint, images, labels);
 * byte[] answer = device.answer(request);
 * }</pre>
 */
public final class Device {
  private byte[] checkpoint;
  private final Object[] samples;

  /**
   * @param checkpoint the checkpoint of the build
   * @param samples an array for each input of a training step, with the samples one after another
   */
  public Device(byte[] checkpoint, Object... samples) {
    this.checkpoint = checkpoint.clone();
    this.samples = samples;
  }

  /** Return the checkpoint, with the state of the optimizer where a request has kept it. */
  public synchronized byte[] checkpoint() {
    return checkpoint.clone();
  }

  /**
   * Carry out a request; the answer says what was wrong if that is not possible. Content that is no
   * request gets no answer, but a ModelException.
   */
  public synchronized byte[] answer(byte[] content) {
    Request request = new Request(content);
    boolean trains = request.kind.equals("train");
    Map<String, String> texts = new LinkedHashMap<>();
    texts.put("model", request.model);
    texts.put("round", request.round);
    try (Model model = Model.createFrom(checkpoint)) {
      List<Integer> known = takeParameters(model, request);
      double[] result = work(model, request, trains ? Phase.TRAIN : Phase.EVAL);
      texts.put("kind", trains ? "trained" : "evaluated");
      texts.put("metric.num-examples", String.valueOf((long) result[0]));
      texts.put(trains ? "metric.train_loss" : "metric.eval_loss", String.valueOf(result[1]));
      if (trains && "keep".equals(request.config.get("optimizer-state"))) {
        checkpoint = model.checkpoint(true);
      }
      return write(texts, model, trains ? known : new ArrayList<>());
    } catch (ModelException error) {
      texts.keySet().removeIf(name -> name.startsWith("metric."));
      texts.put("kind", "failed");
      texts.put("reason", error.getMessage());
      return write(texts, null, new ArrayList<>());
    }
  }

  /** Put the parameters of a request into the model; nothing changes unless all of them fit. */
  private static List<Integer> takeParameters(Model model, Request request) {
    List<Integer> known = new ArrayList<>();
    for (int i = 0; i < model.parameterCount(); i++) {
      Tensor tensor = model.parameterInfo(i);
      if (request.tensors.containsKey(tensor.name)) {
        known.add(i);
      } else if (tensor.trainable) {
        throw Model.refuse("parameter '" + tensor.name + "' is missing");
      }
    }
    String mine = computeFingerprint(model, known);
    if (!mine.equals(request.model)) {
      throw Model.refuse("asked for another model; of these parameters it has " + mine);
    }
    if (known.size() != request.tensors.size()) {
      String count = request.tensors.size() + " parameters; this model knows ";
      throw Model.refuse(count + known.size() + " of them");
    }
    List<Object> values = new ArrayList<>();
    for (int index : known) {
      Tensor tensor = model.parameterInfo(index);
      Request.Entry entry = request.tensors.get(tensor.name);
      if (!entry.dtype.equals(tensor.dtype.name()) || !Arrays.equals(entry.dims, tensor.dims)) {
        throw Model.refuse("parameter '" + tensor.name + "' has another shape or type");
      }
      values.add(readArray(tensor, request.values(entry)));
    }
    for (int k = 0; k < values.size(); k++) {
      model.setParameter(known.get(k), values.get(k));
    }
    return known;
  }

  private static Object readArray(Tensor tensor, ByteBuffer bytes) {
    Object array = tensor.makeArray();
    int count = Array.getLength(array);
    for (int i = 0; i < count; i++) {
      if (array instanceof float[]) {
        Array.setFloat(array, i, bytes.getFloat());
      } else if (array instanceof double[]) {
        Array.setDouble(array, i, bytes.getDouble());
      } else if (array instanceof long[]) {
        Array.setLong(array, i, bytes.getLong());
      } else if (array instanceof int[]) {
        Array.setInt(array, i, bytes.getInt());
      } else if (array instanceof short[]) {
        Array.setShort(array, i, bytes.getShort());
      } else if (array instanceof boolean[]) {
        Array.setBoolean(array, i, bytes.get() != 0);
      } else {
        Array.setByte(array, i, bytes.get());
      }
      boolean isReal = array instanceof float[] || array instanceof double[];
      if (isReal && !Double.isFinite(Array.getDouble(array, i))) {
        throw Model.refuse("parameter '" + tensor.name + "' has values that are not finite");
      }
    }
    return array;
  }

  private static void writeArray(Object array, ByteBuffer bytes) {
    for (int i = 0; i < Array.getLength(array); i++) {
      if (array instanceof float[]) {
        bytes.putFloat(Array.getFloat(array, i));
      } else if (array instanceof double[]) {
        bytes.putDouble(Array.getDouble(array, i));
      } else if (array instanceof long[]) {
        bytes.putLong(Array.getLong(array, i));
      } else if (array instanceof int[]) {
        bytes.putInt(Array.getInt(array, i));
      } else if (array instanceof short[]) {
        bytes.putShort(Array.getShort(array, i));
      } else if (array instanceof boolean[]) {
        bytes.put((byte) (Array.getBoolean(array, i) ? 1 : 0));
      } else {
        bytes.put(Array.getByte(array, i));
      }
    }
  }

  /** Return 64-bit FNV-1a over a line for each parameter, in the order of the names' bytes. */
  private static String computeFingerprint(Model model, List<Integer> parameters) {
    List<byte[]> lines = new ArrayList<>();
    for (int index : parameters) {
      Tensor tensor = model.parameterInfo(index);
      StringBuilder line = new StringBuilder(tensor.name).append('\0').append(tensor.dtype.name());
      for (long dim : tensor.dims) {
        line.append(',').append(dim);
      }
      lines.add(line.append('\n').toString().getBytes(StandardCharsets.UTF_8));
    }
    lines.sort(Device::compareBytes);
    long hash = 0xcbf29ce484222325L;
    for (byte[] line : lines) {
      for (byte each : line) {
        hash = (hash ^ (each & 0xff)) * 0x100000001b3L;
      }
    }
    return String.format("%016x", hash);
  }

  private static int compareBytes(byte[] a, byte[] b) {
    for (int i = 0; i < Math.min(a.length, b.length); i++) {
      if (a[i] != b[i]) {
        return (a[i] & 0xff) - (b[i] & 0xff);
      }
    }
    return a.length - b.length;
  }

  /** Set the anchors of FedProx's proximal term, and its weight. */
  private static void setAnchors(Model model, double mu) {
    int weight = model.findParameter("proximal_mu");
    if (!(mu >= 0 && mu <= 1e30) || (weight < 0 && mu > 0)) {
      String wanted = weight < 0 ? "this build has no such term" : "expected 0 or more";
      throw Model.refuse("proximal-mu is " + mu + "; " + wanted);
    }
    for (int i = 0; weight >= 0 && i < model.parameterCount(); i++) {
      Tensor tensor = model.parameterInfo(i);
      int anchor = tensor.trainable ? model.findParameter(tensor.name + ".anchor") : 0;
      if (anchor < 0) {
        throw Model.refuse("parameter '" + tensor.name + "' has no anchor");
      }
      if (tensor.trainable) {
        model.setParameter(anchor, model.parameter(i).array);
      }
    }
    if (weight >= 0) {
      boolean isSingle = model.parameterInfo(weight).dtype == Dtype.F32;
      model.setParameter(weight, isSingle ? (Object) new float[] {(float) mu} : new double[] {mu});
    }
  }

  /** Train or evaluate on all samples; returns how many there were, and the mean loss. */
  private double[] work(Model model, Request request, Phase phase) {
    Object send = request.config.getOrDefault("send", "parameters");
    if (!send.equals("parameters")) {
      throw Model.refuse("send is " + send + "; this device sends parameters");
    }
    setAnchors(model, request.number("proximal-mu", 0));
    double epochs = request.number("local-epochs", 1);
    double usual = request.number("batch-size", 0);
    if (epochs < 1 || epochs != Math.rint(epochs) || usual < 0 || usual != Math.rint(usual)) {
      String values = "local-epochs is " + epochs + ", batch-size " + usual;
      throw Model.refuse(values + "; expected whole numbers");
    }
    long batch = usual > 0 ? (long) usual : model.batchSize(0);
    model.setBatch(batch);
    double rate = request.number("learning-rate", 0);
    if (rate > 0) {
      model.setLearningRate((float) rate);
    }
    int count = countSamples(model, phase, batch);
    double[] result = {0, 0};
    for (double epoch = 0; epoch < (phase == Phase.TRAIN ? epochs : 1); epoch++) {
      result = walk(model, phase, (int) batch, count);
    }
    return result;
  }

  private int countSamples(Model model, Phase phase, long batch) {
    int inputs = model.inputCount(phase), count = -1;
    boolean fits = samples.length == inputs;
    for (int i = 0; fits && i < inputs; i++) {
      int each = (int) (model.inputInfo(phase, i).elements() / batch);
      int length = Array.getLength(samples[i]);
      fits = length > 0 && length % each == 0 && (i == 0 || length / each == count);
      count = length / each;
    }
    if (!fits) {
      throw Model.refuse("samples: expected the same number for each of " + inputs + " inputs");
    }
    return count;
  }

  private double[] walk(Model model, Phase phase, int usual, int total) {
    double sum = 0;
    int count = 0;
    while (count < total) {
      int batch = Math.min(usual, total - count);
      if (!hasBatch(model, batch)) {
        break; // a last batch whose size has no plans
      }
      model.setBatch(batch);
      Object[] inputs = new Object[samples.length];
      for (int i = 0; i < inputs.length; i++) {
        int each = Array.getLength(samples[i]) / total;
        inputs[i] = Array.newInstance(samples[i].getClass().getComponentType(), batch * each);
        System.arraycopy(samples[i], count * each, inputs[i], 0, batch * each);
      }
      Values[] made = phase == Phase.TRAIN ? model.trainStep(inputs) : model.evalStep(inputs);
      if (phase == Phase.TRAIN && !model.isJoined()) {
        model.optimizerStep();
      }
      model.lazyResetGrad();
      double loss = Array.getDouble(made[0].array, 0);
      if (!Double.isFinite(loss)) {
        throw Model.refuse("the loss is not finite");
      }
      sum += loss * batch;
      count += batch;
    }
    if (count == 0) {
      throw Model.refuse(total + " samples are less than a batch");
    }
    return new double[] {count, sum / count};
  }

  private static boolean hasBatch(Model model, int batch) {
    for (int i = 0; i < model.batchCount(); i++) {
      if (model.batchSize(i) == batch) {
        return true;
      }
    }
    return false;
  }

  private static byte[] write(Map<String, String> texts, Model model, List<Integer> parameters) {
    StringBuilder header = new StringBuilder("{\"__metadata__\":{\"edgegrad.message\":\"1\"");
    texts.forEach((name, text) -> header.append(pair(name)).append(Json.quote(text)));
    header.append('}');
    long end = 0;
    ByteArrayOutputStream data = new ByteArrayOutputStream();
    for (int index : parameters) {
      Tensor tensor = model.parameterInfo(index);
      ByteBuffer bytes = Request.order(ByteBuffer.allocate(Math.toIntExact(tensor.bytes)));
      writeArray(model.parameter(index).array, bytes);
      data.write(bytes.array(), 0, bytes.capacity());
      header.append(pair(tensor.name)).append("{\"dtype\":\"").append(tensor.dtype.name());
      header.append("\",\"shape\":").append(Arrays.toString(tensor.dims));
      header.append(",\"data_offsets\":[").append(end).append(',');
      end += tensor.bytes;
      header.append(end).append("]}");
    }
    byte[] text = header.append('}').toString().getBytes(StandardCharsets.UTF_8);
    ByteBuffer message = Request.order(ByteBuffer.allocate(8 + text.length + data.size()));
    return message.putLong(text.length).put(text).put(data.toByteArray()).array();
  }

  private static String pair(String name) {
    return "," + Json.quote(name) + ":";
  }
}
