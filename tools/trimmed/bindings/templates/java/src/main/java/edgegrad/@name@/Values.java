package edgegrad.@name@;

import java.lang.reflect.Array;
import java.util.ArrayList;
import java.util.List;

/** The values of an output or a parameter: a copy, in a Java array. */
public final class Values {
  /** The tensor's name, type and shape. */
  public final Tensor tensor;

  /** A {@code float[]}, {@code long[]} or another array, depending on the tensor's type. */
  public final Object array;

  Values(Tensor tensor, Object array) {
    this.tensor = tensor;
    this.array = array;
  }

  /** Return the values as floats. */
  public float[] floats() {
    if (!(array instanceof float[])) {
      throw Model.refuse("'" + tensor.name + "' does not have float values");
    }
    return (float[]) array;
  }

  /** Return the first value as a float, such as the loss. */
  public float item() {
    if (array instanceof boolean[]) {
      return ((boolean[]) array)[0] ? 1 : 0;
    }
    return ((Number) Array.get(array, 0)).floatValue();
  }

  @Override
  public String toString() {
    List<Object> first = new ArrayList<>();
    for (int i = 0; i < Math.min(4, Array.getLength(array)); i++) {
      first.add(Array.get(array, i));
    }
    return tensor.name + ": " + first + (first.size() < Array.getLength(array) ? " ..." : "");
  }
}
