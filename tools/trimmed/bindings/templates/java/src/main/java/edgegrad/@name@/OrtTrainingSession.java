package edgegrad.@name@;

import java.io.Closeable;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;

/** The same by the names of onnxruntime's OrtTrainingSession, with arrays in place of its tensors. */
public final class OrtTrainingSession implements Closeable {
  /** The model, with all that the names of onnxruntime do not cover. */
  public final Model model;

  private long warmup;
  private long total;
  private float peak;
  private boolean scheduled;

  /** Read a checkpoint file. */
  public OrtTrainingSession(Path checkpoint) {
    model = Model.create(checkpoint.toString());
  }

  /** Forward and backward, on inputs by name; returns the outputs by name. */
  public Map<String, Values> trainStep(Map<String, ?> inputs) {
    return name(model.trainStep(order(Phase.TRAIN, inputs)));
  }

  /** Forward of the evaluation model. */
  public Map<String, Values> evalStep(Map<String, ?> inputs) {
    return name(model.evalStep(order(Phase.EVAL, inputs)));
  }

  public void optimizerStep() {
    model.optimizerStep();
  }

  public void lazyResetGrad() {
    model.lazyResetGrad();
  }

  public void setSeed(long seed) {
    model.setSeed(seed);
  }

  public void setLearningRate(float rate) {
    model.setLearningRate(rate);
  }

  public float getLearningRate() {
    return model.getLearningRate();
  }

  /** Let the rate rise to a peak in steps of warm-up, then fall to 0; see schedulerStep. */
  public void registerLinearLRScheduler(long warmupSteps, long totalSteps, float initialRate) {
    model.setLinearRate(initialRate, warmupSteps, totalSteps);
    warmup = warmupSteps;
    total = totalSteps;
    peak = initialRate;
    scheduled = true;
  }

  /** Set the rate of the next optimizer step. */
  public void schedulerStep() {
    if (!scheduled) {
      throw new ModelException(ErrorCode.BAD_STATE.value, "there is no scheduler: register one");
    }
    model.setLinearRate(peak, warmup, total);
  }

  public void saveCheckpoint(Path path, boolean saveOptimizer) {
    model.save(path.toString(), saveOptimizer);
  }

  public Set<String> getTrainInputNames() {
    return names(Phase.TRAIN);
  }

  public Set<String> getEvalInputNames() {
    return names(Phase.EVAL);
  }

  @Override
  public void close() {
    model.close();
  }

  private Set<String> names(Phase phase) {
    Set<String> names = new LinkedHashSet<>();
    for (int i = 0; i < model.inputCount(phase); i++) {
      names.add(model.inputInfo(phase, i).name);
    }
    return names;
  }

  private Object[] order(Phase phase, Map<String, ?> inputs) {
    Set<String> names = names(phase);
    if (!names.equals(inputs.keySet())) {
      throw Model.refuse("expected the inputs " + names + ", got " + inputs.keySet());
    }
    return names.stream().map(inputs::get).toArray();
  }

  private static Map<String, Values> name(Values[] outputs) {
    Map<String, Values> named = new LinkedHashMap<>();
    for (Values values : outputs) {
      named.put(values.tensor.name, values);
    }
    return named;
  }
}
