import edgegrad.@name@.Model;
/*@if train_step or infer@*/
import edgegrad.@name@.Phase;
import edgegrad.@name@.Tensor;
/*@end@*/
/*@if infer !train_step@*/
import edgegrad.@name@.Values;
/*@end@*/
/*@if train_step or infer@*/
import java.lang.reflect.Array;
import java.util.Random;
/*@end@*/

/** @purpose@ from Java: java -cp CLASSES:src/main/resources Example@arguments@. */
public final class Example {
/*@if train_step or infer@*/
  private static final Random RANDOM = new Random(1);

  // Make up a batch for one input; a real program reads its data here.
  private static Object makeBatch(Tensor tensor) {
    Object values = tensor.makeArray();
    for (int i = 0; i < tensor.elements(); i++) {
      switch (tensor.dtype) {
        case F32:
        case F64:
          Array.setFloat(values, i, RANDOM.nextFloat());
          break;
        case BOOL:
          Array.setBoolean(values, i, RANDOM.nextBoolean());
          break;
        default:
          Array.setByte(values, i, (byte) RANDOM.nextInt(2));
      }
    }
    return values;
  }

  private static Object[] makeBatches(Model model, Phase phase) {
    Object[] inputs = new Object[model.inputCount(phase)];
    for (int i = 0; i < inputs.length; i++) {
      inputs[i] = makeBatch(model.inputInfo(phase, i));
    }
    return inputs;
  }

/*@end@*/
/*@if train_step@*/
  private static void train(Model model) {
    model.setLearningRate(0.01f);
    for (int step = 1; step <= 20; step++) {
      float loss = model.trainStep(makeBatches(model, Phase.TRAIN))[0].item();
      if (!model.isJoined()) {
        model.optimizerStep();
      }
      model.lazyResetGrad();
      System.out.println("step " + step + ": loss " + loss);
    }
  }

/*@end@*/
/*@if infer !train_step@*/
  private static void answer(Model model) {
    for (Values output : model.infer(makeBatches(model, Phase.INFER))) {
      System.out.println(output);
    }
  }

/*@end@*/
/*@if append@*/
  // Continue a text: append the token with the largest score, again and again.
  private static void continueText(Model model) {
    StringBuilder text = new StringBuilder("text:");
    int token = 0;
    while (model.getLength() < Math.min(10, model.getCapacity())) {
      text.append(' ').append(token);
      model.append(new int[] {token});
      float[] scores = model.scores().floats();
      token = 0;
      for (int i = 1; i < scores.length; i++) {
        token = scores[i] > scores[token] ? i : token;
      }
    }
    System.out.println(text);
  }

/*@end@*/
  public static void main(String[] arguments) {
/*@if train_step@*/
    if (arguments.length != 2) {
      System.err.println("usage: Example CHECKPOINT NEW_CHECKPOINT");
      System.exit(2);
    }
/*@end@*/
    try (Model model = Model.create(arguments.length > 0 ? arguments[0] : null)) {
/*@if train_step@*/
      train(model);
      model.save(arguments[1], true);
/*@end@*/
/*@if infer !train_step@*/
      answer(model);
/*@end@*/
/*@if append@*/
      continueText(model);
/*@end@*/
    }
  }
}
