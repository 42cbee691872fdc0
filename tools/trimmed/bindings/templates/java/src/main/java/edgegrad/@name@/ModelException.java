package edgegrad.@name@;

/** The error of a refused call: the library's error code and its message. */
public class ModelException extends RuntimeException {
  private static final long serialVersionUID = 1;

  /** One of {@link ErrorCode}. */
  public final int code;

  ModelException(int code, String message) {
    super(message);
    this.code = code;
  }
}
