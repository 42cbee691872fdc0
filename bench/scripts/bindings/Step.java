import edgegrad.mlp.Model;
import edgegrad.mlp.Phase;

/** The least nanoseconds of a step, over blocks of steps: CHECKPOINT BLOCKS STEPS. */
public final class Step {
  public static void main(String[] arguments) {
    int blocks = Integer.parseInt(arguments[1]);
    int steps = Integer.parseInt(arguments[2]);
    long least = Long.MAX_VALUE;
    try (Model model = Model.create(arguments[0])) {
      float[] x = new float[model.inputInfo(Phase.TRAIN, 0).elements()];
      long[] y = new long[model.inputInfo(Phase.TRAIN, 1).elements()];
      for (int block = 0; block < blocks; block++) {
        long begin = System.nanoTime();
        for (int k = 0; k < steps; k++) {
          model.trainStep(x, y);
          model.optimizerStep();
          model.lazyResetGrad();
        }
        least = Math.min(least, (System.nanoTime() - begin) / steps);
      }
    }
    System.out.println(least);
  }
}
