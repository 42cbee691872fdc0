import edgegrad.mnist.Model;
import edgegrad.mnist.ModelException;
import edgegrad.mnist.Phase;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** Every method with values that nobody should pass: Walk CHECKPOINT CALLS ROUNDS. */
public final class Walk {
  private interface Call {
    Object make(Model m, List<String> w);
  }

  private static final Map<String, Call> CALLS = new HashMap<>();
  private static final int RACES = 100;
  private static final Object DONE = new Object();

  static {
/*@rows@*/
  }

  private static String text(String word) {
    if (word.equals("null")) {
      return null;
    }
    byte[] bytes = new byte[word.length() / 2];
    for (int i = 0; i < bytes.length; i++) {
      bytes[i] = (byte) Integer.parseInt(word.substring(1 + 2 * i, 3 + 2 * i), 16);
    }
    return new String(bytes, StandardCharsets.UTF_8);
  }

  private static Phase phase(String word) {
    return word.equals("null") ? null : Phase.of(Integer.parseInt(word));
  }

  private static float real(String word) {
    return Float.intBitsToFloat((int) Long.parseLong(word));
  }

  private static byte[] bytes(String word) {
    try {
      return word.equals("null") ? null : Files.readAllBytes(Paths.get(word));
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
  }

  private static byte[] buffer(String word) {
    return word.equals("null") ? null : new byte[Integer.parseInt(word)];
  }

  private static float[] floats(String word) {
    return word.equals("null") ? null : new float[Integer.parseInt(word)];
  }

  private static double[] doubles(String word) {
    return word.equals("null") ? null : new double[Integer.parseInt(word)];
  }

  private static int[] ints(String word) {
    return word.equals("null") ? null : new int[Integer.parseInt(word)];
  }

  private static Object numbers(String word) {
    if (word.equals("null")) {
      return null;
    }
    String[] parts = word.substring(2).split("=");
    int count = Integer.parseInt(parts[0]);
    if (word.charAt(0) == 'l') {
      long[] made = new long[count];
      Arrays.fill(made, Long.parseLong(parts[1]));
      return made;
    }
    float[] made = new float[count];
    Arrays.fill(made, parts[1].equals("nan") ? Float.NaN : Float.parseFloat(parts[1]));
    return made;
  }

  private static Object[] inputs(String word) {
    if (word.equals("null")) {
      return null;
    }
    return word.equals("none")
        ? new Object[0]
        : Arrays.stream(word.split(",")).map(Walk::numbers).toArray();
  }

  private static String tell(Object answer) {
    if (answer == DONE) {
      return "ok";
    }
    if (answer instanceof Boolean) {
      return (Boolean) answer ? "ok 1" : "ok 0";
    }
    boolean isNumber = answer instanceof Integer || answer instanceof Long;
    return "ok " + (answer == null ? "none" : isNumber ? answer.toString() : "some");
  }

  private static String call(List<String> row, Model m) {
    try {
      return tell(CALLS.get(row.get(1)).make(m, row.subList(2, row.size())));
    } catch (ModelException error) {
      return error.code + " " + error.getMessage();
    } catch (RuntimeException error) {
      return "other error: " + error;
    }
  }

  /** Walk on until the model has ended, which another thread closes meanwhile. */
  private static void walkToEnd(List<List<String>> rows, int at, Model m) {
    for (String said = ""; !said.startsWith("5 the model was closed"); at++) {
      said = call(rows.get(at % rows.size()), m);
    }
  }

  private static void race(List<List<String>> rows, String path) throws InterruptedException {
    Model m = Model.create(path);
    Thread[] others = {
      new Thread(() -> walkToEnd(rows, 0, m)), new Thread(() -> walkToEnd(rows, rows.size() / 2, m))
    };
    for (Thread each : others) {
      each.start();
    }
    Thread.sleep((long) (3 * Math.random()));
    m.close();
    m.close();
    for (Thread each : others) {
      each.join();
    }
  }

  private static long resident() throws IOException {
    System.gc();
    return Long.parseLong(new String(bytes("/proc/self/statm")).split(" ")[1]) * 4096;
  }

  public static void main(String[] arguments) throws IOException, InterruptedException {
    Map<String, Model> models = new HashMap<>();
    Model live = Model.create(arguments[0]);
    models.put("live", live);
    models.put("bare", Model.createFrom(null));
    models.put("ended", Model.create(arguments[0]));
    models.get("ended").close();
    models.get("ended").close();
    List<String> lines = Files.readAllLines(Paths.get(arguments[1]));
    for (int i = 0; i < lines.size(); i++) {
      List<String> row = Arrays.asList(lines.get(i).split(" "));
      byte[] before = live.checkpoint(true);
      String said = call(row, models.get(row.get(0)));
      if (!said.startsWith("ok") && !Arrays.equals(before, live.checkpoint(true))) {
        said += " changed";
      }
      System.out.println(i + " " + said);
    }
    List<List<String>> racing =
        lines.stream()
            .map(line -> Arrays.asList(line.split(" ")))
            .filter(row -> row.get(0).equals("live"))
            .collect(Collectors.toList());
    for (int turn = 0; turn < RACES; turn++) {
      race(racing, arguments[0]);
    }
    System.out.println("raced " + 2 * RACES);
    long first = 0;
    int rounds = Integer.parseInt(arguments[2]);
    for (int turn = 0; turn < rounds; turn++) {
      for (String line : lines) {
        List<String> row = Arrays.asList(line.split(" "));
        call(row, models.get(row.get(0)));
      }
      first = turn == rounds / 2 ? resident() : first;
    }
    System.out.println("grown " + (Math.max(0, resident() - first) >> 20));
  }
}
