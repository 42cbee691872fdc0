import edgegrad.@name@.Dtype;
import edgegrad.@name@.Model;
import edgegrad.@name@.Phase;
import edgegrad.@name@.Tensor;
import java.util.Random;

/** Training from Java: java -cp CLASSES:src/main/resources Example ../checkpoint out. */
public final class Example {
  private static final Random RANDOM = new Random(1);

  // A batch for one input; a program would read its own here.
  private static Object makeBatch(Tensor tensor) {
    int count = tensor.elements();
    if (tensor.dtype == Dtype.F32) {
      float[] pixels = new float[count];
      for (int i = 0; i < count; i++) {
        pixels[i] = RANDOM.nextFloat();
      }
      return pixels;
    }
    return RANDOM.longs(count, 0, 2).toArray();
  }

  public static void main(String[] arguments) {
    try (Model model = Model.create(arguments[0])) {
      model.setLearningRate(0.01f);
      for (int step = 1; step <= 20; step++) {
        Object[] inputs = new Object[model.inputCount(Phase.TRAIN)];
        for (int i = 0; i < inputs.length; i++) {
          inputs[i] = makeBatch(model.inputInfo(Phase.TRAIN, i));
        }
        float loss = model.trainStep(inputs)[0].item();
        if (!model.isJoined()) {
          model.optimizerStep();
        }
        model.lazyResetGrad();
        System.out.println("step " + step + ": loss " + loss);
      }
      model.save(arguments[1], true);
    }
  }
}
