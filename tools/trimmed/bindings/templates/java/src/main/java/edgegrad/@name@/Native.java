package edgegrad.@name@;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;

/** The functions of C, as jni.c passes them on; addresses are longs. */
final class Native {
  static {
    load();
  }

  private Native() {}

  /** Load the library: of the app, as on Android, or else of this package's resources. */
  private static void load() {
    try {
      System.loadLibrary("@name@");
      return;
    } catch (UnsatisfiedLinkError missing) {
      // it is not on the library path
    }
    try (InputStream content = Native.class.getResourceAsStream("@library@")) {
      if (content == null) {
        throw new UnsatisfiedLinkError("@library@ is not on java.library.path, nor a resource");
      }
      Path copy = Files.createTempFile("@name@", "@library@");
      Files.copy(content, copy, StandardCopyOption.REPLACE_EXISTING);
      System.load(copy.toString());
      copy.toFile().delete(); // Windows keeps it until the process ends
      copy.toFile().deleteOnExit();
    } catch (IOException error) {
      throw new UnsatisfiedLinkError("cannot copy @library@: " + error.getMessage());
    }
  }

  static native byte[] text(long address);

  static native long tensorName(long address);

  static native long[] facts(long address);

  static native void read(long address, Object array, long bytes);

  static native void write(long address, Object array, long bytes);

/*@natives@*/
}
