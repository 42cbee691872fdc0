package edgegrad.@name@;

import java.lang.reflect.Array;

/**
 * A device of a federation: takes a request, trains or evaluates on its samples, and returns the
 * answer. Messages are safetensors files; your program transports them.
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

  /** Return the checkpoint, with the optimizer's state if a request asked to keep it. */
  public synchronized byte[] checkpoint() {
    return checkpoint.clone();
  }

  /**
   * Carry out a request, and return the answer, which gives the reason if that failed. Content that
   * is not a request throws a ModelException.
   */
  public synchronized byte[] answer(byte[] content) {
    try (Model model = Model.createFrom(checkpoint)) {
      double[] result = {0, 0};
      String reason = "";
      try {
        Model.Request request = model.takeRequest(content);
        result = work(model, request.phase, request.epochs);
        if (request.keepsState != 0) {
          checkpoint = model.checkpoint(true);
        }
      } catch (ModelException error) {
        reason = error.getMessage();
      }
      return model.answer(content, (long) result[0], (float) result[1], reason);
    }
  }

  /** Run the steps of a phase; return the number of samples and the mean loss of the last epoch. */
  private double[] work(Model model, Phase phase, int epochs) {
    long batch = model.getBatch();
    int count = countSamples(model, phase, batch);
    double[] result = {0, 0};
    for (int epoch = 0; epoch < epochs; epoch++) {
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
        break; // the build has no plans for this smaller last batch
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
}
