package edgegrad.@name@;

/** @enumerationSentence@ */
public enum @Enumeration@ {
@enumerationRows@;

  /** The number in C. */
  public final int value;

  @Enumeration@(int value) {
    this.value = value;
  }

  /** Return the constant with a number. */
  public static @Enumeration@ of(int value) {
    for (@Enumeration@ each : values()) {
      if (each.value == value) {
        return each;
      }
    }
    throw new IllegalArgumentException("no @Enumeration@ has the number " + value);
  }
}
