import edgegrad.mnist.Device;
import edgegrad.mnist.ModelException;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;

/**
 * A device in Java, for a server over HTTP: CHECKPOINT X LABELS ADDRESS. Or messages that must be
 * refused: CHECKPOINT X LABELS FOLDER.
 */
public final class Federated {
  private static ByteBuffer read(String path) throws IOException {
    byte[] content = Files.readAllBytes(Paths.get(path));
    return ByteBuffer.wrap(content).order(ByteOrder.LITTLE_ENDIAN);
  }

  private static byte[] fetch(URL address) throws IOException {
    HttpURLConnection connection = (HttpURLConnection) address.openConnection();
    if (connection.getResponseCode() == HttpURLConnection.HTTP_NO_CONTENT) {
      return null;
    }
    ByteArrayOutputStream content = new ByteArrayOutputStream();
    byte[] piece = new byte[65536];
    try (InputStream from = connection.getInputStream()) {
      for (int count = from.read(piece); count >= 0; count = from.read(piece)) {
        content.write(piece, 0, count);
      }
    }
    return content.toByteArray();
  }

  private static void send(URL address, byte[] content) throws IOException {
    HttpURLConnection connection = (HttpURLConnection) address.openConnection();
    connection.setRequestMethod("POST");
    connection.setDoOutput(true);
    connection.setFixedLengthStreamingMode(content.length);
    connection.getOutputStream().write(content);
    if (connection.getResponseCode() != HttpURLConnection.HTTP_OK) {
      throw new IOException("status " + connection.getResponseCode());
    }
  }

  public static void main(String[] arguments) throws IOException {
    byte[] checkpoint = Files.readAllBytes(Paths.get(arguments[0]));
    ByteBuffer x = read(arguments[1]);
    ByteBuffer labels = read(arguments[2]);
    float[] samples = new float[x.capacity() / 4];
    long[] classes = new long[labels.capacity() / 8];
    x.asFloatBuffer().get(samples);
    labels.asLongBuffer().get(classes);
    Device device = new Device(checkpoint, samples, classes);
    if (!arguments[3].startsWith("http:")) {
      try (DirectoryStream<Path> files = Files.newDirectoryStream(Paths.get(arguments[3]))) {
        for (Path file : files) {
          String said = "taken";
          try {
            device.answer(Files.readAllBytes(file));
          } catch (ModelException error) {
            said = "ModelError";
          }
          System.out.println(file.getFileName() + ": " + said);
        }
      }
      return;
    }
    URL address = new URL(arguments[3]);
    for (byte[] request = fetch(address); request != null; request = fetch(address)) {
      send(address, device.answer(request));
    }
  }
}
