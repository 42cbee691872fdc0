/*@if train_step@*/
package edgegrad.@name@;

import java.io.Closeable;
import java.nio.file.Path;
/*@if export_model@*/
import java.util.Arrays;
/*@end@*/
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.function.BiFunction;

/** The methods of onnxruntime's OrtTrainingSession, with arrays instead of tensors. */
public final class OrtTrainingSession implements Closeable {
  /** The model, for everything that onnxruntime's methods do not cover. */
  public final Model model;

  private long warmup;
  private long total;
  private float peak;
  private boolean scheduled;

  /** Read a checkpoint file. */
  public OrtTrainingSession(Path checkpoint) {
    model = Model.create(checkpoint.toString());
  }

  /** Run forward and backward on inputs by name; return the outputs by name. */
  public Map<String, Values> trainStep(Map<String, ?> inputs) {
    return name(model.trainStep(order(Phase.TRAIN, inputs)));
  }

/*@if eval_step@*/
  /** Run the evaluation model on inputs by name; return the outputs by name. */
  public Map<String, Values> evalStep(Map<String, ?> inputs) {
    return name(model.evalStep(order(Phase.EVAL, inputs)));
  }

/*@end@*/
  /** Update the parameters from the gradients. */
  public void optimizerStep() {
    model.optimizerStep();
  }

  /** Make the next train step overwrite the gradients. */
  public void lazyResetGrad() {
    model.lazyResetGrad();
  }

  /** Set the seed of random numbers, for example for dropout. */
  public void setSeed(long seed) {
    model.setSeed(seed);
  }

  /** Set the learning rate of updates. */
  public void setLearningRate(float rate) {
    model.setLearningRate(rate);
  }

  /** Return the learning rate of the next update. */
  public float getLearningRate() {
    return model.getLearningRate();
  }

  /** Schedule a rate that rises to a peak during warm-up, then falls to 0; see schedulerStep. */
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

  /** Write a checkpoint file. */
  public void saveCheckpoint(Path path, boolean saveOptimizer) {
    model.save(path.toString(), saveOptimizer);
  }

/*@if export_model@*/
  /** Write the inference model as an ONNX file; the build has chosen its outputs. */
  public void exportModelForInference(Path path, String[] outputNames) {
    Set<String> names = names(Phase.INFER, model.outputCount(Phase.INFER), model::outputInfo);
    if (!names.equals(new LinkedHashSet<>(Arrays.asList(outputNames)))) {
      String wanted = Arrays.toString(outputNames);
      throw Model.refuse("this build exports " + names + ", and not " + wanted + ": build --output");
    }
    model.exportModel(path.toString());
  }

/*@end@*/
  /** Return the names of the inputs of train steps. */
  public Set<String> getTrainInputNames() {
    return inputNames(Phase.TRAIN);
  }

  /** Return the names of the outputs of train steps. */
  public Set<String> getTrainOutputNames() {
    return names(Phase.TRAIN, model.outputCount(Phase.TRAIN), model::outputInfo);
  }

/*@if eval_step@*/
  /** Return the names of the inputs of eval steps. */
  public Set<String> getEvalInputNames() {
    return inputNames(Phase.EVAL);
  }

  /** Return the names of the outputs of eval steps. */
  public Set<String> getEvalOutputNames() {
    return names(Phase.EVAL, model.outputCount(Phase.EVAL), model::outputInfo);
  }

/*@end@*/
  @Override
  public void close() {
    model.close();
  }

  private Set<String> inputNames(Phase phase) {
    return names(phase, model.inputCount(phase), model::inputInfo);
  }

  private static Set<String> names(
      Phase phase, int count, BiFunction<Phase, Integer, Tensor> describe) {
    Set<String> names = new LinkedHashSet<>();
    for (int i = 0; i < count; i++) {
      names.add(describe.apply(phase, i).name);
    }
    return names;
  }

  private Object[] order(Phase phase, Map<String, ?> inputs) {
    Set<String> names = inputNames(phase);
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
/*@end@*/
