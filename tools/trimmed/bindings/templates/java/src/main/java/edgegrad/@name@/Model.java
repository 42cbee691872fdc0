package edgegrad.@name@;

import java.io.Closeable;
import java.nio.charset.StandardCharsets;
/*@if train_step or infer@*/
import java.util.ArrayList;
import java.util.List;
/*@end@*/

/**
 * @purpose@. Each method calls the function of @name@.h with the same name. Refused calls
 * throw a {@link ModelException} with the library's message. A model has memory outside the heap,
 * so close it. Calls from several threads wait for one another.
 *
 * <pre>{@code
 * try (Model model = Model.create("checkpoint")) {
/*@if train_step@*/
 *   float loss = model.trainStep(images, labels)[0].item();
 *   model.optimizerStep();
 *   model.lazyResetGrad();
/*@end@*/
/*@if infer !train_step@*/
 *   float[] scores = model.infer(images)[0].floats();
/*@end@*/
/*@if append !train_step !infer@*/
 *   model.append(tokens);
 *   float[] scores = model.scores().floats();
/*@end@*/
 * }
 * }</pre>
 */
public class Model implements Closeable {
  private long m;

  private Model(long m) {
    this.m = m;
  }

/*@makers@*/

/*@members@*/

  /** Free the model. */
  @Override
  public synchronized void close() {
    Native.destroy(m);
    m = 0;
  }

  private long live() {
    if (m == 0) {
      throw new ModelException(ErrorCode.BAD_STATE.value, "the model was closed");
    }
    return m;
  }

  private void check(int code) {
    if (code != ErrorCode.OK.value) {
      throw new ModelException(code, text(Native.message(m)));
    }
  }

  private static Model make(int code, long[] made, byte[] why) {
    if (code != ErrorCode.OK.value) {
      int end = 0;
      while (why[end] != 0) {
        end++;
      }
      throw new ModelException(code, new String(why, 0, end, StandardCharsets.UTF_8));
    }
    return new Model(made[0]);
  }

  private static byte[] bytes(String name, String value) {
    if (value != null && value.indexOf('\0') >= 0) {
      throw refuse(name + ": expected text without null characters");
    }
    return value == null ? null : (value + "\0").getBytes(StandardCharsets.UTF_8);
  }

  private static int number(String name, Phase phase) {
    if (phase == null) {
      throw refuse(name + ": expected a phase, got null");
    }
    return phase.value;
  }

  private static String text(long address) {
    return address == 0 ? "" : new String(Native.text(address), StandardCharsets.UTF_8);
  }

  private static Tensor tensor(long address) {
    return address == 0 ? null : new Tensor(text(Native.tensorName(address)), Native.facts(address));
  }

  private static Values read(long address, Tensor tensor) {
    if (address == 0) {
      return null;
    }
    Object array = tensor.makeArray();
    Native.read(address, array, tensor.bytes);
    return new Values(tensor, array);
  }

  private static void write(long address, Tensor tensor, String place, Object array) {
    if (address == 0 || tensor == null) {
      throw refuse(place + ": there is none at that index, or it takes no values");
    }
    tensor.check(place, array);
    Native.write(address, array, tensor.bytes);
  }

/*@if train_step or infer@*/
  private void place(Phase phase, Object[] inputs) {
    if (inputs == null || !hasPhase(phase)) {
      return; // the inputs are in place, or the step itself reports the error
    }
    int count = inputCount(phase);
    if (inputs.length != count) {
      List<String> names = new ArrayList<>();
      for (int i = 0; i < count; i++) {
        names.add(inputInfo(phase, i).name);
      }
      throw refuse("expected " + count + " inputs " + names + ", got " + inputs.length);
    }
    for (int i = 0; i < count; i++) {
      Tensor tensor = inputInfo(phase, i);
      tensor.check("input '" + tensor.name + "'", inputs[i]);
    }
    for (int i = 0; i < count; i++) {
      setInput(phase, i, inputs[i]);
    }
  }

  private Values[] outputs(Phase phase) {
    Values[] values = new Values[outputCount(phase)];
    for (int i = 0; i < values.length; i++) {
      values[i] = output(phase, i);
    }
    return values;
  }

/*@end@*/
  static ModelException refuse(String message) {
    return new ModelException(ErrorCode.BAD_INPUT.value, message);
  }
}
