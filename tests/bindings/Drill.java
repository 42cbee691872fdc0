import edgegrad.mnist.ErrorCode;
import edgegrad.mnist.Model;
import edgegrad.mnist.ModelException;
import edgegrad.mnist.OrtTrainingSession;
import edgegrad.mnist.Phase;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;

/** What every binding is put through, in Java: Drill CHECKPOINT STEPS OUT SESSIONS. */
public final class Drill {
  private static ByteBuffer steps;
  private static int samples;
  private static int labels;

  private record Step(float rate, float[] x, long[] y) {}

  private static Step read(int k) {
    ByteBuffer step = steps.position(k * (4 + 4 * samples + 8 * labels)).slice();
    step.order(ByteOrder.LITTLE_ENDIAN);
    float rate = step.getFloat();
    float[] x = new float[samples];
    long[] y = new long[labels];
    step.asFloatBuffer().get(x);
    step.position(4 + 4 * samples).slice().order(ByteOrder.LITTLE_ENDIAN).asLongBuffer().get(y);
    return new Step(rate, x, y);
  }

  private static int train(Model model, int k) {
    Step step = read(k);
    model.setLearningRate(step.rate);
    float loss = model.trainStep(step.x, step.y)[0].item();
    if (!model.isJoined() && k != 3) { // the fifth step adds to the gradients of the fourth
      model.optimizerStep();
      model.lazyResetGrad();
    }
    return Float.floatToRawIntBits(loss);
  }

  private static void say(String line) {
    byte[] bytes = (line + "\n").getBytes(StandardCharsets.UTF_8);
    System.out.write(bytes, 0, bytes.length);
  }

  private static void refuse(Runnable call) {
    try {
      call.run();
      say("not refused");
    } catch (ModelException error) {
      say("refused " + ErrorCode.of(error.code) + ": " + error.getMessage());
    }
  }

  private static long resident() throws IOException {
    return Long.parseLong(Files.readString(Path.of("/proc/self/statm")).split(" ")[1]) * 4096;
  }

  public static void main(String[] arguments) throws IOException {
    steps = ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[1])));
    Model model = Model.create(arguments[0]);
    samples = model.inputInfo(Phase.TRAIN, 0).elements();
    labels = model.inputInfo(Phase.TRAIN, 1).elements();
    for (int k = 0; k < 9; k++) {
      say("loss " + train(model, k));
    }
    Step last = read(9);
    say("eval " + Float.floatToRawIntBits(model.evalStep(last.x, last.y)[0].item()));
    say("predicted " + model.infer(last.x)[0].floats().length);
    model.setPropertyString("note", "gr\u00fc\u00df");
    model.setPropertyInt("count", 9007199254740993L);
    say("property " + model.getProperty(1).text + " " + model.getProperty(0).integer);

    byte[] before = model.checkpoint(true);
    long[] wrong = new long[labels];
    Arrays.fill(wrong, 10);
    refuse(() -> model.trainStep(new float[samples - 1], last.y));
    refuse(() -> model.trainStep(last.x, wrong));
    refuse(() -> model.setLearningRate(Float.NaN));
    refuse(() -> model.setParameters(new float[1], true));
    refuse(() -> Model.createFrom(Arrays.copyOf(before, before.length / 2)));
    refuse(() -> Model.create("missing"));
    say("unchanged " + Arrays.equals(before, model.checkpoint(true)));

    Model resumed = Model.createFrom(before);
    refuse(resumed::optimizerStep);
    say("round trip " + Arrays.equals(before, resumed.checkpoint(true)));
    model.save(arguments[2], true);
    Model opened = Model.create(arguments[2]);
    int loss = train(model, 9);
    say("loss " + loss);
    say("alike " + (train(resumed, 9) == loss && train(opened, 9) == loss));
    model.save(arguments[2], true);
    long done = opened.getStep();
    Runnable turns =
        () -> {
          for (int k = 0; k < 50; k++) {
            opened.trainStep(last.x, last.y);
            opened.optimizerStep();
          }
        };
    Thread other = new Thread(turns);
    other.start();
    turns.run();
    join(other);
    say("turns " + (opened.getStep() - done));
    float[] values = model.parameters(true);
    resumed.setParameters(values, true);
    boolean same = Arrays.equals(values, resumed.parameters(true));
    say("parameters " + values.length + " " + same);
    refuse(() -> model.parametersF64(true));
    Files.write(Path.of(arguments[2] + ".onnx"), model.exportModel());

    try (OrtTrainingSession session = new OrtTrainingSession(Path.of(arguments[2]))) {
      session.registerLinearLRScheduler(20, 40, 0.5f);
      Map<String, Object> inputs = Map.of(name(model, 0), last.x, name(model, 1), last.y);
      session.trainStep(inputs);
      session.optimizerStep();
      session.lazyResetGrad();
      session.schedulerStep();
      say("rate " + session.getLearningRate());
    }

    for (Model each : new Model[] {model, resumed, opened}) {
      each.close();
    }
    refuse(() -> model.trainStep(last.x, last.y));

    int sessions = Integer.parseInt(arguments[3]);
    long first = 0;
    for (int k = 0; k < sessions; k++) {
      Model.createFrom(before).close();
      first = k == sessions / 2 ? resident() : first;
    }
    say("grown " + (Math.max(0, resident() - first) >> 20));
    System.out.flush();
  }

  private static void join(Thread thread) {
    try {
      thread.join();
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  private static String name(Model model, int index) {
    return model.inputInfo(Phase.TRAIN, index).name;
  }
}
