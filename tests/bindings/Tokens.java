import edgegrad.mnist.ErrorCode;
import edgegrad.mnist.Model;
import edgegrad.mnist.ModelException;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;

/** What the decoder of every binding is put through, in Java: Tokens CHECKPOINT SCORES. */
public final class Tokens {
  private static final ByteArrayOutputStream SCORES = new ByteArrayOutputStream();

  private static void append(Model model, int... tokens) {
    model.append(tokens);
    float[] scores = model.scores().floats();
    ByteBuffer bytes = ByteBuffer.allocate(4 * scores.length).order(ByteOrder.LITTLE_ENDIAN);
    bytes.asFloatBuffer().put(scores);
    SCORES.write(bytes.array(), 0, bytes.capacity());
  }

  private static void refuse(Runnable call) {
    try {
      call.run();
      System.out.println("not refused");
    } catch (ModelException error) {
      System.out.println("refused " + ErrorCode.of(error.code) + ": " + error.getMessage());
    }
  }

  public static void main(String[] args) throws IOException {
    try (Model model = Model.create(args[0])) {
      append(model, 5, 7, 9, 11, 13);
      for (int token = 3; token < 13; token++) {
        append(model, token);
      }
      refuse(() -> model.append(new int[] {100}));
      refuse(() -> model.append(new int[26]));
      refuse(() -> model.append(new int[0]));
      refuse(() -> model.truncate(16));
      System.out.println("length " + model.getLength() + " of " + model.getCapacity());
      model.truncate(7);
      System.out.println("forgotten " + (model.scores() == null));
      append(model, 8);
    }
    Files.write(Path.of(args[1]), SCORES.toByteArray());
  }
}
