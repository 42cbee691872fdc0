package edgegrad.@name@;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Locale;

/** The C functions, called through jni.c; addresses are longs. */
final class Native {
  static {
    load();
  }

  private Native() {}

  /** Load the library: the app's, as on Android, otherwise the one in this package's resources. */
  private static void load() {
    try {
      System.loadLibrary("@name@");
      return;
    } catch (UnsatisfiedLinkError missing) {
      // it is not on the library path
    }
    String file = System.mapLibraryName("@name@");
    String place = platform() + "/" + file;
    try (InputStream content = Native.class.getResourceAsStream(place)) {
      if (content == null) {
        throw new UnsatisfiedLinkError(
            file + " is not on java.library.path, nor " + place + " in the resources of edgegrad.@name@");
      }
      Path copy = Files.createTempFile("@name@", file);
      try {
        Files.copy(content, copy, StandardCopyOption.REPLACE_EXISTING);
        System.load(copy.toString());
      } finally {
        if (!copy.toFile().delete()) {
          copy.toFile().deleteOnExit(); // Windows keeps it until the process ends
        }
      }
    } catch (IOException error) {
      throw new UnsatisfiedLinkError(
          "cannot copy " + file + " to a temporary file: " + error
              + "; set another folder with -Djava.io.tmpdir=, or the library's with -Djava.library.path=");
    }
  }

  /** Return the name of the resource folder for this system and processor. */
  private static String platform() {
    String system = System.getProperty("os.name").toLowerCase(Locale.ROOT);
    String machine = System.getProperty("os.arch");
    system = system.startsWith("windows") ? "windows" : system.startsWith("mac") ? "macos" : system;
    return system + "-" + (machine.equals("amd64") ? "x86_64" : machine);
  }

  static native byte[] text(long address);

  static native long tensorName(long address);

  static native long[] facts(long address);

  static native void read(long address, Object array, long bytes);

  static native void write(long address, Object array, long bytes);

/*@natives@*/
}
