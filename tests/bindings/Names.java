import edgegrad.mnist.ModelException;
import edgegrad.mnist.OrtTrainingSession;
import edgegrad.mnist.Values;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;

/** The names of onnxruntime's OrtTrainingSession: Names CHECKPOINT TRAINED EXPORTED. */
public final class Names {
  private static void refuse(Runnable call) {
    try {
      call.run();
      System.out.println("not refused");
    } catch (ModelException error) {
      System.out.println("refused " + error.getMessage());
    }
  }

  public static void main(String[] arguments) {
    try (OrtTrainingSession session = new OrtTrainingSession(Path.of(arguments[0]))) {
      refuse(session::schedulerStep);
      session.setSeed(3);
      session.setLearningRate(0.25f);
      System.out.println("rate " + session.getLearningRate());
      session.registerLinearLRScheduler(0, 40, 0.1f);
      Iterator<String> names = session.getTrainInputNames().iterator();
      Map<String, Object> inputs = new HashMap<>();
      inputs.put(names.next(), new float[4 * 64]);
      inputs.put(names.next(), new long[4]);
      float before = session.evalStep(inputs).values().iterator().next().item();
      for (int step = 0; step < 3; step++) {
        Map<String, Values> outputs = session.trainStep(inputs);
        System.out.println("names " + outputs.keySet().equals(session.getTrainOutputNames()));
        session.optimizerStep();
        session.lazyResetGrad();
        session.schedulerStep();
      }
      Map<String, Values> after = session.evalStep(inputs);
      System.out.println("names " + after.keySet().equals(session.getEvalOutputNames()));
      System.out.println("names " + session.getEvalInputNames().equals(session.getTrainInputNames()));
      System.out.println("falls " + (after.values().iterator().next().item() < before));
      System.out.println("rate " + session.getLearningRate());
      session.saveCheckpoint(Path.of(arguments[1]), true);
      session.exportModelForInference(Path.of(arguments[2]), new String[] {"output"});
      String[] others = {"x"};
      refuse(() -> session.exportModelForInference(Path.of(arguments[2]), others));
    }
  }
}
