package edgegrad.@name@;

/** An error code of C, and the message that says what was wrong. */
public class ModelException extends RuntimeException {
  private static final long serialVersionUID = 1;

  /** One of {@link ErrorCode}. */
  public final int code;

  ModelException(int code, String message) {
    super(message);
    this.code = code;
  }
}
