package edgegrad.@name@;

/** Values of an output or a parameter: a copy, in an array of Java. */
public final class Values {
  public final Tensor tensor;

  /** A {@code float[]}, {@code long[]} or other array, as the tensor's type is. */
  public final Object array;

  Values(Tensor tensor, Object array) {
    this.tensor = tensor;
    this.array = array;
  }

  /** Return the values as floats. */
  public float[] floats() {
    if (!(array instanceof float[])) {
      throw Model.refuse("'" + tensor.name + "' has other values than floats");
    }
    return (float[]) array;
  }

  /** Return the first value, such as the loss. */
  public float item() {
    return floats()[0];
  }
}
